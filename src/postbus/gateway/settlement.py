"""What clients ask of a fragment by transfers and dispositions: sends and settlements."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Final

from postbus.amqp.deliveries import IncomingDelivery, OutgoingDelivery
from postbus.amqp.frames.outcomes import Accepted, Modified, Outcome, Rejected, Released
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sending import SenderLink
from postbus.broker.engine import Engine
from postbus.broker.index_pages import BodyPage, Need, Pages
from postbus.broker.message import CorruptRow, Message, NewProperties
from postbus.broker.queue import Queue
from postbus.broker.rewrite_bound import check_together
from postbus.errors import MessageLockLost, ServiceBusError
from postbus.gateway.refusals import Refusals
from postbus.messages.envelope import Changes, change_properties
from postbus.model.times import Instant
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.reads import OrderedRequest
from postbus.runtime.requests import Request

ACCEPTED: Final = Accepted()


class TransferOrigin:
    """The link that transfers came on."""

    @abstractmethod
    def answered(self) -> None:
        """A transfer has its outcome."""


class DispositionOrigin:
    """The link that dispositions came on."""

    subqueue: int

    @abstractmethod
    def settled(self, deliveries: list[OutgoingDelivery]) -> None:
        """These deliveries have their outcome."""


class Send(OrderedRequest):
    """One transfer: a message, or a batch that is stored whole or not at all."""

    __slots__ = (
        "_delivery",
        "_link",
        "_messages",
        "_refusals",
        "_sender",
    )

    def __init__(
        self,
        fragment: LoadedFragment,
        messages: list[Message],
        link: ReceiverLink,
        delivery: IncomingDelivery,
        refusals: Refusals,
        sender: TransferOrigin,
    ) -> None:
        super().__init__(fragment, len(delivery.payload), grows=True)
        self._messages = messages
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
        meter = self.fragment.meter
        if meter is not None:
            meter.bytes_in += self.size
        self._sender.answered()

    def refuse(self, error: ServiceBusError) -> None:
        if self.fragment.meter is not None:
            self.fragment.meter.refused(error.condition)
        self._link.settle(self._delivery, self._refusals.rejected(error, self.fragment.name))
        self._sender.answered()


class Settle(Request):
    """A receiver's verdict on messages it holds locks on; answered one by one."""

    __slots__ = (
        "_deliveries",
        "_failures",
        "_link",
        "_receiver",
        "_refusals",
        "_state",
    )

    def __init__(
        self,
        fragment: LoadedFragment,
        link: SenderLink,
        deliveries: list[OutgoingDelivery],
        state: Outcome,
        refusals: Refusals,
        receiver: DispositionOrigin,
    ) -> None:
        super().__init__(fragment)
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
                link.settle(delivery, self._refusals.rejected(error, self.fragment.name))
        self._receiver.settled(self._deliveries)

    def refuse(self, error: ServiceBusError) -> None:
        for delivery in self._deliveries:
            self._link.settle(delivery, self._refusals.rejected(error, self.fragment.name))
        self._receiver.settled(self._deliveries)


def confirmation(state: Outcome) -> Outcome:
    """What a settlement is confirmed with: its outcome, but never the client's own error, which
    several SDKs take for a failure (wire §5.2)."""
    if isinstance(state, Rejected):
        return Rejected()
    if isinstance(state, Modified):
        return Modified(state.delivery_failed, state.undeliverable_here)
    return state


def held_in(queue: Queue, subqueue: int, token: bytes, now: Instant) -> Message:
    """The message under a lock, if it is in this subqueue. A client that may receive from one
    subqueue of an entity may have no right to the others."""
    message = queue.held(token, now)
    if message.subqueue != subqueue:
        raise MessageLockLost()
    return message


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
    queue.shared.toil += properties.values
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
