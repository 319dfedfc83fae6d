"""Topics and queues on one store, turn by turn, with every step of a forwarding in hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from postbus.broker import chores, forwarding
from postbus.broker.forwarding import ForwardBatch, ForwardResult, outbox_id
from postbus.broker.index_pages import Pages
from postbus.broker.message import ACTIVE, OUTBOX, Message
from postbus.broker.policy import Policy
from postbus.broker.queue import Queue
from postbus.broker.subqueue_numbers import MAIN, subqueue_of
from postbus.broker.topic import Copy, Sorted, fan_out
from postbus.errors import ServiceBusError
from postbus.store.ports.store import Store
from tests.support.engine import Engine

Rule = Callable[[Message], Sequence[Copy]]


class Sorter:
    """Rules by owner; a plain copy for each subscription that has none."""

    cost = 1

    def __init__(self) -> None:
        self.rules: dict[int, Rule | None] = {}

    def copies(self, message: Message, raw: bytes, after: int = 0) -> Sorted:
        found: list[Copy] = []
        for owner, rule in sorted(self.rules.items()):
            found += [Copy(owner)] if rule is None else rule(message)
        return Sorted(found, True)


class Place(Engine):
    """One entity with a fragment of its own: a queue, or a topic when it has a sorter."""

    def __init__(
        self,
        store: Store | None = None,
        fragment: int = 7,
        policy: Policy | None = None,
        matcher: Sorter | None = None,
        checkpoint_every: int = 0,
    ) -> None:
        self.matcher = matcher
        self.policies: dict[int, Policy] = {}
        self.name = f"place{fragment}"
        super().__init__(policy, None, store, checkpoint_every, fragment)

    def _load(self) -> None:
        super()._load()
        if self.matcher is not None:
            subscriptions = {o: (f"{self.name}/{o}", p) for o, p in self.policies.items()}
            self.engine.become_topic(subscriptions, self.matcher)

    # -- a topic -----------------------------------------------------------------------------

    def subscribe(self, owner: int, policy: Policy | None = None, rule: Rule | None = None) -> None:
        assert self.matcher is not None
        made = self.policies[owner] = policy or Policy()
        self.matcher.rules[owner] = rule
        self.turn(lambda: self.engine.add_subscription(owner, f"{self.name}/{owner}", made))

    def unsubscribe(self, owner: int) -> None:
        assert self.matcher is not None
        del self.policies[owner], self.matcher.rules[owner]
        self.turn(lambda: self.engine.remove_subscription(owner))

    def publish(self, *names: str, ttl: int = -1, scheduled_at: int = 0) -> list[int]:
        messages = [
            Message(f"{name}:body".encode(), name, None, ttl, scheduled_at) for name in names
        ]
        return self.send_messages(*messages)

    def spread_slice(self) -> bool:
        """One slice of what is kept; False when there is none."""
        topic = self.engine.topic
        if topic is None or not topic.behind:
            return False
        self.paged(lambda pages: fan_out(topic, self.queue, pages))
        return True

    def spread(self) -> None:
        for _ in range(1_000):
            if not self.spread_slice():
                return
        raise AssertionError("a fan-out without end")

    def purge_slice(self) -> bool:
        if not self.engine.removed:
            return False
        owner = next(iter(self.engine.removed))
        self.paged(lambda pages: chores.purge(self.engine, owner, pages))
        return True

    # -- what is there -----------------------------------------------------------------------

    def at(self, owner: int) -> Queue:
        return self.engine.queues[owner]

    def rows(self, owner: int = 0, kind: int = MAIN, lane: int = ACTIVE) -> list[Message]:
        subqueue = subqueue_of(owner, kind)
        stored = self.store.index.load_lane(self.fragment, subqueue, lane, 0, 100_000)
        found, _ = self.queue.ledger.delta.over_lane(stored, subqueue, lane, 0, 100_000)
        return found

    def names(self, owner: int = 0, kind: int = MAIN, lane: int = ACTIVE) -> list[str]:
        return [message.message_id for message in self.rows(owner, kind, lane)]

    def body(self, message: Message) -> bytes | None:
        return self.store.read_slice(self.fragment, message.base, message.position, message.length)

    # -- forwarding --------------------------------------------------------------------------

    def update(self, policy: Policy, owner: int = 0) -> None:
        if owner:
            self.policies[owner] = policy
        else:
            self.policy = policy
        self.turn(lambda: self.at(owner).update(policy, self.now))

    def divert(self, owner: int = 0) -> int:
        """Send off what was there before; returns in how many slices."""
        queue = self.at(owner)
        for slices in range(1_000):
            subqueue = forwarding.diverts(queue)
            if subqueue is None:
                return slices
            self.paged(partial(forwarding.divert, queue, subqueue, self.now))
        raise AssertionError("a divert without end")

    def collect(self, subqueue: int = MAIN) -> ForwardBatch | None:
        return self.collect_but(subqueue)

    def collect_but(self, subqueue: int, *passed_over: int) -> ForwardBatch | None:
        """What there is next for other destinations than these, however far one has to look."""
        for _ in range(1_000):
            found: ForwardBatch | None = self.paged(
                lambda pages: forwarding.collect(
                    self.engine, subqueue, self.now, pages, passed_over
                )
            )
            if found is None or found.messages:
                return found
        raise AssertionError("a search without end")

    def accept(self, source: Place, subqueue: int, shipment: ForwardBatch) -> ForwardResult:
        """Decided, and not committed yet."""
        origin = outbox_id(source.fragment, subqueue)
        pages = Pages()
        for _ in range(10):
            found = forwarding.accept(self.engine, origin, shipment.messages, self.now, pages)
            if isinstance(found, ForwardResult):
                return found
            self.load(found, pages)
        raise AssertionError("the destination never has enough")

    def settle(self, subqueue: int, shipment: ForwardBatch, receipt: ForwardResult) -> None:
        numbers = [message.number for message, _ in shipment.messages[: receipt.arrived]]
        self.paged(lambda pages: forwarding.shipped(self.engine, subqueue, numbers, pages))
        refusal = receipt.refusal
        if refusal is not None:
            self.return_one(subqueue, shipment.messages[receipt.arrived][0].number, refusal)

    def return_one(self, subqueue: int, number: int, refusal: ServiceBusError) -> None:
        self.paged(lambda pages: forwarding.returned(self.engine, subqueue, number, refusal, pages))

    def ship_to(self, destination: Place, subqueue: int = MAIN) -> int:
        """Empty an outbox; returns in how many shipments."""
        for shipments in range(1_000):
            shipment = self.collect(subqueue)
            if shipment is None:
                return shipments
            receipt = destination.accept(self, subqueue, shipment)
            destination.commit()
            self.settle(subqueue, shipment, receipt)
        raise AssertionError("an outbox that never empties")


def outbox(place: Place, owner: int = 0, kind: int = MAIN) -> list[str]:
    return place.names(owner, kind, OUTBOX)
