"""Messages from a Spark task into a queue or topic: in batches, each settled by the broker.

`flush` returns when every given message is on the broker's disk. Messages that were under way when
the connection broke are sent again. The broker may have them already, so each message has an id of
its own, and duplicate detection drops the copies.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from postbus.amqp.events import Disposed, Event
from postbus.amqp.frames.outcomes import Accepted, Rejected
from postbus.amqp.frames.performatives import ROLE_SENDER, SND_UNSETTLED, Attach
from postbus.amqp.frames.terminus import Source, Target
from postbus.amqp.sections import encode_data
from postbus.amqp.sending import SenderLink
from postbus.client.connection_string import Namespace
from pyspark_postbus.client import RETRY_S
from pyspark_postbus.wire import AmqpRefused, ConnectionLost, Wire, refusal

BATCH_FORMAT: Final = 0x80013700
BATCH_BYTES: Final = 131_072
"""The size of a transfer, or less if the namespace allows less for a message."""
BATCH_COUNT: Final = 1_000
UNSETTLED_MAX: Final = 16
"""Transfers under way: enough for the broker to gather several into a commit."""
UNSETTLED_BYTES_MAX: Final = UNSETTLED_MAX * BATCH_BYTES
"""The same for messages larger than a batch. A single message may be larger than this."""

_LOG = logging.getLogger("pyspark_postbus")
_ENVELOPE: Final = 8
"""Bytes that a message takes more in a batch, where it is a data section."""
_PAUSE_S: Final = 0.1
_PAUSE_MAX_S: Final = 5.0


class Sender:
    """Sends encoded messages to an entity. Opens its connection with the first of them."""

    def __init__(self, namespace: Namespace, entity: str, retry_s: float = RETRY_S) -> None:
        self._namespace = namespace
        self._entity = str(entity)
        self._retry_s = retry_s
        self._wire: Wire | None = None
        self._link: SenderLink | None = None
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._under_way: dict[int, list[bytes]] = {}
        self._under_way_bytes = 0
        self._next_tag = 0
        self._flushing = False
        self.settled = 0
        """Messages that the broker has taken."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.flush()
            self.close()
        else:
            self._drop()

    def send(self, message: bytes) -> None:
        """Give an encoded message. Returns when there is room for more, not when it is sent."""
        self._waiting.append(message)
        self._waiting_bytes += len(message) + _ENVELOPE
        if self._has_batch:
            self._work(lambda: not self._has_batch)

    def flush(self) -> None:
        """Return when the broker has taken all that was given."""
        self._flushing = True
        self._work(lambda: not self._waiting and not self._under_way)
        self._flushing = False

    @property
    def _has_batch(self) -> bool:
        return self._waiting_bytes >= BATCH_BYTES or len(self._waiting) >= BATCH_COUNT

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = self._link = None

    def _work(self, is_over: Callable[[], bool]) -> None:
        """Send and listen until it is over, through every broken connection."""
        began = time.monotonic()
        pause_s = _PAUSE_S
        while not is_over():
            before = self.settled
            try:
                self._exchange(is_over)
            except (OSError, AmqpRefused) as error:
                if isinstance(error, AmqpRefused) and not error.transient:
                    self._drop()
                    raise
                self._take_back()
                if self.settled > before:
                    began, pause_s = time.monotonic(), _PAUSE_S
                if time.monotonic() + pause_s - began > self._retry_s:
                    raise
                _LOG.info("entity=%s: sending again in %.1f s: %s", self._entity, pause_s, error)
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, _PAUSE_MAX_S)

    def _exchange(self, is_over: Callable[[], bool]) -> None:
        wire, link = self._attached()
        # Hear of settlements before more is written. A connection that has died since forgets them
        # on a write, and the messages would be sent twice.
        for event in wire.arrived():
            self._on_event(link, event)
        self._pump(link)
        for event in wire.events(is_over):
            self._on_event(link, event)
            self._pump(link)
        # The broker works on it while the next rows are made.
        wire.push()

    def _attached(self) -> tuple[Wire, SenderLink]:
        if self._wire is None or self._link is None:
            self._wire = Wire(self._namespace)
            name = f"spark-{id(self):x}"
            attach = Attach(name, 0, ROLE_SENDER, source=Source(name), target=Target(self._entity))
            attach.snd_settle_mode = SND_UNSETTLED
            self._link = self._wire.session.attach(SenderLink, attach)
        return self._wire, self._link

    def _pump(self, link: SenderLink) -> None:
        while (
            (self._has_batch or (self._flushing and self._waiting))
            and len(self._under_way) < UNSETTLED_MAX
            and self._under_way_bytes < UNSETTLED_BYTES_MAX
            and link.sendable
        ):
            messages = self._taken(min(BATCH_BYTES, link.peer_message_size_max or BATCH_BYTES))
            number = self._next_tag
            self._next_tag += 1
            self._under_way[number] = messages
            self._under_way_bytes += _size(messages)
            payload, message_format = messages[0], 0
            if len(messages) > 1:
                payload, message_format = b"".join(map(encode_data, messages)), BATCH_FORMAT
            link.send(number.to_bytes(8, "big"), payload, False, message_format, number)

    def _taken(self, size_max: int) -> list[bytes]:
        """The next messages that fit into a transfer: at least one, of any size."""
        taken: list[bytes] = []
        size = 0
        while self._waiting and len(taken) < BATCH_COUNT:
            size += len(self._waiting[0]) + _ENVELOPE
            if taken and size > size_max:
                break
            message = self._waiting.popleft()
            self._waiting_bytes -= len(message) + _ENVELOPE
            taken.append(message)
        return taken

    def _on_event(self, link: SenderLink, event: Event) -> None:
        if not isinstance(event, Disposed):
            return
        for delivery in event.deliveries:
            if not event.settled:
                link.settle(delivery, event.state)
            if isinstance(event.state, Accepted):
                messages = self._under_way.pop(delivery.context)
                self._under_way_bytes -= _size(messages)
                self.settled += len(messages)
            elif isinstance(event.state, Rejected):
                raise refusal(event.state.error, "amqp:internal-error")
            else:
                raise ConnectionLost(f"the broker let go of a transfer: {event.state!r:.80}")

    def _take_back(self) -> None:
        """Unsettled messages are sent again, in the order in which they were given."""
        for number in sorted(self._under_way, reverse=True):
            messages = self._under_way.pop(number)
            self._waiting.extendleft(reversed(messages))
            self._waiting_bytes += _size(messages)
        self._under_way_bytes = 0
        self._drop()

    def _drop(self) -> None:
        if self._wire is not None:
            self._wire.drop()
            self._wire = self._link = None


def _size(messages: list[bytes]) -> int:
    return sum(map(len, messages)) + _ENVELOPE * len(messages)
