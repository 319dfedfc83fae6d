"""Messages for clients without AMQP: send, receive, settle, one call at a time.

A link uses transfers and dispositions; here the same requests reach the same runtime with plain
messages. So an answer comes after its commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from typing import Final
from uuid import UUID

from postbus.broker.engine import Engine
from postbus.broker.index_pages import Pages
from postbus.broker.message import Message
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER
from postbus.errors import (
    SHUTTING_DOWN,
    ConnectionForced,
    EntityDisabled,
    EntityNotFound,
    InvalidOperation,
    MessageNotFound,
    ServerBusy,
    ServiceBusError,
    SessionRequired,
)
from postbus.gateway.settlement import held_in
from postbus.http.long_poll import LongPoll
from postbus.http.partitioned_poll import PartitionedPoll
from postbus.messages.batches import DECODED_PER_TURN
from postbus.messages.envelope import DECODED
from postbus.messages.translation import to_message
from postbus.model.address import Address, SubQueue
from postbus.model.plain_message import PlainMessage, ReceivedMessage
from postbus.model.times import Instant
from postbus.namespace.entities import QueueEntity, TopicEntity
from postbus.namespace.entity import Entity, ReceivableEntity
from postbus.namespace.namespace import Namespace
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.operations import Store, ask
from postbus.runtime.requests import Operation

_SUBQUEUES: Final = {
    SubQueue.MAIN: MAIN,
    SubQueue.DEAD_LETTER: DEAD_LETTER,
    SubQueue.TRANSFER_DEAD_LETTER: TRANSFER_DEAD_LETTER,
}


class LockUse(Enum):
    """What a client does with a lock."""

    COMPLETE = auto()
    ABANDON = auto()
    RENEW = auto()


class UseLock:
    """Settle a locked message, or renew its lock. The client names the message as well, by its
    number or by its id (semantics A §7)."""

    __slots__ = ("reference", "subqueue", "token", "use")

    def __init__(self, subqueue: int, token: bytes, reference: str, use: LockUse) -> None:
        self.subqueue = subqueue
        self.token = token
        self.reference = reference
        self.use = use

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> None:
        queue, token, reference = engine.at(self.subqueue), self.token, self.reference
        message = held_in(queue, self.subqueue, token, now)
        if reference not in (str(message.number), message.message_id):
            raise MessageNotFound(f"The message under this lock is not '{reference[:128]}'.")
        match self.use:
            case LockUse.COMPLETE:
                queue.complete(token, now)
            case LockUse.ABANDON:
                queue.abandon(token, now)
            case LockUse.RENEW:
                queue.renew(token, now)


class Mailbox:
    """The messages of a namespace."""

    def __init__(self, namespace: Namespace, clock: Callable[[], Instant]) -> None:
        self._namespace = namespace
        self._clock = clock
        self._polls: dict[LongPoll, Callable[[], None]] = {}
        """Each with a check that raises when its client may no longer receive."""
        self._stopping = False
        self._last_start = 0
        """Polls of partitioned entities begin with one fragment after the other."""

    def room_for(self, address: Address) -> int:
        """How many bytes a message to this entity may have.

        Raises where no message can be sent, before the message is read.
        """
        entity = self._find(address)
        if address.subqueue is not SubQueue.MAIN or not isinstance(
            entity, QueueEntity | TopicEntity
        ):
            raise InvalidOperation(f"Messages cannot be sent to '{address.path}'.")
        if not entity.policy().sends:
            raise EntityDisabled(entity.path, "Send")
        if all(self._namespace.runtime(each).congested for each in entity.fragments):
            raise ServerBusy("The broker has more to write than it can hold; try again.")
        return entity.message_size_max

    async def send(
        self, address: Address, messages: list[PlainMessage], check: Callable[[], None]
    ) -> None:
        """Store all of the messages or none. `check` raises when the client may no longer send."""
        entity = self._find(address)
        size_max = self._namespace.settings.property_size_max_bytes
        stored: list[Message] = []
        enough = DECODED.units + DECODED_PER_TURN
        for message in messages:
            if DECODED.units > enough:
                await asyncio.sleep(0)  # let other work run
                enough = DECODED.units + DECODED_PER_TURN
            stored.append(to_message(message, size_max))
        size = sum(message.length for message in stored)
        check()  # the body took its time, and so did the pieces
        if entity.partitioned:
            await self._spread(entity, messages, stored, size)
        else:
            await self._ask(entity, entity.only_fragment, Store(stored), size)
        entity.meter.bytes_in += size

    async def _spread(
        self, entity: Entity, messages: list[PlainMessage], stored: list[Message], size: int
    ) -> None:
        """Store messages in a fragment of a partitioned entity. Without a key, another fragment
        gets them where one refuses them for certain."""
        spread = entity.spread
        key = spread.key_of(stored)
        fragment: LoadedFragment | None = spread.choose(key)
        tried = 0
        while fragment is not None:
            tried |= 1 << fragment.index
            try:
                await self._ask(entity, fragment, Store(stored), size)
                return
            except ServiceBusError as error:
                if key is None:
                    fragment = spread.choose_again(fragment, error, tried)
                if key is not None or fragment is None:
                    raise
                # Made anew: the refused decision may have changed the messages.
                size_max = self._namespace.settings.property_size_max_bytes
                stored = [to_message(message, size_max) for message in messages]

    async def receive(
        self,
        address: Address,
        deletes: bool,
        wait_ms: int,
        gone: asyncio.Future[None],
        check: Callable[[], None],
    ) -> ReceivedMessage | None:
        """The next message, locked or removed for good; None where none came in time.

        Also None when `gone` is done: the client has left, and no message was taken for it. `check`
        raises when the client may no longer receive.
        """
        if self._stopping:
            raise ConnectionForced(SHUTTING_DOWN)
        check()  # time has passed since the request came
        entity = self._find(address)
        if not isinstance(entity, ReceivableEntity):
            raise InvalidOperation(
                f"Messages cannot be received from the topic '{address.path}': name a subscription."
            )
        if not entity.description.status.receives:
            raise EntityDisabled(entity.path, "Receive")
        entity.check_not_forwarded(address)
        if entity.needs_session(address.subqueue):
            raise SessionRequired()
        entity.touch(self._clock())
        subqueue = entity.subqueue(_SUBQUEUES[address.subqueue])
        runtimes = [self._namespace.runtime(each) for each in entity.fragments]
        poll: LongPoll
        if entity.partitioned:
            self._last_start += 1
            poll = PartitionedPoll(entity, subqueue, runtimes, deletes, self._last_start)
        else:
            poll = LongPoll(entity.only_fragment, subqueue, runtimes[0], deletes)
        self._polls[poll] = check
        try:
            received = await poll.receive(wait_ms, gone)
        finally:
            del self._polls[poll]
        if received is None:
            entity.meter.empty_receives += 1
        else:
            entity.meter.receives += 1
            entity.meter.bytes_out += poll.size
        return received

    def review(self) -> None:
        """Keys were taken away: end the waits that depend on them."""
        for poll, check in list(self._polls.items()):
            if poll.fragment.gone is None:  # otherwise the deletion is the better reason
                try:
                    check()
                except ServiceBusError as refusal:
                    poll.end(refusal)

    async def complete(self, address: Address, reference: str, token: UUID) -> None:
        """Remove a message that was received under this lock."""
        await self._use_lock(address, reference, token, LockUse.COMPLETE)

    async def unlock(self, address: Address, reference: str, token: UUID) -> None:
        """Give a message back: the delivery has failed."""
        await self._use_lock(address, reference, token, LockUse.ABANDON)

    async def renew(self, address: Address, reference: str, token: UUID) -> None:
        """Extend the lock by the time of a new lock."""
        entity = await self._use_lock(address, reference, token, LockUse.RENEW)
        entity.meter.lock_renewals += 1

    def refused(self, address: Address, error: ServiceBusError) -> None:
        """Count a refusal against the entity, if it exists."""
        entity = self._namespace.at(address)
        if entity is not None:
            entity.meter.refused(error.condition)

    def stop(self) -> None:
        """The broker stops: end every wait, and refuse new ones."""
        self._stopping = True
        for poll in self._polls:
            poll.stop()

    # -- the engine ----------------------------------------------------------------------------

    def _find(self, address: Address) -> Entity:
        entity = self._namespace.at(address)
        if entity is None:
            raise EntityNotFound(address.written)
        return entity

    async def _use_lock(
        self, address: Address, reference: str, token: UUID, use: LockUse
    ) -> Entity:
        entity = self._find(address)
        lock, subqueue = token.bytes_le, entity.subqueue(_SUBQUEUES[address.subqueue])
        operation = UseLock(subqueue, lock, reference, use)
        await self._ask(entity, entity.fragment_of_token(lock), operation)
        return entity

    async def _ask(
        self,
        entity: Entity,
        fragment: LoadedFragment,
        operation: Operation[object],
        size: int = 0,
    ) -> None:
        entity.touch(self._clock())
        runtime = self._namespace.runtime(fragment)
        # Not exclusive: no answer here is put into words from what is in the engine.
        await ask(runtime, fragment, operation, size, exclusive=False, grows=size > 0)
