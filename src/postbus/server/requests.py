"""What the gateway asks of a fragment: sends, settlements, and calls with an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from postbus.amqp.deliveries import IncomingDelivery, OutgoingDelivery
from postbus.amqp.outcomes import Accepted, Modified, Outcome, Rejected, Released
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sending import SenderLink
from postbus.broker.engine import Engine
from postbus.broker.message import OWNER_BITS, CorruptRow, Message, NewProperties
from postbus.broker.pages import BodyPage, Need, Pages
from postbus.broker.queue import Queue
from postbus.broker.rewriting import check_together
from postbus.errors import ServiceBusError
from postbus.model.instant import Instant
from postbus.server.envelope import Changes, change_properties
from postbus.server.holding import Ordered
from postbus.server.host import Host
from postbus.server.line import Parcel
from postbus.server.pings import PING_TTL_MS, count_pings
from postbus.server.refusals import Refusals

if TYPE_CHECKING:
    from postbus.server.links import Inlet, Outlet

ACCEPTED: Final = Accepted()


class Send(Ordered):
    """One transfer: a message, or a batch that is stored whole or not at all."""

    __slots__ = (
        "_delivery",
        "_link",
        "_messages",
        "_pings",
        "_refusals",
        "_sender",
        "exclusive",
        "host",
        "size",
    )

    grows: Final = True

    def __init__(
        self,
        host: Host,
        messages: list[Message],
        link: ReceiverLink,
        delivery: IncomingDelivery,
        refusals: Refusals,
        sender: Inlet,
    ) -> None:
        super().__init__()
        self.host = host
        self.size = len(delivery.payload)
        self.exclusive = False
        self._messages = messages
        self._pings = count_pings(messages) if messages[0].ttl == PING_TTL_MS else 0
        self._link = link
        self._delivery = delivery
        self._refusals = refusals
        self._sender = sender

    def decide(self, engine: Engine, now: Instant) -> Need | None:
        stored = engine.send(self._messages, now, self.pages)
        return stored if isinstance(stored, Need) else None

    def foresee(self, engine: Engine, now: Instant) -> Need | None:
        return engine.foresee(self._messages, now)

    def answer(self) -> None:
        self._link.settle(self._delivery, ACCEPTED)
        meter = self.host.meter
        if meter is not None:
            meter.bytes_in += self.size
            meter.pings += self._pings
        self._sender.answered()

    def refuse(self, error: ServiceBusError) -> None:
        if self.host.meter is not None:
            self.host.meter.refused(error.condition)
        self._link.settle(self._delivery, self._refusals.rejected(error, self.host.name))
        self._sender.answered()


class Settle:
    """A receiver's verdict on messages it holds locks on; answered one by one."""

    __slots__ = (
        "_deliveries",
        "_failures",
        "_link",
        "_receiver",
        "_refusals",
        "_state",
        "exclusive",
        "host",
        "pages",
        "size",
    )

    grows: Final = False

    def __init__(
        self,
        host: Host,
        link: SenderLink,
        deliveries: list[OutgoingDelivery],
        state: Outcome,
        refusals: Refusals,
        receiver: Outlet,
    ) -> None:
        self.host = host
        self.size = 0
        self.pages: Pages | None = None
        self.exclusive = False
        self._link = link
        self._deliveries = deliveries
        self._state = state
        self._refusals = refusals
        self._receiver = receiver
        self._failures: dict[int, ServiceBusError] = {}

    def decide(self, engine: Engine, now: Instant) -> Need | None:
        queue = engine.at(self._receiver.subqueue)
        state = self._state
        if type(state) is Accepted:
            settle: Callable[[bytes, Instant], None] = queue.complete
        elif type(state) is Released:
            settle = queue.release
        else:
            return self._decide_with_changes(queue, now)
        for delivery in self._deliveries:
            try:
                settle(delivery.tag, now)
            except ServiceBusError as error:
                self._failures[delivery.delivery_id] = error
        return None

    def _decide_with_changes(self, queue: Queue, now: Instant) -> Need | None:
        """Abandon, defer and dead-letter may change properties; that needs the message."""
        assert isinstance(self._state, (Modified, Rejected))
        changes = Changes.of(self._state)
        if changes.properties:
            need = bodies_needed(queue, [d.tag for d in self._deliveries], now, self.pages)
            if need is not None:
                return need
        for delivery in self._deliveries:
            try:
                properties = rewritten(queue, delivery.tag, changes, now, self.pages)
                settle_with(queue, delivery.tag, changes, now, properties)
            except ServiceBusError as error:
                self._failures[delivery.delivery_id] = error
        return None

    def answer(self) -> None:
        state = confirmation(self._state)
        failures, link = self._failures, self._link
        for delivery in self._deliveries:
            error = failures.get(delivery.delivery_id) if failures else None
            if error is None:
                link.settle(delivery, state)
            else:
                link.settle(delivery, self._refusals.rejected(error, self.host.name))
        self._receiver.settled(self._deliveries)

    def refuse(self, error: ServiceBusError) -> None:
        for delivery in self._deliveries:
            self._link.settle(delivery, self._refusals.rejected(error, self.host.name))
        self._receiver.settled(self._deliveries)


class Lose:
    """A connection broke: its locks end as if they had run out (R-SETTLE-10)."""

    __slots__ = ("_tokens", "exclusive", "host", "pages", "size")

    grows: Final = False

    def __init__(self, host: Host, tokens: list[tuple[int, bytes]]) -> None:
        self.host = host
        self.size = 0
        self.pages: Pages | None = None
        self.exclusive = False
        self._tokens = tokens

    def decide(self, engine: Engine, now: Instant) -> Need | None:
        for subqueue, token in self._tokens:
            queue = engine.queues.get(subqueue >> OWNER_BITS)
            if queue is not None:
                queue.lose(token, now)
        return None

    def answer(self) -> None:
        pass

    def refuse(self, error: ServiceBusError) -> None:
        pass  # the engine is gone, and every lock with it


class GiveBack:
    """A message was taken for a link that is gone by now: nobody has seen it."""

    __slots__ = ("_parcel", "exclusive", "host", "pages", "size")

    grows: Final = False

    def __init__(self, host: Host, parcel: Parcel) -> None:
        self.host = host
        self.size = len(parcel.raw)
        self.pages: Pages | None = None
        self.exclusive = False
        self._parcel = parcel

    def decide(self, engine: Engine, now: Instant) -> Need | None:
        parcel = self._parcel
        queue = engine.at(parcel.message.subqueue)
        if parcel.token is None:
            queue.put_back(parcel.message, parcel.raw)
        else:
            queue.release(parcel.token, now)
        return None

    def answer(self) -> None:
        pass

    def refuse(self, error: ServiceBusError) -> None:
        pass  # the lock is gone already


class Call:
    """A call with an answer: the result of `decide`, unless that is Need."""

    __slots__ = (
        "_call",
        "_done",
        "_failed",
        "_result",
        "exclusive",
        "grows",
        "host",
        "pages",
        "size",
    )

    def __init__(
        self,
        host: Host,
        call: Callable[[Engine, Instant, Pages], Any],
        done: Callable[[Any], None],
        failed: Callable[[ServiceBusError], None],
        size: int = 0,
        exclusive: bool = True,
        grows: bool = False,
    ) -> None:
        self.host = host
        self.size = size
        self.exclusive = exclusive
        self.grows = grows
        self.pages: Pages | None = Pages()
        self._call = call
        self._done = done
        self._failed = failed
        self._result: Any = None

    def decide(self, engine: Engine, now: Instant) -> Need | None:
        assert self.pages is not None
        result = self._call(engine, now, self.pages)
        if isinstance(result, Need):
            return result
        self._result = result
        return None

    def answer(self) -> None:
        self._done(self._result)

    def refuse(self, error: ServiceBusError) -> None:
        self._failed(error)


def confirmation(state: Outcome) -> Outcome:
    """What a settlement is confirmed with: its outcome, but never the client's own error, which
    several SDKs take for a failure (wire §5.2)."""
    if isinstance(state, Rejected):
        return Rejected()
    if isinstance(state, Modified):
        return Modified(state.delivery_failed, state.undeliverable_here)
    return state


def bodies_needed(
    queue: Queue, tokens: list[bytes], now: Instant, pages: Pages | None
) -> Need | None:
    """The bodies that must be read before properties of these messages can be changed."""
    bodies = []
    for token in tokens:
        message = queue.locked(token)
        if message is not None and message.raw is None and message.properties is None:
            bodies.append(BodyPage(message.base, message.position, message.length))
    if len(bodies) > 1:
        check_together(sum(page.length for page in bodies))
    wanted = [page for page in bodies if pages is None or page not in pages]
    return Need(tuple(wanted)) if wanted else None


def rewritten(
    queue: Queue, token: bytes, changes: Changes, now: Instant, pages: Pages | None
) -> NewProperties | None:
    """The properties that a message shall have from now on; None where they stay as they are."""
    message = queue.held(token, now)
    if not changes.properties:
        return None
    raw = message.raw
    if raw is None and pages is not None and message.properties is None:
        raw = pages.body(BodyPage(message.base, message.position, message.length))
        if raw is None:
            raise CorruptRow(f"the journal has no body for message {message.number}")
    properties = change_properties(message, raw, changes.properties)
    queue.fragment.toil += properties.values
    queue.check_properties(message, properties)
    return properties


def settle_with(
    queue: Queue,
    token: bytes,
    changes: Changes,
    now: Instant,
    properties: NewProperties | None,
) -> None:
    """Abandon, defer or dead-letter, with the properties as they shall be from now on."""
    if changes.dead_letter:
        queue.dead_letter(token, now, changes.reason, changes.description, properties)
    elif changes.defer:
        queue.defer(token, now, properties)
    else:
        queue.abandon(token, now, properties)
