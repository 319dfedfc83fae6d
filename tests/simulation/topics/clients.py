"""Those who use the topic and the queues beside it: each does one small thing at a time."""

from __future__ import annotations

from postbus.broker import browse
from postbus.broker.destination import NOWHERE, Destination
from postbus.broker.engine import Engine
from postbus.broker.index_pages import Pages
from postbus.broker.message import Message
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN, owner_of, subqueue_of
from postbus.errors import EntityNotFound, OutcomeUnknown, ServiceBusError
from tests.simulation.parts import Part
from tests.simulation.receivers import Receiver
from tests.simulation.scheduler import Scheduler
from tests.simulation.topics.model import TopicModel
from tests.simulation.topics.routes import (
    COLOURS,
    END,
    NAMES,
    ROUTE,
    TOPIC,
    Root,
    Routes,
    Subscription,
)
from tests.simulation.world import World

SUBSCRIPTIONS_MAX = 6
MESSAGES_MAX = 40
NO_ENTITY = 0


class TopicClients(Part):
    """Publishers, receivers and administrators."""

    def __init__(self, world: World, scheduler: Scheduler) -> None:
        super().__init__(world, scheduler)
        self.routes = Routes()
        self.model = TopicModel(world, self.routes)
        self.acknowledged: set[str] = set()
        self.refused: set[str] = set()
        self._owners = 0
        self.habits(
            {
                self.publish: 8,
                self.schedule: 2,
                self.send_to_route: 3,
                self.settle: 25,
                self.receive: 8,
                self.subscribe: 0.7,
                self.unsubscribe: 0.4,
                self.aim_route: 0.5,
                self.change: 0.5,
                self.delete_route: 0.05,
            }
        )
        self.actions[self.publish] += 2

    # -- senders -------------------------------------------------------------------------------

    def publish(self) -> None:
        self._send(TOPIC, self.chance.choice([1, 1, 1, 2, 5]), 0)

    def schedule(self) -> None:
        self._send(TOPIC, 1, self.world.now + self.chance.choice([0, 50, 1_000, 9_000]))

    def send_to_route(self) -> None:
        self._send(ROUTE, self.chance.choice([1, 2]), 0)

    def _send(self, fragment_id: int, count: int, due: int) -> None:
        chance, routes = self.chance, self.routes
        if len(routes.roots) + count > MESSAGES_MAX:
            return
        messages: list[Message] = []
        for _ in range(count):
            name, colour = f"m{len(routes.roots)}", chance.choice(COLOURS)
            body = f"{name}:{colour}:{'.' * chance.randrange(40)}".encode()
            routes.roots[name] = Root(name, colour, body, fragment_id, len(routes.roots))
            messages.append(Message(body, name, None, -1, due))
        names = [message.message_id for message in messages]

        def failed(error: ServiceBusError) -> None:
            if not isinstance(error, OutcomeUnknown) and fragment_id not in routes.deleted:
                self.refused.update(names)

        self.world.ask(
            fragment_id,
            lambda engine, now, _: engine.send(messages, now),
            lambda _: self.acknowledged.update(names),
            failed,
        )

    # -- receivers -----------------------------------------------------------------------------

    @property
    def _receivers(self) -> list[Receiver]:
        return [each for each in self.world.receivers if each.fragment.id in NAMES]

    def receive(self) -> None:
        """Come, grant credit or go."""
        world, chance, receivers = self.world, self.chance, self._receivers
        if len(receivers) > 4 and chance.random() < 0.8:
            receiver = chance.choice(receivers)
            if chance.random() < 0.3:
                world.detach(receiver)
            else:
                receiver.grant(chance.choice([1, 1, 5]))
            return
        fragment_id = chance.choice([TOPIC, TOPIC, TOPIC, *NAMES])
        standing = self.routes.standing()
        if fragment_id not in world.fragments or (fragment_id == TOPIC and not standing):
            return
        owner = chance.choice(standing).owner if fragment_id == TOPIC else 0
        subqueue = subqueue_of(owner, chance.choice([MAIN, MAIN, MAIN, DEAD_LETTER]))
        world.attach(fragment_id, subqueue, chance.random() < 0.2, chance.randint(1, 4))

    def settle(self) -> None:
        deliveries = self.model.deliveries
        if not deliveries:
            return
        fragment_id, subqueue, token = deliveries.pop(
            -self.chance.randint(1, min(4, len(deliveries)))
        )
        verb = self.chance.choice(["complete", "abandon", "dead_letter", "defer", "forget"])
        if verb != "forget":
            self.world.ask(
                fragment_id,
                lambda engine, now, _: getattr(engine.at(subqueue), verb)(token, now),
                lambda _: None,
            )

    def take_deferred(self, fragment_id: int, message: Message) -> None:
        def call(engine: Engine, now: int, pages: Pages) -> object:
            queue, numbers = engine.at(message.subqueue), [message.number]
            return browse.receive_deferred(queue, message.subqueue, numbers, True, 1, now, pages)

        self.world.ask(fragment_id, call)

    # -- administrators ------------------------------------------------------------------------

    def subscribe(self) -> None:
        world, chance = self.world, self.chance
        if len(self.routes.standing()) >= SUBSCRIPTIONS_MAX:
            return
        self._owners += 1
        owner = self._owners
        colours = frozenset(c for c in COLOURS if chance.random() < 0.7)
        made = Subscription(owner, colours, chance.random() < 0.15, chance.random() < 0.3, Policy())
        made.policy = self._policy(made, chance.random() < 0.8)
        self.routes.subscriptions[owner] = made
        fragment = world.fragments[TOPIC]
        fragment.subscriptions[owner] = f"news/{owner}", made.policy

        def add(engine: Engine, *_: object) -> None:
            if owner not in engine.queues:
                engine.add_subscription(owner, f"news/{owner}", made.policy)

        def done(_: object) -> None:
            made.since = len(self.routes.roots)

        world.note(None, f"subscription {owner} for {sorted(colours)}: {made.policy}")
        world.ask(TOPIC, add, done)

    def _policy(self, made: Subscription, dead_letters_failures: bool) -> Policy:
        chance, standing = self.chance, self.routes.standing()
        # More than one way back to the topic makes more copies than a history has time for.
        loops = any({TOPIC, ROUTE} & each.targets for each in standing if each is not made)
        ends = [NOWHERE, NOWHERE, END, END] + ([] if loops or made.twice else [TOPIC, ROUTE])
        forward, forward_dead = chance.choice(ends), chance.choice([NOWHERE, NOWHERE, END])
        policy = Policy(
            lock_ms=chance.choice([200, 5_000]),
            max_delivery_count=chance.choice([1, 3]),
            default_ttl_ms=chance.choice([None, None, 300, 4_000]),
            dead_letter_on_expiry=True,
            forward_to=_to(forward),
            forward_dead_letters_to=_to(forward_dead),
            dead_letter_on_filter_errors=dead_letters_failures,
        )
        made.targets |= {forward, forward_dead} - {NOWHERE}
        return policy

    def unsubscribe(self) -> None:
        world = self.world
        standing = self.routes.standing()
        if not standing:
            return
        gone = self.chance.choice(standing)
        gone.deleted = True
        fragment = world.fragments[TOPIC]
        fragment.subscriptions.pop(gone.owner, None)
        for receiver in self._receivers:
            if owner_of(receiver.subqueue) == gone.owner:
                world.detach(receiver)
        world.note(None, f"subscription {gone.owner} is to go")
        world.ask(TOPIC, lambda e, *_: e.remove_subscription(gone.owner))

    def change(self) -> None:
        """Another policy for a subscription, or for the queue at the end: full, or disabled."""
        chance = self.chance
        standing = self.routes.standing()
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
        target = self.chance.choice([NOWHERE, END, TOPIC, NO_ENTITY])
        if target == TOPIC and self.chance.random() < 0.5:
            target = END
        self.routes.route_targets |= {target} - {NOWHERE, NO_ENTITY}
        policy = Policy(
            forward_to=_to(target), lock_ms=500, max_delivery_count=2, dead_letter_on_expiry=True
        )
        self.set_policy(ROUTE, policy)

    def set_subscription(self, subscription: Subscription, policy: Policy) -> None:
        owner = subscription.owner
        subscription.policy = policy
        self.world.fragments[TOPIC].subscriptions[owner] = f"news/{owner}", policy
        self.update(TOPIC, owner, policy)

    def set_policy(self, fragment_id: int, policy: Policy) -> None:
        world = self.world
        before, world.entities[fragment_id].policy = world.policy_of(fragment_id), policy
        world.made_room = world.made_room or before.size_bytes_max < policy.size_bytes_max
        if fragment_id in world.fragments:
            world.fragments[fragment_id].policy = policy
            self.update(fragment_id, 0, policy)

    def update(self, fragment_id: int, owner: int, policy: Policy) -> None:
        def call(engine: Engine, now: int, _: object) -> None:
            queue = engine.queues.get(owner)
            if queue is not None:
                queue.update(policy, now)

        self.world.note(None, f"{fragment_id}.{owner} is to be {policy}")
        self.world.ask(fragment_id, call)

    def delete_route(self) -> None:
        """As `namespace.delete_entity` does; entities that forward there go on trying."""
        world = self.world
        fragment = world.fragments.pop(ROUTE, None)
        if fragment is not None:
            world.entities[ROUTE].deleted = True
            self.routes.deleted.add(ROUTE)
            fragment.gone = EntityNotFound("route")
            world.runtime_of(fragment).discard(fragment, fragment.gone)
            world.receivers = [each for each in world.receivers if each.fragment is not fragment]


def _to(fragment: int) -> Destination | None:
    return None if fragment == NOWHERE else Destination((fragment,))
