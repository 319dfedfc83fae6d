"""A queue's description as clients and files spell it: names, types, and what is refused.

The management API (XML), the emulator's Config.json and our own TOML describe queues by the same
fields. This is the one table of them; each reader turns what it read into values by it, and
`describe_queue` makes the description.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from reprlib import repr as brief
from typing import Any, Final, NamedTuple

from postbus.errors import InvalidArgument, NotSupported
from postbus.model.authorization import Rules, read_rules
from postbus.model.description import EntityStatus, QueueDescription, ttl_ms_of
from postbus.model.duration import (
    INFINITE,
    MAX_TICKS,
    TICKS_PER_MS,
    format_iso,
    is_infinite,
    parse_duration,
    parse_iso,
)

Value = bool | int | str | EntityStatus | Rules
"""A duration is its number of ticks."""


class Kind(Enum):
    """What may be written for a field."""

    BOOLEAN = "true or false"
    INTEGER = "a whole number"
    DURATION = "a duration such as 'PT1M'"
    TEXT = "text"
    STATUS = "one of Active, Disabled, SendDisabled, ReceiveDisabled"
    RULES = "a list of authorization rules"


class Field(NamedTuple):
    """One element of a QueueDescription."""

    element: str
    kind: Kind
    attribute: str | None = None
    """Where QueueDescription keeps it; None where only one value is taken."""

    @property
    def key(self) -> str:
        """Its name in TOML and in Python's SDK."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.element).lower()


_FIELDS: Final = (
    Field("LockDuration", Kind.DURATION, "lock_duration_ms"),
    Field("MaxSizeInMegabytes", Kind.INTEGER, "max_size_mb"),
    Field("RequiresDuplicateDetection", Kind.BOOLEAN),
    Field("RequiresSession", Kind.BOOLEAN),
    Field("DefaultMessageTimeToLive", Kind.DURATION, "default_ttl_ms"),
    Field("DeadLetteringOnMessageExpiration", Kind.BOOLEAN, "dead_lettering_on_expiration"),
    Field("DuplicateDetectionHistoryTimeWindow", Kind.DURATION, "duplicate_window_ms"),
    Field("MaxDeliveryCount", Kind.INTEGER, "max_delivery_count"),
    Field("EnableBatchedOperations", Kind.BOOLEAN, "enable_batched_operations"),
    Field("IsAnonymousAccessible", Kind.BOOLEAN),
    Field("AuthorizationRules", Kind.RULES, "authorization_rules"),
    Field("Status", Kind.STATUS, "status"),
    Field("ForwardTo", Kind.TEXT),
    Field("UserMetadata", Kind.TEXT, "user_metadata"),
    Field("SupportOrdering", Kind.BOOLEAN, "support_ordering"),
    Field("AutoDeleteOnIdle", Kind.DURATION),
    Field("EnablePartitioning", Kind.BOOLEAN),
    Field("ForwardDeadLetteredMessagesTo", Kind.TEXT),
    Field("EnableExpress", Kind.BOOLEAN, "enable_express"),
    Field("MaxMessageSizeInKilobytes", Kind.INTEGER, "max_message_size_kb"),
)
QUEUE_FIELDS: Final[Mapping[str, Field]] = {field.element: field for field in _FIELDS}

_STATUSES: Final = frozenset(status.value for status in EntityStatus)

READ_ONLY: Final = frozenset(
    {
        "SizeInBytes",
        "MessageCount",
        "CreatedAt",
        "UpdatedAt",
        "AccessedAt",
        "CountDetails",
        "EntityAvailabilityStatus",
    }
)
"""Sent back by clients that change what they were given; the server knows better."""

UNSUPPORTED: Final[Mapping[str, str]] = {
    "RequiresSession": "message sessions",
    "RequiresDuplicateDetection": "duplicate detection",
    "EnablePartitioning": "partitioned entities",
    "ForwardTo": "forwarding",
    "ForwardDeadLetteredMessagesTo": "forwarding of dead letters",
    "AutoDeleteOnIdle": "deletion of idle entities",
    "IsAnonymousAccessible": "anonymous access",
}
"""Elements that may only say "no" until what they switch on is there, and what that is."""


def read_text(field: Field, text: str) -> Value:
    """The value of an XML element. Raises InvalidArgument naming it."""
    if field.kind is Kind.TEXT:
        return text
    try:
        return _from_text(field.kind, text.strip(), parse_iso)
    except ValueError as error:
        raise InvalidArgument(f"The property '{field.element}' is not valid: {error}.") from None


def read_value(field: Field, value: object) -> Value:
    """The value of a JSON or TOML entry. Raises ValueError saying what it should be."""
    match field.kind:
        case Kind.BOOLEAN if isinstance(value, bool):
            return value
        case Kind.INTEGER if isinstance(value, int) and not isinstance(value, bool):
            return value
        case Kind.TEXT if isinstance(value, str):
            return value
        case Kind.DURATION | Kind.STATUS if isinstance(value, str):
            return _from_text(field.kind, value, parse_duration)
        case Kind.RULES if isinstance(value, list):
            return read_rules(value)
    raise ValueError(f"must be {field.kind.value}, not {brief(value)}")


def describe_queue(values: Mapping[str, Value], defaults: QueueDescription) -> QueueDescription:
    """The description made of `values`, by element name; what they leave out is as in `defaults`.

    Raises NotSupported for a value that asks for what Postbus does not do, and InvalidArgument for
    one out of range. Neither leaves a trace.
    """
    _refuse_unsupported(values)
    changes: dict[str, Any] = {}
    for element, value in values.items():
        field = QUEUE_FIELDS[element]
        if field.attribute is None:
            continue
        if element == "DefaultMessageTimeToLive":
            changes.update(_ttl_of(value))
        elif field.kind is Kind.DURATION:
            changes[field.attribute] = _ticks(value) // TICKS_PER_MS
        else:
            changes[field.attribute] = value
    description = replace(defaults, **changes)
    # Azure's Standard tier, which this namespace says it is, has one limit for all entities.
    if description.max_message_size_kb != defaults.max_message_size_kb:
        raise NotSupported(
            f"The property 'MaxMessageSizeInKilobytes' cannot be set for one entity: every entity "
            f"of this namespace takes messages of up to {defaults.max_message_size_kb} KB."
        )
    description.validate()
    return description


def refuse_changes(values: Mapping[str, Value]) -> None:
    """Raise InvalidArgument where an update would change what is fixed at creation (R-PART-09)."""
    for element in ("RequiresSession", "RequiresDuplicateDetection"):
        if values.get(element):
            raise InvalidArgument(
                f"The value for the {element} property of an existing Queue cannot be changed."
            )
    if values.get("EnablePartitioning"):
        raise InvalidArgument("Partitioning cannot be changed for Queue.")


def _refuse_unsupported(values: Mapping[str, Value]) -> None:
    for element, feature in UNSUPPORTED.items():
        value = values.get(element)
        if value is None or _says_no(element, value):
            continue
        raise NotSupported(
            f"The property '{element}' cannot be {_shown(element, value)}: "
            f"Postbus does not support {feature} yet."
        )


def _says_no(element: str, value: Value) -> bool:
    return is_infinite(_ticks(value)) if element == "AutoDeleteOnIdle" else not value


def _shown(element: str, value: Value) -> str:
    match QUEUE_FIELDS[element].kind:
        case Kind.DURATION:
            return f"'{format_iso(_ticks(value))}', only '{INFINITE}'"
        case Kind.BOOLEAN:
            return "'true'"
    return f"'{value}'"


def _from_text(kind: Kind, text: str, parse: Callable[[str], int]) -> Value:
    match kind:
        case Kind.BOOLEAN if text.lower() in ("true", "1"):
            return True
        case Kind.BOOLEAN if text.lower() in ("false", "0"):
            return False
        case Kind.INTEGER if re.fullmatch(r"-?[0-9]{1,18}", text):
            return int(text)
        case Kind.STATUS if text in _STATUSES:
            return EntityStatus(text)
        case Kind.DURATION:
            return parse(text)
    raise ValueError(f"must be {kind.value}, not '{text[:64]}'")


def _ttl_of(value: Value) -> dict[str, object]:
    ticks = _ticks(value)
    ttl_ms = ttl_ms_of(ticks)
    exact = MAX_TICKS if ttl_ms is None else ttl_ms * TICKS_PER_MS
    return {
        "default_ttl_ms": ttl_ms,
        "default_ttl_sent": None if exact == ticks else format_iso(ticks),
    }


def _ticks(value: Value) -> int:
    assert isinstance(value, int)
    return value
