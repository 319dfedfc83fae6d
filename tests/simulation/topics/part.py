"""A topic with its subscriptions, a queue that may forward, and a queue that is forwarded to."""

from __future__ import annotations

from postbus.broker.message import DEFERRED
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER, subqueue_of
from tests.simulation.replay import all_rows
from tests.simulation.scheduler import Scheduler
from tests.simulation.topics.checkers import TopicChecker
from tests.simulation.topics.clients import SUBSCRIPTIONS_MAX, TopicClients
from tests.simulation.topics.routes import END, NAMES, ROUTE, TOPIC, RoutesMatcher
from tests.simulation.world import Entity, World

_CREDIT = 1_000_000


class Topics(TopicClients):
    """Topics and forwarding."""

    def __init__(self, world: World, scheduler: Scheduler) -> None:
        super().__init__(world, scheduler)
        keeping = Policy(dead_letter_on_expiry=True)
        ttl = self.chance.choice([None, None, 3_000])
        policies = {TOPIC: Policy(default_ttl_ms=ttl), ROUTE: keeping, END: keeping}
        for fragment_id, policy in policies.items():
            world.add(Entity(fragment_id, NAMES[fragment_id], policy, self.model))
        self._checker = TopicChecker(self)
        # Copies share a body, which is copied forward for the first and replaced for the others.
        self.steps = {world.trim: self.chance.choice([0.5, 2, 4])}

    @property
    def tries_again(self) -> bool:  # type: ignore[override]
        """A forwarder that met a deleted entity tries again, and finds that there is none."""
        return bool(self.routes.deleted)

    def started(self) -> None:
        topic = self.world.fragments[TOPIC]
        topic.matcher = RoutesMatcher(self.routes)
        for each in self.routes.standing():
            topic.subscriptions[each.owner] = f"news/{each.owner}", each.policy

    def begin(self) -> None:
        for _ in range(self.chance.randint(1, SUBSCRIPTIONS_MAX)):
            self.subscribe()

    def check(self) -> None:
        self._checker.at_rest()

    # -- the end ---------------------------------------------------------------------------------

    def open_up(self) -> None:
        plain = Policy(dead_letter_on_expiry=True)
        for subscription in self.routes.standing():
            keeps = subscription.policy.dead_letter_on_filter_errors
            self.set_subscription(subscription, plain._replace(dead_letter_on_filter_errors=keeps))
        for fragment_id in self._fragment_ids():
            self.set_policy(fragment_id, plain)

    def offer(self) -> None:
        owners = {TOPIC: [each.owner for each in self.routes.standing()]}
        for fragment_id in self._fragment_ids():
            self.world.attach(fragment_id, TRANSFER_DEAD_LETTER, True, _CREDIT)
            for owner in owners.get(fragment_id, [0]):
                for kind in (MAIN, DEAD_LETTER):
                    self.world.attach(fragment_id, subqueue_of(owner, kind), True, _CREDIT)

    def take_out(self) -> None:
        self.scheduler.rest()
        for fragment_id in self._fragment_ids():
            for message in all_rows(self.world, fragment_id):
                if message.lane == DEFERRED:
                    self.take_deferred(fragment_id, message)

    def _fragment_ids(self) -> list[int]:
        return [fragment_id for fragment_id in NAMES if fragment_id in self.world.fragments]
