"""kill -9 under load, with a topic: whoever was to get a copy gets it, once, whatever dies when.

feeder (queue) --forwards--> topic --+-- "all"
                                     +-- "some" (a filter, and an action)
                                     +-- "onward" --forwards--> collector (queue)
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from azure.servicebus import ServiceBusMessage

from tests.e2e.churn import Churn, ChurnedSubscription
from tests.e2e.storm import KILLS, Storm, seed_of_storm
from tests.support.administration import Administration
from tests.support.bus import Bus, Subscription
from tests.support.server import Server
from tests.support.waiting import until


class Delta:
    """The entities of the picture above, and who gets what."""

    def __init__(self, administration: Administration) -> None:
        self.collector = administration.make_queue(max_delivery_count=1000)
        self.topic = administration.make_topic()
        self.feeder = administration.make_queue(forward_to=self.topic)
        self.all = administration.make_subscription(self.topic, max_delivery_count=1000)
        self.some = administration.make_subscription(
            self.topic, ("sys.Label = 'even'", "SET Seen = TRUE"), max_delivery_count=1000
        )
        self.onward = administration.make_subscription(self.topic, forward_to=self.collector)

    def copies(self, name: str) -> list[str]:
        ends = ["all", "collector"]
        if is_even(name):
            ends.append("some")
        return [f"{name}@{end}" for end in ends]

    def end_of(self, source: str | Subscription) -> str:
        return {self.all: "all", self.some: "some", self.collector: "collector"}[source]

    async def nothing_under_way(self, administration: Administration) -> bool:
        client = administration.client
        waiting = [
            client.get_topic_runtime_properties(self.topic).scheduled_message_count,
            administration.counts(self.feeder).total_message_count,
            administration.counts(self.onward).total_message_count,
        ]
        return not any(waiting)


def is_even(name: str) -> bool:
    return int(name.removeprefix("m")) % 2 == 0


class TopicStorm(Storm):
    """Sends to a topic, in each way that there is; every copy is an entry of the ledger."""

    soon = True

    def __init__(
        self, server: Server, open_bus: Callable[..., Bus], seed: int, delta: Delta
    ) -> None:
        super().__init__(
            server,
            open_bus,
            seed,
            destinations=[delta.topic, delta.topic, delta.feeder],
            sources=[delta.all, delta.some, delta.collector],
        )
        self.delta = delta

    def copies(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(copy for name in names for copy in self.delta.copies(name))

    def copy_at(self, source: str | Subscription, name: str) -> str:
        return f"{name}@{self.delta.end_of(source)}"

    def message(self, name: str) -> ServiceBusMessage:
        return ServiceBusMessage(name, subject="even" if is_even(name) else "odd")


@pytest.mark.parametrize("kills", KILLS)
async def test_every_copy_of_what_was_acknowledged_is_there_once(
    server: Server, open_bus: Callable[..., Bus], kills: int
) -> None:
    """R-SETTLE-01, R-SETTLE-10: fan-out in one commit, forwarding exactly once."""
    administration = Administration(server.connection_string)
    delta = Delta(administration)
    storm = TopicStorm(server, open_bus, seed_of_storm(), delta)
    await storm.rage(kills, Churn(storm, ChurnedSubscription(administration.make_topic())))
    await until("all have arrived", lambda: delta.nothing_under_way(administration), within_s=60.0)
    found = await storm.inventory()
    for subqueue in (delta.feeder, delta.onward):
        assert administration.counts(subqueue).dead_letter_message_count == 0
    administration.close()
    storm.check(found, kills)
