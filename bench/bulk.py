"""Connections that build a backlog and look into it: batches in, deferrals, peeks by number."""

from __future__ import annotations

import random
import time
from dataclasses import replace

from bench.client import ReceivingWire, Samples, SendingWire, Wire, Work, now_ms
from bench.loop import Loop
from postbus.amqp.codec.types import Int, Long, Symbol, Timestamp
from postbus.amqp.events import (
    CreditChanged,
    Disposed,
    Event,
    LinkAttached,
    MessageReceived,
    SettledBySender,
)
from postbus.amqp.frames.outcomes import Modified
from postbus.amqp.frames.performatives import ACCEPTED, ROLE_RECEIVER, ROLE_SENDER, Accepted, Attach
from postbus.amqp.frames.terminus import Source, Target
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sections import (
    Properties,
    encode_amqp_value,
    encode_application_properties,
    encode_data,
    encode_header,
    encode_message_annotations,
    encode_properties,
    read_application_properties,
    read_value,
    scan,
)
from postbus.amqp.sending import SenderLink

BATCH_FORMAT = 0x80013700
"""A transfer of many messages, each in a data section of its own, as the SDKs send a batch."""
BATCH_MESSAGES = 500
BATCHES_AHEAD = 4
_PEEKED_AT_ONCE = 10


class BatchWire(SendingWire):
    """Sends `quota` messages in batches, all of them for later if `due_in_s` is given."""

    def __init__(
        self, work: Work, name: str, quota: int, samples: Samples, due_in_s: int | None
    ) -> None:
        super().__init__(work, name, quota, samples)
        head = encode_header(durable=True)
        if due_in_s is not None:
            due = Timestamp(now_ms() + due_in_s * 1000)
            head += encode_message_annotations({Symbol("x-opt-scheduled-enqueue-time"): due})
        self._head = head
        self._body = encode_data(b"x" * work.size)

    def _batch(self, first: int, count: int) -> bytes:
        return b"".join(
            encode_data(
                self._head
                + encode_properties(Properties(message_id=f"{self.name}-{number}"))
                + self._body
            )
            for number in range(first, first + count)
        )

    def _pump(self) -> None:
        while (
            self._running
            and self.started < self.quota
            and self.started - self.done < BATCHES_AHEAD * BATCH_MESSAGES
            and self.link.sendable > 0
        ):
            count = min(BATCH_MESSAGES, self.quota - self.started)
            payload = self._batch(self.started, count)
            self.samples.first_ns = self.samples.first_ns or time.monotonic_ns()
            tag = self.started.to_bytes(8, "big")
            self.link.send(tag, payload, message_format=BATCH_FORMAT, context=count)
            self.started += count
            self.samples.started += count

    def on_event(self, event: Event) -> None:
        if isinstance(event, Disposed):
            for delivery in event.deliveries:
                if not event.settled:
                    self.link.settle(delivery, event.state)
                if not isinstance(event.state, Accepted):
                    self.samples.refused += delivery.context
                self.done += delivery.context
                self.samples.done += delivery.context
            self.samples.last_ns = time.monotonic_ns()
            self._pump()
        elif isinstance(event, CreditChanged):
            self._pump()


class DeferringWire(ReceivingWire):
    """Receives `quota` messages and sets them aside instead of completing them."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, MessageReceived):
            self.started += 1
            self.samples.first_ns = self.samples.first_ns or time.monotonic_ns()
            self.link.settle(event.delivery, Modified(undeliverable_here=True), settled=False)
            self._top_up()
        elif isinstance(event, SettledBySender):
            self.done += len(event.deliveries)
            self.samples.done += len(event.deliveries)
            self.samples.last_ns = time.monotonic_ns()


class PeekingWire(Wire):
    """Peeks a few messages from `quota` random numbers up to `last`, one after the other."""

    def __init__(
        self, work: Work, name: str, quota: int, samples: Samples, last: int, chance: random.Random
    ) -> None:
        super().__init__(work, name, quota, samples)
        node = f"{work.address}/$management"
        asking = Attach(name, 0, ROLE_SENDER, source=Source(name), target=Target(node))
        self._asking = self.session.attach(SenderLink, asking)
        hearing = Attach(f"{name}-replies", 0, ROLE_RECEIVER, source=Source(node))
        hearing.target = Target(name)
        self._hearing = self.session.attach(ReceiverLink, hearing)
        self._links = 0
        self._last = last
        self._chance = chance
        self._asked_ns = 0

    def handle(self, events: list[Event]) -> None:
        self._links += sum(isinstance(event, LinkAttached) for event in events)
        super().handle(events)
        self.attached = self._links >= len((self._asking, self._hearing))

    def start(self) -> None:
        self._hearing.grant(self.quota)
        self._ask()

    def _ask(self) -> None:
        if self.started > self.done or self.finished or self._asking.sendable <= 0:
            return
        asked = {
            "from-sequence-number": Long(self._chance.randint(1, self._last)),
            "message-count": Int(_PEEKED_AT_ONCE),
        }
        payload = (
            encode_properties(Properties(message_id=str(self.started), reply_to=self.name)),
            encode_application_properties({"operation": "com.microsoft:peek-message"}),
            encode_amqp_value(asked),
        )
        self._asked_ns = time.monotonic_ns()
        self._asking.send(self.started.to_bytes(8, "big"), payload)
        self.started += 1

    def on_event(self, event: Event) -> None:
        if isinstance(event, MessageReceived):
            payload = event.delivery.payload
            sections = scan(payload)
            status = read_application_properties(payload, sections).get("statusCode")
            body = read_value(payload, sections)
            if status != 200 or not (isinstance(body, dict) and body.get("messages")):
                self.samples.refused += 1
            self.samples.settle_us.append((time.monotonic_ns() - self._asked_ns) // 1000)
            self._hearing.settle(event.delivery, ACCEPTED)
            self.done += 1
        elif isinstance(event, Disposed) and not event.settled:
            for delivery in event.deliveries:
                self._asking.settle(delivery, event.state)
        self._ask()


class Bulk:
    """What is done to one queue, a step at a time; each step returns when it is over."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._chance = random.Random(1)

    def send(self, count: int, due_in_s: int | None = None) -> Samples:
        samples = Samples()
        kind = "send" if due_in_s is None else "schedule"
        wire = BatchWire(self._work, f"bulk-{kind}", count, samples, due_in_s)
        return self._run([wire], samples)

    def defer(self, count: int) -> Samples:
        samples = Samples()
        return self._run([DeferringWire(self._work, "bulk-defer", count, samples)], samples)

    def peek(self, count: int, last: int) -> Samples:
        samples = Samples()
        wire = PeekingWire(self._work, "bulk-peek", count, samples, last, self._chance)
        return self._run([wire], samples)

    def receive(self, count: int) -> Samples:
        """Receive and complete; the samples say from when to when."""
        samples = Samples()
        work = replace(self._work, count=count)
        return self._run([ReceivingWire(work, "bulk-receive", count, samples)], samples)

    def _run(self, wires: list[Wire], samples: Samples) -> Samples:
        loop = Loop(wires, self._work.stall_s)
        try:
            loop.attach()
            loop.work()
        except BaseException:
            loop.drop()
            raise
        loop.close()
        return samples
