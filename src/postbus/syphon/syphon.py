"""The syphon: moves messages from backlog queues back to their destinations (R-PAIR-10).

One pump for each backlog queue. A message is completed in the backlog after the primary has
accepted it, so none is lost; where a process dies in between, it arrives twice. Messages of one
destination keep the order of their backlog queue.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from postbus.amqp.codec.types import Symbol
from postbus.amqp.deliveries import IncomingDelivery
from postbus.amqp.frames.outcomes import Accepted, Error, Rejected
from postbus.client.amqp_client import AmqpClient, AmqpRefused, ReceivingLink
from postbus.client.connection_string import Namespace
from postbus.messages.diverted import NotDiverted, RestoredMessage, restore
from postbus.syphon.destinations import (
    DENIED,
    GONE_S,
    PAUSE_MAX_S,
    PAUSE_S,
    Answer,
    Destination,
    PrimaryNamespace,
)

log = logging.getLogger("postbus.syphon")

POLL_S: Final = 900.0
"""The life of a receiver: an empty one costs a receive when it ends (R-PAIR-12)."""
CREDIT: Final = 100
HELD_MAX: Final = 1_000
"""Messages of one backlog queue that wait for destinations which rest."""
LOCK_LEFT_S: Final = 10.0
"""A message is not sent with less of its lock left: another syphon may get it meanwhile."""
LOCK_S: Final = 30.0
"""The length of a lock, where the broker's clock tells nothing."""
LOCK_MAX_S: Final = 300.0
BATCH_COUNT: Final = 100
BATCH_BYTES: Final = 131_072


class SyphonFault(Exception):
    """One of the two namespaces refuses the key: nothing can be moved (R-PAIR-11)."""


class SyphonMeter:
    """What one syphon has done."""

    def __init__(self) -> None:
        self.moved = 0
        self.dead_lettered = 0
        self.left = 0
        """Messages that stayed in the backlog when their locks ran out."""
        self.polls = 0


class _Item:
    """A message of the backlog, under its lock."""

    __slots__ = ("delivery", "message", "until")

    def __init__(self, delivery: IncomingDelivery, message: RestoredMessage, until: float) -> None:
        self.delivery = delivery
        self.message = message
        self.until = until
        """The last moment to send it on."""


class Pump:
    """One receiver of one backlog queue, and a task for each destination of its messages."""

    def __init__(self, link: ReceivingLink, primary: PrimaryNamespace, meter: SyphonMeter) -> None:
        self._link = link
        self._primary = primary
        self._meter = meter
        self._held = 0
        self._waiting: dict[str, deque[_Item]] = {}
        self._workers: dict[str, asyncio.Task[None]] = {}

    async def run(self, poll_s: float) -> None:
        """Receive for a while; then finish what is in hand."""
        try:
            self._top_up()
            try:
                async with asyncio.timeout(poll_s):
                    while True:
                        self._take(await self._link.receive())
            except TimeoutError:
                self._link.grant(0)
            if self._workers:
                await asyncio.wait(list(self._workers.values()))
            self._link.check()
        finally:
            for worker in self._workers.values():
                worker.cancel()
            await asyncio.gather(*self._workers.values(), return_exceptions=True)

    def _top_up(self) -> None:
        if self._link.credit <= CREDIT // 2 and self._held < HELD_MAX:
            self._link.grant(CREDIT)

    def _take(self, delivery: IncomingDelivery) -> None:
        now_ms = time.time_ns() // 1_000_000
        try:
            message = restore(delivery.payload, now_ms)
        except NotDiverted as problem:
            self._dead_letter(delivery, "NotDiverted", str(problem))
            self._top_up()
            return
        lock_s = LOCK_S
        if message.locked_until is not None:
            told_s = (message.locked_until - now_ms) / 1_000
            lock_s = told_s if 0 < told_s <= LOCK_MAX_S else LOCK_S
        reserve_s = min(LOCK_LEFT_S, lock_s / 2)
        item = _Item(delivery, message, time.monotonic() + lock_s - reserve_s)
        self._held += 1
        path = message.path.lower()
        self._waiting.setdefault(path, deque()).append(item)
        if path not in self._workers:
            destination = self._primary.destination(message.path)
            worker = asyncio.create_task(self._work(destination, self._waiting[path]))
            self._workers[path] = worker
        self._top_up()

    async def _work(self, destination: Destination, waiting: deque[_Item]) -> None:
        """Move the messages of one destination, in order, until none waits."""
        try:
            while waiting:
                batch = _next_batch(waiting)
                await self._move(destination, batch)
                for _ in batch:
                    waiting.popleft()
                self._held -= len(batch)
                self._top_up()
        except SyphonFault as fault:
            self._link.end(fault)
        except Exception as error:
            log.exception("the syphon to %s has failed", destination.path)
            self._link.end(error)
        finally:
            # Now, and not when the task is seen to be done: a message may come in between.
            self._workers.pop(destination.path.lower(), None)

    async def _move(self, destination: Destination, batch: Sequence[_Item]) -> None:
        while batch := [item for item in batch if self._is_in_time(item)]:
            rest_s = destination.rest_s()
            if rest_s > 0:
                await asyncio.sleep(min(rest_s, batch[0].until - time.monotonic() + 0.1))
                continue
            try:
                await destination.send([item.message.payload for item in batch])
            except (AmqpRefused, OSError, TimeoutError) as error:
                answer = destination.failed(error)
                if answer is Answer.FAULT:
                    raise SyphonFault(f"the primary refuses the key: {error}") from error
                if answer is Answer.DEAD_LETTER and len(batch) > 1:
                    for item in batch:  # one of them is the culprit
                        await self._move(destination, [item])
                    return
                if answer is Answer.DEAD_LETTER:
                    text = f"'{destination.path}' refuses the message for good: {error}"
                    self._dead_letter(batch[0].delivery, "DestinationRefused", text)
                    return
                log.info("%s rests after %r", destination.path, error)
                continue
            for item in batch:
                self._link.settle(item.delivery, Accepted())
            self._meter.moved += len(batch)
            return

    def _is_in_time(self, item: _Item) -> bool:
        """One that is late stays: its lock runs out, and it comes again."""
        in_time = time.monotonic() < item.until
        self._meter.left += not in_time
        return in_time

    def _dead_letter(self, delivery: IncomingDelivery, reason: str, description: str) -> None:
        log.warning("a message goes to the dead letters of the backlog: %s", description)
        info = {
            Symbol("DeadLetterReason"): reason,
            Symbol("DeadLetterErrorDescription"): description[:4_096],
        }
        error = Error("com.microsoft:dead-letter", description[:1_024], info)
        self._link.settle(delivery, Rejected(error))
        self._meter.dead_lettered += 1


def _next_batch(waiting: deque[_Item]) -> list[_Item]:
    """The first messages that may share a transfer. One that was delivered before may have been
    sent on already: it goes alone, so that a failure repeats no others with it."""
    batch = [waiting[0]]
    size = len(waiting[0].message.payload)
    if waiting[0].message.delivery_count:
        return batch
    for item in list(waiting)[1:BATCH_COUNT]:
        size += len(item.message.payload) + 8
        if (
            size > BATCH_BYTES
            or item.message.delivery_count
            or item.message.key != waiting[0].message.key
        ):
            break
        batch.append(item)
    return batch


class Syphon:
    """Empties the backlog queues of one pair of namespaces."""

    def __init__(
        self,
        primary: Namespace,
        secondary: Namespace,
        queues: Sequence[str],
        poll_s: float = POLL_S,
        gone_s: float = GONE_S,
    ) -> None:
        self._primary = PrimaryNamespace(primary, gone_s)
        self._secondary = secondary
        self._queues = queues
        self._poll_s = poll_s
        self.meter = SyphonMeter()

    async def run(self) -> None:
        """Move messages until cancelled. Raises SyphonFault where a key is refused."""
        pumps = [asyncio.create_task(self._pump(queue)) for queue in self._queues]
        try:
            done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in done:
                pump.result()
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            await self._primary.close()

    async def _pump(self, queue: str) -> None:
        pause_s = PAUSE_S
        while True:
            try:
                await self._poll(queue)
                pause_s = PAUSE_S
                continue
            except AmqpRefused as error:
                if error.condition == DENIED:
                    raise SyphonFault(f"the secondary refuses the key: {error}") from error
                log.warning("%s cannot be read: %s", queue, error)
            except OSError as error:
                log.warning("%s cannot be reached: %s", queue, error)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    async def _poll(self, queue: str) -> None:
        client = await AmqpClient.connect(self._secondary)
        try:
            link = await client.receiver(queue)
            self.meter.polls += 1
            await Pump(link, self._primary, self.meter).run(self._poll_s)
        finally:
            await client.close()
