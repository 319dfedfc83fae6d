"""Files to read: written, loaded, and made wrong in one place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from postbus.config.content import Content
from postbus.model.description import QueueDescription
from postbus.ops.config_file import NamespaceConfig, load_config

QUEUE_PROPERTIES = {
    "DeadLetteringOnMessageExpiration": True,
    "DefaultMessageTimeToLive": "PT1H",
    "DuplicateDetectionHistoryTimeWindow": "PT20S",
    "ForwardDeadLetteredMessagesTo": "queue.2",
    "ForwardTo": "",
    "LockDuration": "PT1M",
    "MaxDeliveryCount": 3,
    "RequiresDuplicateDetection": False,
    "RequiresSession": False,
}


def emulator(*queues: Any, **namespace: Any) -> str:
    """A Config.json with these queues."""
    described = {"Name": "sbemulatorns", "Queues": list(queues), "Topics": [], **namespace}
    return json.dumps({"UserConfig": {"Namespaces": [described], "Logging": {"Type": "File"}}})


def with_subscription(**subscription: Any) -> str:
    """A Config.json with one topic that has one subscription."""
    described = {"Name": "all", **subscription}
    return emulator(Topics=[{"Name": "news", "Subscriptions": [described]}])


def with_rule(**properties: Any) -> str:
    return with_subscription(Rules=[{"Name": "r", "Properties": properties}])


def load(
    folder: Path,
    text: str | bytes,
    name: str = "Config.json",
    defaults: QueueDescription | None = None,
) -> NamespaceConfig:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_config(path, defaults)


def load_toml(folder: Path, text: str, defaults: QueueDescription | None = None) -> Content:
    return load(folder, text, "postbus.toml", defaults).content
