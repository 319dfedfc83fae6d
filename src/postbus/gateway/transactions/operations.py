"""What is asked of a fragment in a transaction, as data (semantics B §7).

An enlistment is checked and noted when it comes; the fragment does it when the transaction is
discharged.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

from postbus.amqp.codec import decode
from postbus.broker.engine import Engine
from postbus.broker.index_pages import Need, Pages
from postbus.broker.message import Message, NewProperties
from postbus.broker.send_via import send_through
from postbus.broker.transaction import Settlement, Transaction
from postbus.errors import ServiceBusError
from postbus.gateway.operations import SessionClaim
from postbus.messages.envelope import change_properties, text_keys
from postbus.model.times import Instant


class Enlistment(Protocol):
    """An operation that becomes part of a transaction."""

    def enlist(self, work: Transaction, engine: Engine, now: Instant, pages: Pages) -> Any:
        """Check it and note it. Returns the result, or what must be read before."""


class EnlistSend:
    """Send messages to the entity of the fragment, or through it to another fragment."""

    __slots__ = ("destination", "messages")

    def __init__(self, messages: list[Message], destination: int | None) -> None:
        self.messages = messages
        self.destination = destination

    def enlist(self, work: Transaction, engine: Engine, now: Instant, pages: Pages) -> None:
        if self.destination is None:
            work.send(engine, self.messages)
        else:
            work.post(engine, self.destination, self.messages)


class EnlistSchedule:
    """Schedule messages. Returns their sequence numbers."""

    __slots__ = ("messages",)

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages

    def enlist(self, work: Transaction, engine: Engine, now: Instant, pages: Pages) -> list[int]:
        return work.schedule(engine, self.messages)


class EnlistCancel:
    """Remove scheduled messages before they are due, all of them or none."""

    __slots__ = ("numbers",)

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers

    def enlist(self, work: Transaction, engine: Engine, now: Instant, pages: Pages) -> Need | None:
        return work.cancel(engine, self.numbers, pages)


class EnlistDispose:
    """Settle locked messages, all of them or none."""

    __slots__ = ("session", "settlements", "subqueue")

    def __init__(
        self, subqueue: int, settlements: list[Settlement], session: SessionClaim | None
    ) -> None:
        self.subqueue = subqueue
        self.settlements = settlements
        self.session = session
        """The session that all of the messages must be of."""

    def enlist(self, work: Transaction, engine: Engine, now: Instant, pages: Pages) -> None:
        if self.session is not None:
            tokens = [each.token for each in self.settlements]
            self.session.check_tokens(engine.at(self.subqueue), tokens, now)
        work.settle(engine, self.settlements, now)


class EnlistEach:
    """Settle locked messages, each by itself. Returns the refusals, by lock token."""

    __slots__ = ("settlements",)

    def __init__(self, settlements: list[Settlement]) -> None:
        self.settlements = settlements

    def enlist(
        self, work: Transaction, engine: Engine, now: Instant, pages: Pages
    ) -> dict[bytes, ServiceBusError]:
        failures: dict[bytes, ServiceBusError] = {}
        for settlement in self.settlements:
            try:
                work.settle(engine, [settlement], now)
            except ServiceBusError as error:
                failures[settlement.token] = error
        return failures


class PropertyChanges:
    """Properties that a settlement changes. Kept as bytes for as long as the transaction takes:
    as objects they are ten times as large."""

    __slots__ = ("encoded",)

    def __init__(self, encoded: bytes) -> None:
        self.encoded = encoded

    def __call__(self, message: Message, raw: bytes | None) -> NewProperties:
        properties, _ = decode(self.encoded, 0)
        return change_properties(message, raw, text_keys(cast("dict[Any, Any]", properties)))


# -- of a fragment -----------------------------------------------------------------------------


class Enlist:
    """Make an enlistment part of a transaction. What the transaction has noted so far is `work`,
    which lives beside the engine of its fragment."""

    __slots__ = ("enlistment", "work")

    def __init__(self, work: Transaction, enlistment: Enlistment) -> None:
        self.work = work
        self.enlistment = enlistment

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> Any:
        return self.enlistment.enlist(self.work, engine, now, pages)


class Commit:
    """Do all that a transaction has noted. A refusal rolls it back."""

    __slots__ = ("work",)

    def __init__(self, work: Transaction) -> None:
        self.work = work

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> Need | None:
        try:
            return self.work.commit(engine, now, pages)
        except ServiceBusError:
            self.work.roll_back(engine)
            raise


class RollBack:
    """Do nothing of what a transaction has noted."""

    __slots__ = ("work",)

    def __init__(self, work: Transaction) -> None:
        self.work = work

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> None:
        self.work.roll_back(engine)


class SendThrough:
    """Send messages through this fragment to another one, outside of any transaction."""

    __slots__ = ("destination", "messages")

    def __init__(self, messages: list[Message], destination: int) -> None:
        self.messages = messages
        self.destination = destination

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> None:
        send_through(engine, self.destination, self.messages, now)
