"""The system properties that rules can name as `sys.X`, and the properties that an action may set
(semantics A §1.3, §2)."""

from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

from postbus.model.values import DateTime, TimeSpan

CONTENT_TYPE: Final = "ContentType"
LABEL: Final = "Label"
MESSAGE_ID: Final = "MessageId"
PARTITION_KEY: Final = "PartitionKey"
SESSION_ID: Final = "SessionId"
TIME_TO_LIVE: Final = "TimeToLive"

ID_LENGTH_MAX: Final = 128
"""Characters of a message id, a session id and a partition key."""


class SystemProperty(NamedTuple):
    name: str
    type: type
    """The type of its values, when it is set."""
    settable: bool = False


_ALL: Final = (
    SystemProperty(CONTENT_TYPE, str, settable=True),
    SystemProperty("CorrelationId", str, settable=True),
    SystemProperty("DeadLetterSource", str),
    SystemProperty("DeliveryCount", int),
    SystemProperty("EnqueuedSequenceNumber", int),
    SystemProperty("EnqueuedTimeUtc", DateTime),
    SystemProperty("ExpiresAtUtc", DateTime),
    # Settable in Azure. Here every message is persisted, so there is nothing to force.
    SystemProperty("ForcePersistence", bool),
    SystemProperty(LABEL, str, settable=True),
    SystemProperty("LockToken", UUID),
    SystemProperty("LockedUntilUtc", DateTime),
    SystemProperty(MESSAGE_ID, str, settable=True),
    SystemProperty(PARTITION_KEY, str, settable=True),
    SystemProperty("ReplyTo", str, settable=True),
    SystemProperty("ReplyToSessionId", str, settable=True),
    SystemProperty("ScheduledEnqueueTimeUtc", DateTime, settable=True),
    SystemProperty("SequenceNumber", int),
    SystemProperty(SESSION_ID, str, settable=True),
    SystemProperty("Size", int),
    SystemProperty("State", int),
    SystemProperty(TIME_TO_LIVE, TimeSpan, settable=True),
    SystemProperty("To", str, settable=True),
    SystemProperty("ViaPartitionKey", str, settable=True),
)

# Azure's pages send users to today's .NET classes for the names, where some are called otherwise.
_ALIASES: Final = {
    "subject": LABEL,
    "enqueuedtime": "EnqueuedTimeUtc",
    "expiresat": "ExpiresAtUtc",
    "lockeduntil": "LockedUntilUtc",
    "scheduledenqueuetime": "ScheduledEnqueueTimeUtc",
    "transactionpartitionkey": "ViaPartitionKey",
}

SYSTEM_PROPERTIES: Final[Mapping[str, SystemProperty]] = {one.name: one for one in _ALL}
_BY_FOLDED: Final = {one.name.lower(): one for one in _ALL} | {
    alias: SYSTEM_PROPERTIES[name] for alias, name in _ALIASES.items()
}


def system_property(name: str) -> SystemProperty | None:
    """The property that a rule calls by this name, in any case."""
    return _BY_FOLDED.get(name.lower())
