"""The SDK's own administration client, told to use plain HTTP.

azure-servicebus 7.15 parses UseDevelopmentEmulator here and then ignores it: the base URL is always
https. Setting the one private attribute below is the way around it (wire §9.1).
"""

from __future__ import annotations

import itertools
import os
from datetime import timedelta
from typing import Any

from azure.servicebus.management import (
    QueueRuntimeProperties,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
    SubscriptionRuntimeProperties,
)

from tests.support.bus import Subscription, Topic

_names = itertools.count(1)


def administration_client(connection_string: str, **options: Any) -> ServiceBusAdministrationClient:
    client = ServiceBusAdministrationClient.from_connection_string(connection_string, **options)
    client._impl._client._base_url = "http://{endpoint}"
    return client


class Administration:
    """Queues and topics for tests, each with a name of its own."""

    def __init__(self, connection_string: str) -> None:
        self.client = administration_client(connection_string, retry_total=0)
        self.partitioned = False
        """Are queues and topics partitioned where nothing is said?"""

    def make_queue(self, prefix: str = "queue", **properties: Any) -> str:
        """Create a queue and return its name; `lock_s` is short for a lock duration in seconds."""
        name = f"{prefix}-{os.getpid()}-{next(_names)}"
        properties = {"enable_partitioning": self.partitioned, **properties}
        self.client.create_queue(name, **_written_out(properties))
        return name

    def make_topic(self, prefix: str = "topic", **properties: Any) -> Topic:
        name = Topic(f"{prefix}-{os.getpid()}-{next(_names)}")
        self.client.create_topic(name, **{"enable_partitioning": self.partitioned, **properties})
        return name

    def make_subscription(
        self, topic: Topic, *rules: Any, name: str = "", **properties: Any
    ) -> Subscription:
        """Create a subscription that takes everything or, where there are filters, what these do.

        A rule is a filter, or a filter with its action; SQL is given as text.
        """
        made = Subscription(topic, name or f"sub-{next(_names)}")
        self.client.create_subscription(*made, **_written_out(properties))
        for number, rule in enumerate(rules):
            self.add_rule(made, f"rule-{number}", *(rule if isinstance(rule, tuple) else (rule,)))
        if rules:
            self.client.delete_rule(*made, "$Default")
        return made

    def add_rule(
        self, subscription: Subscription, name: str, filtered_by: Any, action: str | None = None
    ) -> None:
        if isinstance(filtered_by, str):
            filtered_by = SqlRuleFilter(filtered_by)
        acting = None if action is None else SqlRuleAction(action)
        self.client.create_rule(*subscription, name, filter=filtered_by, action=acting)

    def counts(
        self, source: str | Subscription
    ) -> QueueRuntimeProperties | SubscriptionRuntimeProperties:
        if isinstance(source, Subscription):
            return self.client.get_subscription_runtime_properties(*source)
        return self.client.get_queue_runtime_properties(source)

    def update(self, entity: str | Subscription, **changes: Any) -> None:
        if isinstance(entity, Subscription):
            found = self.client.get_subscription(*entity)
            self.client.update_subscription(entity.topic, found, **changes)
        elif isinstance(entity, Topic):
            self.client.update_topic(self.client.get_topic(entity), **changes)
        else:
            self.client.update_queue(self.client.get_queue(entity), **changes)

    def close(self) -> None:
        self.client.close()


def _written_out(properties: dict[str, Any]) -> dict[str, Any]:
    written = dict(properties)
    if (lock_s := written.pop("lock_s", None)) is not None:
        written["lock_duration"] = timedelta(seconds=lock_s)
    return written
