"""A receiver with credit, waiting for messages: peek-lock, or receive and delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postbus.broker.message import Message
from postbus.broker.records import decode
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.receivers import OutgoingMessage
from tests.simulation.history import Violation
from tests.simulation.promises import FIRST, ORDER

if TYPE_CHECKING:
    from tests.simulation.world import World


class Receiver:
    """One link. After it is detached, it gives back what was on its way to it."""

    session_id: str | None = None

    def __init__(
        self, world: World, fragment: LoadedFragment, subqueue: int, deletes: bool, holder: int
    ) -> None:
        self._world = world
        self._model = world.models[fragment.id]
        self.fragment = fragment
        self.subqueue = subqueue
        self.deletes = deletes
        self.holder = holder
        self.draining = False
        self.attached = True
        self.credit = 0
        self.reserved = 0
        self._coming: list[tuple[OutgoingMessage, int]] = []
        """What it was promised, in order, each with the offset of its newest record."""

    def attach(self, credit: int) -> None:
        self.credit = credit
        self.fragment.receivers_of(self.subqueue).join(self)
        self._count()
        self.wake()

    def detach(self) -> None:
        self.attached = False
        self.fragment.receivers_of(self.subqueue).leave(self)
        self._count()

    def _count(self) -> None:
        if self.fragment.engine is not None:
            members = self.fragment.receivers_of(self.subqueue).members
            self.fragment.engine.set_receivers(self.subqueue, len(members))

    def grant(self, credit: int) -> None:
        self.credit += credit
        self.wake()

    def wake(self) -> None:
        self.fragment.receivers_of(self.subqueue).wants(self)
        self._world.runtime_of(self.fragment).wake(self.fragment)

    def engine_lost(self) -> None:
        """What was reserved will not come; a client would attach again."""
        self.reserved = 0
        self._coming = []
        self.fragment.receivers_of(self.subqueue).wants(self)

    # -- what the broker asks --------------------------------------------------------------------

    def capacity(self) -> int:
        self._model.absorb(self.fragment)
        return max(0, self.credit - self.reserved)

    def reserve(self, message: Message, raw: bytes) -> OutgoingMessage:
        self.reserved += 1
        self._model.taken(self, message)
        outgoing = OutgoingMessage(message, raw, (b"%d" % message.delivery_count,))
        self._coming.append((outgoing, self._newest_record(message)))
        return outgoing

    def deliver(self, messages: list[OutgoingMessage]) -> None:
        self.reserved -= len(messages)
        for outgoing in messages:
            if self.attached:
                self.credit -= 1
                self._check(outgoing)
                self._model.delivered(self, outgoing)
            else:
                self._model.give_back(self, outgoing)

    def _newest_record(self, message: Message) -> int:
        """The offset of the newest record of a message, by the bytes that are on their way to the
        store; -1 if it has no record among them."""
        engine = self.fragment.engine
        assert engine is not None
        commits = self._world.runtime_of(self.fragment)._commits
        batches = [
            (written.part.base, written.records)
            for commit in commits
            for written in commit.written
            if written.engine is engine
        ]
        newest = -1
        for base, batch in [*batches, (engine.ledger.head, engine.ledger.pending)]:
            for offset, data in enumerate(batch, base):
                after = decode(data).message
                if (after.subqueue, after.number) == (message.subqueue, message.number):
                    newest = offset
        return newest

    def _check(self, outgoing: OutgoingMessage) -> None:
        """The store has all that happened to a message that is shown, its removal too if it is
        shown without a lock. Messages come in the order in which they were taken."""
        name = outgoing.message.message_id
        promised, newest = self._coming.pop(0)
        if promised is not outgoing:
            raise Violation(ORDER, name, f"shown before {promised.message.message_id}")
        durable = self._world.durable_heads.get(self.fragment.id, 0)
        if newest >= durable:
            raise Violation(FIRST, name, f"shown with record {newest}, durable below {durable}")

    def drained(self) -> None:
        self.credit = 0
        self.draining = False


def shown_count(outgoing: OutgoingMessage) -> int:
    """The delivery count that the receiver is told."""
    assert outgoing.payload is not None
    return int(outgoing.payload[0])
