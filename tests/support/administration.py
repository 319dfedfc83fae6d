"""The SDK's own administration client, told to use plain HTTP.

azure-servicebus 7.15 parses UseDevelopmentEmulator here and then ignores it: the base URL is always
https. Setting the one private attribute below is the way around it (wire contract §9.1).
"""

from __future__ import annotations

import itertools
import os
from datetime import timedelta
from typing import Any

from azure.servicebus.management import QueueRuntimeProperties, ServiceBusAdministrationClient

_names = itertools.count(1)


def administration_client(connection_string: str, **options: Any) -> ServiceBusAdministrationClient:
    client = ServiceBusAdministrationClient.from_connection_string(connection_string, **options)
    client._impl._client._base_url = "http://{endpoint}"
    return client


class Administration:
    """Queues for tests, each with a name of its own."""

    def __init__(self, connection_string: str) -> None:
        self.client = administration_client(connection_string, retry_total=0)

    def make_queue(self, prefix: str = "queue", **properties: Any) -> str:
        """Create a queue and return its name; `lock_s` is short for a lock duration in seconds."""
        if (lock_s := properties.pop("lock_s", None)) is not None:
            properties["lock_duration"] = timedelta(seconds=lock_s)
        name = f"{prefix}-{os.getpid()}-{next(_names)}"
        self.client.create_queue(name, **properties)
        return name

    def counts(self, queue: str) -> QueueRuntimeProperties:
        return self.client.get_queue_runtime_properties(queue)

    def update(self, queue: str, **changes: Any) -> None:
        self.client.update_queue(self.client.get_queue(queue), **changes)

    def close(self) -> None:
        self.client.close()
