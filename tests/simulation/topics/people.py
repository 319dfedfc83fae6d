"""Those who use the topic and the queues: each does one small thing at a time."""

from __future__ import annotations

from collections.abc import Callable

from postbus.broker import browse
from postbus.broker.engine import Engine
from postbus.broker.index_pages import Pages
from postbus.broker.message import Message
from postbus.broker.policy import NOWHERE, Policy
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN, owner_of, subqueue_of
from postbus.errors import OutcomeUnknown, ServiceBusError
from postbus.runtime.receivers import OutgoingMessage
from tests.simulation.history import Violation
from tests.simulation.stage import Taker
from tests.simulation.topics.plan import (
    COLOURS,
    END,
    ROUTE,
    TOPIC,
    Root,
    Subscription,
)
from tests.simulation.topics.repairs import send_again
from tests.simulation.topics.world import World

SUBSCRIPTIONS_MAX = 6
MESSAGES_MAX = 40
GONE = 0


class People:
    """Does one random thing after the other."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = chance = world.chance
        self.acknowledged: set[str] = set()
        self.refused: set[str] = set()
        self._held: list[tuple[int, int, bytes]] = []
        self._owners = 0
        world.on_delivery = self.delivered
        usual: dict[Callable[[], None], float] = {
            self.publish: 8,
            self.schedule: 2,
            self.send_to_route: 3,
            self.settle: 25,
            self.take: 8,
            self.subscribe: 0.7,
            self.unsubscribe: 0.4,
            self.aim_route: 0.5,
            self.change: 0.5,
            self.delete_route: 0.05,
            self.repair: 20,
        }
        self._weights = {act: often * chance.choice([0, 1, 1, 4]) for act, often in usual.items()}
        self._weights[self.publish] += 2
        for _ in range(chance.randint(1, SUBSCRIPTIONS_MAX)):
            self.subscribe()

    def act(self) -> None:
        self._chance.choices(list(self._weights), list(self._weights.values()))[0]()

    # -- senders -------------------------------------------------------------------------------

    def publish(self) -> None:
        self._send(TOPIC, self._chance.choice([1, 1, 1, 2, 5]), 0)

    def schedule(self) -> None:
        self._send(TOPIC, 1, self._world.now + self._chance.choice([0, 50, 1_000, 9_000]))

    def send_to_route(self) -> None:
        self._send(ROUTE, self._chance.choice([1, 2]), 0)

    def _send(self, fragment_id: int, count: int, due: int) -> None:
        chance, plan = self._chance, self._world.plan
        if len(plan.roots) + count > MESSAGES_MAX:
            return
        messages: list[Message] = []
        for _ in range(count):
            name, colour = f"m{len(plan.roots)}", chance.choice(COLOURS)
            body = f"{name}:{colour}:{'.' * chance.randrange(40)}".encode()
            plan.roots[name] = Root(name, colour, body, fragment_id, len(plan.roots))
            messages.append(Message(body, name, None, -1, due))
        names = [message.message_id for message in messages]

        def failed(error: ServiceBusError) -> None:
            if not isinstance(error, OutcomeUnknown) and fragment_id not in plan.gone:
                self.refused.update(names)

        self._world.ask(
            fragment_id,
            lambda engine, now, _: engine.send(messages, now),
            lambda _: self.acknowledged.update(names),
            failed,
        )

    # -- receivers -----------------------------------------------------------------------------

    def take(self) -> None:
        world, chance = self._world, self._chance
        if len(world.takers) > 4 and chance.random() < 0.8:
            taker = chance.choice(world.takers)
            if chance.random() < 0.3:
                world.detach(taker)
            else:
                world.refresh(taker, chance.choice([1, 1, 5]))
            return
        fragment_id = chance.choice([TOPIC, TOPIC, TOPIC, *world.fragments])
        if fragment_id not in world.fragments:
            return
        owner = 0
        if fragment_id == TOPIC:
            standing = world.plan.standing()
            if not standing:
                return
            owner = chance.choice(standing).owner
        subqueue = subqueue_of(owner, chance.choice([MAIN, MAIN, MAIN, DEAD_LETTER]))
        world.attach(
            world.fragments[fragment_id], subqueue, chance.random() < 0.2, chance.randint(1, 4)
        )

    def delivered(self, taker: Taker, outgoing: OutgoingMessage) -> None:
        name = outgoing.message.message_id
        if outgoing.raw != self._world.plan.root_of(name).body:
            raise Violation("no body is wrong or missing", name, f"{outgoing.raw!r}")
        if outgoing.token is not None:
            self._held.append((taker.fragment.id, taker.subqueue, outgoing.token))

    def settle(self) -> None:
        if not self._held:
            return
        fragment_id, subqueue, token = self._held.pop(
            -self._chance.randint(1, min(4, len(self._held)))
        )
        verb = self._chance.choice(["complete", "abandon", "dead_letter", "defer", "forget"])
        if verb != "forget":
            self._world.ask(
                fragment_id,
                lambda engine, now, _: getattr(engine.at(subqueue), verb)(token, now),
                lambda _: None,
            )

    def take_deferred(self, fragment_id: int, message: Message) -> None:
        def call(engine: Engine, now: int, pages: Pages) -> object:
            queue, numbers = engine.at(message.subqueue), [message.number]
            return browse.receive_deferred(queue, message.subqueue, numbers, True, 1, now, pages)

        self._world.ask(fragment_id, call, lambda _: None)

    def repair(self) -> None:
        send_again(self._world)

    # -- administrators ------------------------------------------------------------------------

    def subscribe(self) -> None:
        world, chance = self._world, self._chance
        if len(world.plan.standing()) >= SUBSCRIPTIONS_MAX:
            return
        self._owners += 1
        owner = self._owners
        colours = frozenset(c for c in COLOURS if chance.random() < 0.7)
        made = Subscription(owner, colours, chance.random() < 0.15, chance.random() < 0.3, Policy())
        made.policy = self._policy(made, chance.random() < 0.8)
        world.plan.subscriptions[owner] = made
        fragment = world.fragments[TOPIC]
        fragment.subscriptions[owner] = f"news/{owner}", made.policy

        def add(engine: Engine, *_: object) -> None:
            if owner not in engine.queues:
                engine.add_subscription(owner, f"news/{owner}", made.policy)

        def done(_: object) -> None:
            made.since = len(world.plan.roots)

        world.note(None, f"subscription {owner} for {sorted(colours)}: {made.policy}")
        world.ask(TOPIC, add, done)

    def _policy(self, made: Subscription, dead_letters_failures: bool) -> Policy:
        chance, standing = self._chance, self._world.plan.standing()
        # More than one way back to the topic makes more copies than a history has time for.
        loops = any({TOPIC, ROUTE} & each.targets for each in standing if each is not made)
        ends = [NOWHERE, NOWHERE, END, END] + ([] if loops or made.twice else [TOPIC, ROUTE])
        policy = Policy(
            lock_ms=chance.choice([200, 5_000]),
            max_delivery_count=chance.choice([1, 3]),
            default_ttl_ms=chance.choice([None, None, 300, 4_000]),
            dead_letter_on_expiry=True,
            forward_to=chance.choice(ends),
            forward_dead_letters_to=chance.choice([NOWHERE, NOWHERE, END]),
            dead_letter_on_filter_errors=dead_letters_failures,
        )
        made.targets |= {policy.forward_to, policy.forward_dead_letters_to} - {NOWHERE}
        return policy

    def unsubscribe(self) -> None:
        world = self._world
        standing = world.plan.standing()
        if not standing:
            return
        gone = self._chance.choice(standing)
        gone.deleted = True
        fragment = world.fragments[TOPIC]
        fragment.subscriptions.pop(gone.owner, None)
        for taker in [each for each in world.takers if owner_of(each.subqueue) == gone.owner]:
            world.detach(taker)
        world.note(None, f"subscription {gone.owner} is to go")
        world.ask(TOPIC, lambda e, *_: e.remove_subscription(gone.owner), lambda _: None)

    def change(self) -> None:
        """Another policy for a subscription, or for the queue at the end: full, or disabled."""
        world, chance = self._world, self._chance
        standing = world.plan.standing()
        if standing and chance.random() < 0.6:
            chosen = chance.choice(standing)
            policy = self._policy(chosen, chosen.policy.dead_letter_on_filter_errors)
            self.set_subscription(chosen, policy)
            return
        self.set_policy(
            END,
            Policy(
                size_bytes_max=chance.choice([200, 1 << 20, 1 << 20]),
                sends=chance.random() < 0.8,
                message_size_max=chance.choice([30, 1_000]),
                dead_letter_on_expiry=True,
            ),
        )

    def aim_route(self) -> None:
        """The queue begins to forward, or stops, whatever it holds."""
        target = self._chance.choice([NOWHERE, END, TOPIC, GONE])
        if target == TOPIC and self._chance.random() < 0.5:
            target = END
        self._world.plan.route_targets |= {target} - {NOWHERE, GONE}
        policy = Policy(
            forward_to=target, lock_ms=500, max_delivery_count=2, dead_letter_on_expiry=True
        )
        self.set_policy(ROUTE, policy)

    def set_subscription(self, subscription: Subscription, policy: Policy) -> None:
        owner = subscription.owner
        subscription.policy = policy
        self._world.fragments[TOPIC].subscriptions[owner] = f"news/{owner}", policy
        self.update(TOPIC, owner, policy)

    def set_policy(self, fragment_id: int, policy: Policy) -> None:
        world = self._world
        world.policies[fragment_id] = policy
        if fragment_id in world.fragments:
            world.fragments[fragment_id].policy = policy
            self.update(fragment_id, 0, policy)

    def update(self, fragment_id: int, owner: int, policy: Policy) -> None:
        def call(engine: Engine, now: int, _: object) -> None:
            queue = engine.queues.get(owner)
            if queue is not None:
                queue.update(policy, now)

        self._world.note(None, f"{fragment_id}.{owner} is to be {policy}")
        self._world.ask(fragment_id, call, lambda _: None)

    def delete_route(self) -> None:
        if ROUTE in self._world.fragments:
            self._world.delete_route()
