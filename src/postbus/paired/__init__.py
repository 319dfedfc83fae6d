"""Paired namespaces: sends that survive an outage of the primary namespace (`postbus[paired]`).

This package has the client without asyncio; `postbus.paired.aio` has the other one.
"""

from postbus.paired.failures import (
    BacklogUnavailableError,
    DivertedMessageSizeExceededError,
    PairFaultedError,
    PathBrokenError,
)
from postbus.paired.health import PathState
from postbus.paired.options import SendAvailability
from postbus.paired.pairing import PathChange, PathStatus
from postbus.paired.sync import PairedSender, PairedServiceBusClient

__all__ = [
    "BacklogUnavailableError",
    "DivertedMessageSizeExceededError",
    "PairFaultedError",
    "PairedSender",
    "PairedServiceBusClient",
    "PathBrokenError",
    "PathChange",
    "PathState",
    "PathStatus",
    "SendAvailability",
]
