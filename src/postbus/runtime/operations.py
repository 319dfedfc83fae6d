"""Operations that the broker itself asks of a fragment, as data.

An operation has plain fields: no callback, no link, nothing of this process. A later broker can
write it down and send it to the owner of the fragment. What clients ask for is in
`postbus.gateway.operations`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TypeVar

from postbus.broker import forwarding
from postbus.broker.engine import Engine
from postbus.broker.forwarding import ForwardBatch, ForwardResult
from postbus.broker.index_pages import Need, Pages
from postbus.broker.message import Message
from postbus.broker.policy import Policy
from postbus.errors import ServiceBusError
from postbus.model.description import QueueCounts
from postbus.model.times import Instant
from postbus.runtime.engine_cache import counts_of
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.requests import Call, Operation
from postbus.runtime.runtime import Runtime

T = TypeVar("T")


async def ask(
    runtime: Runtime,
    fragment: LoadedFragment,
    operation: Operation[T],
    size: int = 0,
    exclusive: bool = True,
    grows: bool = False,
) -> T:
    """Ask something of a fragment, and wait for the answer, which is durable then."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T) -> None:
        if not future.done():
            future.set_result(result)

    def failed(error: ServiceBusError) -> None:
        if not future.done():
            future.set_exception(error)

    runtime.submit(Call(fragment, operation, done, failed, size, exclusive, grows))
    return await future


# -- the entity --------------------------------------------------------------------------------


class SetPolicy:
    """The description of an entity has changed, and with it what its engine goes by."""

    __slots__ = ("owner", "policy")

    def __init__(self, owner: int, policy: Policy) -> None:
        self.owner = owner
        self.policy = policy

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> None:
        queue = engine.queues.get(self.owner)
        if queue is not None:
            queue.update(self.policy, now)


class AddSubscription:
    """A topic has a new subscription."""

    __slots__ = ("owner", "path", "policy")

    def __init__(self, owner: int, path: str, policy: Policy) -> None:
        self.owner = owner
        self.path = path
        self.policy = policy

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> None:
        # An engine that was loaded a moment ago has the subscription already.
        if self.owner not in engine.queues:
            engine.add_subscription(self.owner, self.path, self.policy)


class RemoveSubscription:
    """A subscription of a topic was deleted."""

    __slots__ = ("owner",)

    def __init__(self, owner: int) -> None:
        self.owner = owner

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> None:
        engine.remove_subscription(self.owner)


class Count:
    """How many messages a queue, topic or subscription has in the fragment."""

    __slots__ = ("owner",)

    def __init__(self, owner: int) -> None:
        self.owner = owner

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> QueueCounts:
        return counts_of(engine.ledger, self.owner)


# -- messages ----------------------------------------------------------------------------------


class Store:
    """Store messages, all of them or none. Returns their sequence numbers."""

    __slots__ = ("messages",)

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> list[int] | Need:
        return engine.send(self.messages, now, pages)


# -- forwarding --------------------------------------------------------------------------------


class Collect:
    """The next messages of an outbox, but for destinations that are passed over. Returns None
    where there are none."""

    __slots__ = ("passed_over", "subqueue")

    def __init__(self, subqueue: int, passed_over: AbstractSet[int]) -> None:
        self.subqueue = subqueue
        self.passed_over = passed_over

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> ForwardBatch | Need | None:
        return forwarding.collect(engine, self.subqueue, now, pages, self.passed_over)


class Ship:
    """Take messages that come from the outbox of another fragment."""

    __slots__ = ("messages", "outbox")

    def __init__(self, outbox: int, messages: Sequence[tuple[Message, bytes]]) -> None:
        self.outbox = outbox
        self.messages = messages

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> ForwardResult | Need:
        return forwarding.accept(engine, self.outbox, self.messages, now, pages)


class ClearOutbox:
    """What became of a forward batch, for the outbox that it came from.

    `arrived` are the messages that the destination has. A message that it refused for good is
    `refused`. Where it had no room, `full_at` is the first message that waits for it.
    """

    __slots__ = ("arrived", "destination", "full_at", "refusal", "refused", "subqueue")

    def __init__(
        self,
        subqueue: int,
        destination: int,
        arrived: Sequence[int],
        refusal: ServiceBusError | None,
        refused: int | None,
        full_at: int | None,
    ) -> None:
        self.subqueue = subqueue
        self.destination = destination
        self.arrived = arrived
        self.refusal = refusal
        self.refused = refused
        self.full_at = full_at

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> Need | None:
        subqueue, refusal = self.subqueue, self.refusal
        need = forwarding.shipped(engine, subqueue, self.arrived, pages)
        if need is None and self.refused is not None and refusal is not None:
            need = forwarding.returned(engine, subqueue, self.refused, refusal, pages)
        if need is None and self.full_at is not None:
            forwarding.held_up(engine, subqueue, self.destination, self.full_at)
        elif need is None and refusal is None:
            forwarding.has_room(engine, subqueue, self.destination)
        return need
