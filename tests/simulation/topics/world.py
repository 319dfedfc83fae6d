"""A topic with its subscriptions, a queue that may forward, and one that is forwarded to."""

from __future__ import annotations

import random

from postbus.broker.policy import Policy
from postbus.errors import EntityNotFound
from postbus.store.ports.store import Store
from tests.simulation.stage import Stage
from tests.simulation.topics.plan import END, NAMES, ROUTE, TOPIC, Plan, PlanSorter
from tests.simulation.topics.records import Records


class World(Stage):
    """The stage of topics and forwarding."""

    names = NAMES

    def __init__(self, chance: random.Random, on_disk: bool) -> None:
        self.plan = Plan()
        keeping = Policy(dead_letter_on_expiry=True)
        ttl = chance.choice([None, None, 3_000])
        policies = {TOPIC: Policy(default_ttl_ms=ttl), ROUTE: keeping, END: keeping}
        super().__init__(chance, on_disk, policies, self.plan.gone)

    def keep_records(self, store: Store) -> Records:
        return Records(store, self.plan, self.history)

    def set_up(self) -> None:
        topic = self.fragments[TOPIC]
        topic.matcher = PlanSorter(self.plan)
        for each in self.plan.standing():
            topic.subscriptions[each.owner] = f"news/{each.owner}", each.policy

    def delete_route(self) -> None:
        """As `namespace.delete_entity` does it; those that forward there go on trying."""
        fragment = self.fragments.pop(ROUTE)
        self.plan.gone.add(ROUTE)
        fragment.gone = EntityNotFound("route")
        self.runtime.discard(fragment, fragment.gone)
        self.takers = [taker for taker in self.takers if taker.fragment is not fragment]
