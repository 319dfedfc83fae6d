"""Descriptions as clients and files spell them: names, types, and refused values.

The management API (XML), the emulator's Config.json and our own TOML describe entities by the same
fields. This module has their tables, one form for each kind of entity. Each reader converts its
text to values by these tables, and `describe` makes the description.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from reprlib import repr as brief
from typing import Any, Final, NamedTuple, TypeVar

from postbus.errors import InvalidArgument, NotSupported
from postbus.model.address import read_destination
from postbus.model.authorization import Rules, read_rules
from postbus.model.description import (
    Description,
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
    finite_ms,
)
from postbus.model.limits import SIZES_MB, check_chosen_message_size
from postbus.model.partitioning import FRAGMENTS
from postbus.model.times import MAX_TICKS, TICKS_PER_MS, format_iso, parse_duration, parse_iso

Value = bool | int | str | EntityStatus | Rules
"""A duration is its number of ticks."""

D = TypeVar("D", bound=Description)


class FieldType(Enum):
    """The type of a field's value."""

    BOOLEAN = "true or false"
    INTEGER = "a whole number"
    DURATION = "a duration such as 'PT1M'"
    TEXT = "text"
    ENTITY = "the name or the URL of a queue or topic"
    STATUS = "one of Active, Disabled, SendDisabled, ReceiveDisabled"
    RULES = "a list of authorization rules"
    DEFAULT_RULE = "a rule"
    """Read when the entity is created, and no part of its description."""
    TOLD = "what only the server knows"
    """Clients send it back with an update; it is ignored."""


class Field(NamedTuple):
    """One element of a description."""

    element: str
    kind: FieldType
    attribute: str | None = None
    """The attribute of the description; None where only one value is allowed."""
    since: str = ""
    """The first version of the API whose replies have it."""

    @property
    def sent(self) -> str:
        """The attribute that keeps the client's own text, where the kind has one."""
        return f"{self.attribute}_sent"

    @property
    def key(self) -> str:
        """Its name in TOML and in Python's SDK."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.element).lower()


@dataclass(frozen=True)
class Form:
    """The written description of one kind of entity."""

    word: str
    """The kind of entity in Azure's texts."""
    default: Description
    """The default description."""
    order: tuple[Field, ...]
    """Every element, in the order of a reply (wire §9.4)."""

    @cached_property
    def fields(self) -> Mapping[str, Field]:
        """The elements that a client may set, by name."""
        return {each.element: each for each in self.order if each.kind is not FieldType.TOLD}

    @cached_property
    def told(self) -> frozenset[str]:
        """The names of the elements that only the server sets."""
        return frozenset(each.element for each in self.order if each.kind is FieldType.TOLD)

    @property
    def element(self) -> str:
        return f"{self.word}Description"


# Azure's versions of the API that added elements (semantics A §5.1).
_WITH_MESSAGE_SIZE: Final = "2021-05"
_WITH_FILTER_COUNTS: Final = "2024-05"

_LOCK: Final = Field("LockDuration", FieldType.DURATION, "lock_duration_ms")
_SIZE: Final = Field("MaxSizeInMegabytes", FieldType.INTEGER, "max_size_mb")
_DUPLICATES: Final = Field(
    "RequiresDuplicateDetection", FieldType.BOOLEAN, "requires_duplicate_detection"
)
_SESSION: Final = Field("RequiresSession", FieldType.BOOLEAN, "requires_session")
_TTL: Final = Field("DefaultMessageTimeToLive", FieldType.DURATION, "default_ttl_ms")
_EXPIRED: Final = Field(
    "DeadLetteringOnMessageExpiration", FieldType.BOOLEAN, "dead_lettering_on_expiration"
)
_WINDOW: Final = Field(
    "DuplicateDetectionHistoryTimeWindow", FieldType.DURATION, "duplicate_window_ms"
)
_DELIVERIES: Final = Field("MaxDeliveryCount", FieldType.INTEGER, "max_delivery_count")
_BATCHED: Final = Field("EnableBatchedOperations", FieldType.BOOLEAN, "enable_batched_operations")
_ANONYMOUS: Final = Field("IsAnonymousAccessible", FieldType.BOOLEAN)
_ACCESS: Final = Field("AuthorizationRules", FieldType.RULES, "authorization_rules")
_STATUS: Final = Field("Status", FieldType.STATUS, "status")
FORWARD: Final = Field("ForwardTo", FieldType.ENTITY, "forward_to")
FORWARD_DEAD: Final = Field(
    "ForwardDeadLetteredMessagesTo", FieldType.ENTITY, "forward_dead_letters_to"
)
_METADATA: Final = Field("UserMetadata", FieldType.TEXT, "user_metadata")
_ORDERING: Final = Field("SupportOrdering", FieldType.BOOLEAN, "support_ordering")
_IDLE: Final = Field("AutoDeleteOnIdle", FieldType.DURATION, "auto_delete_ms")
_PARTITIONING: Final = Field("EnablePartitioning", FieldType.BOOLEAN, "enable_partitioning")
_EXPRESS: Final = Field("EnableExpress", FieldType.BOOLEAN, "enable_express")
_MESSAGE_SIZE: Final = Field(
    "MaxMessageSizeInKilobytes", FieldType.INTEGER, "max_message_size_kb", _WITH_MESSAGE_SIZE
)

# Ours alone: Azure has no change feed of an entity.
_RETENTION: Final = (
    Field("RetentionInHours", FieldType.INTEGER, "retention_hours"),
    Field("RetentionInMegabytes", FieldType.INTEGER, "retention_mb"),
)

_BYTES: Final = Field("SizeInBytes", FieldType.TOLD)
_MESSAGES: Final = Field("MessageCount", FieldType.TOLD)
_TIMES: Final = tuple(
    Field(name, FieldType.TOLD) for name in ("CreatedAt", "UpdatedAt", "AccessedAt")
)
_COUNTS: Final = Field("CountDetails", FieldType.TOLD)
_AVAILABILITY: Final = Field("EntityAvailabilityStatus", FieldType.TOLD)

QUEUE: Final = Form(
    "Queue",
    QueueDescription(),
    (
        *(_LOCK, _SIZE, _DUPLICATES, _SESSION, _TTL, _EXPIRED, _WINDOW, _DELIVERIES, _BATCHED),
        *(_BYTES, _MESSAGES, _ANONYMOUS, _ACCESS, _STATUS, FORWARD, _METADATA, *_TIMES),
        *(_ORDERING, _COUNTS, _IDLE, _PARTITIONING, _AVAILABILITY, FORWARD_DEAD, _EXPRESS),
        *(_MESSAGE_SIZE, *_RETENTION),
    ),
)
TOPIC: Final = Form(
    "Topic",
    TopicDescription(),
    (
        *(_TTL, _SIZE, _DUPLICATES, _WINDOW, _BATCHED, _BYTES),
        Field("FilteringMessagesBeforePublishing", FieldType.BOOLEAN),
        *(_ANONYMOUS, _ACCESS, _STATUS, *_TIMES, _ORDERING, _COUNTS),
        Field("SubscriptionCount", FieldType.TOLD),
        Field("SqlFilterCount", FieldType.TOLD, since=_WITH_FILTER_COUNTS),
        Field("CorrelationFilterCount", FieldType.TOLD, since=_WITH_FILTER_COUNTS),
        *(_IDLE, _PARTITIONING, _AVAILABILITY),
        Field("EnableSubscriptionPartitioning", FieldType.BOOLEAN),
        *(_EXPRESS, _METADATA, _MESSAGE_SIZE, *_RETENTION),
    ),
)
SUBSCRIPTION: Final = Form(
    "Subscription",
    SubscriptionDescription(),
    (
        *(_LOCK, _SESSION, _TTL, _EXPIRED),
        Field(
            "DeadLetteringOnFilterEvaluationExceptions",
            FieldType.BOOLEAN,
            "dead_lettering_on_filter_errors",
        ),
        Field("DefaultRuleDescription", FieldType.DEFAULT_RULE),
        *(_MESSAGES, _DELIVERIES, _BATCHED, _STATUS, FORWARD, *_TIMES, _COUNTS, _METADATA),
        *(FORWARD_DEAD, _IDLE, _AVAILABILITY),
    ),
)

UNSUPPORTED: Final[Mapping[str, str]] = {
    "EnableSubscriptionPartitioning": "partitioned subscriptions",
    "FilteringMessagesBeforePublishing": "refusing messages that no subscription takes",
    "IsAnonymousAccessible": "anonymous access",
}
"""Elements that must be false until their feature exists, and the name of that feature."""

FIXED: Final = (_SESSION, _DUPLICATES, _PARTITIONING)
"""Chosen when an entity is created, and never again (R-PART-09)."""
AS_SET: Final = -1
"""The value that makes a retention the broker's setting again."""

_STATUSES: Final = frozenset(status.value for status in EntityStatus)


def read_text(field: Field, text: str) -> Value:
    """The value of an XML element. Raises InvalidArgument that names the element."""
    if field.kind is FieldType.TEXT:
        return text
    try:
        return _from_text(field.kind, text.strip(), parse_iso)
    except ValueError as error:
        raise InvalidArgument(f"The property '{field.element}' is not valid: {error}.") from None


def read_value(field: Field, value: object) -> Value:
    """The value of a JSON or TOML entry. Raises ValueError with the expected type."""
    match field.kind:
        case FieldType.BOOLEAN if isinstance(value, bool):
            return value
        case FieldType.INTEGER if isinstance(value, int) and not isinstance(value, bool):
            return value
        case FieldType.TEXT if isinstance(value, str):
            return value
        case FieldType.DURATION | FieldType.STATUS | FieldType.ENTITY if isinstance(value, str):
            return _from_text(field.kind, value, parse_duration)
        case FieldType.RULES if isinstance(value, list):
            return read_rules(value)
    raise ValueError(f"must be {field.kind.value}, not {brief(value)}")


def describe(
    form: Form, values: Mapping[str, Value], defaults: D, present: Description | None = None
) -> D:
    """The description with `values`, by element name, and with `defaults` for missing elements.

    `present` is the description that an update replaces. Raises NotSupported for a feature that
    Postbus lacks, and InvalidArgument for a value out of range. Neither leaves a trace.
    """
    _refuse_unsupported(values)
    changes: dict[str, Any] = {}
    for element, value in values.items():
        field = form.fields[element]
        if field.attribute is None:
            continue
        if field is _TTL:
            changes.update(_ttl_of(value))
        elif field is _IDLE:
            changes[field.attribute] = finite_ms(_ticks(value))
        elif field in _RETENTION:
            changes[field.attribute] = None if value == AS_SET else value
        elif field.kind is FieldType.DURATION:
            changes[field.attribute] = _ticks(value) // TICKS_PER_MS
        elif field.kind is FieldType.ENTITY:
            changes.update(_forward_of(field, str(value)))
        else:
            changes[field.attribute] = value
    partitioned = changes.get(
        "enable_partitioning", getattr(defaults, "enable_partitioning", False)
    )
    if partitioned and changes.get("max_size_mb") in [each * FRAGMENTS for each in SIZES_MB]:
        # A client may send back the total that the reply to it has shown.
        changes["max_size_mb"] //= FRAGMENTS
    if _MESSAGE_SIZE.element in values:
        name = str(_MESSAGE_SIZE.attribute)
        known = [getattr(each, name) for each in (defaults, present) if each is not None]
        check_chosen_message_size(changes[name], *known)
    description = replace(defaults, **changes)
    description.validate()
    return description


def refuse_changes(form: Form, values: Mapping[str, Value], present: Description) -> None:
    """Raise InvalidArgument where an update would change a field fixed at creation (R-PART-09)."""
    for field in FIXED:
        before = field.attribute is not None and getattr(present, field.attribute, False)
        if values.get(field.element, before) != before:
            raise InvalidArgument(fixed_text(form, field))


def fixed_text(form: Form, field: Field) -> str:
    """The refusal of a change to a field that is fixed at creation."""
    if field is _PARTITIONING:
        return f"Partitioning cannot be changed for {form.word}."
    return (
        f"The value for the {field.element} property of an existing {form.word} cannot be changed."
    )


def keep_fixed(form: Form, defaults: D, present: Description) -> D:
    """The defaults of an update.

    Fields that are fixed keep their present values. So do fields that Azure's SDKs do not know, and
    hence never send back.
    """
    kept = {
        each.attribute: getattr(present, each.attribute)
        for each in (*FIXED, *_RETENTION)
        if each.attribute is not None and each.element in form.fields
    }
    return replace(defaults, **kept)


def _refuse_unsupported(values: Mapping[str, Value]) -> None:
    for element, feature in UNSUPPORTED.items():
        if values.get(element):
            raise NotSupported(
                f"The property '{element}' cannot be 'true': "
                f"Postbus does not support {feature} yet."
            )


def _from_text(kind: FieldType, text: str, parse: Callable[[str], int]) -> Value:
    match kind:
        case FieldType.BOOLEAN if text.lower() in ("true", "1"):
            return True
        case FieldType.BOOLEAN if text.lower() in ("false", "0"):
            return False
        case FieldType.INTEGER if re.fullmatch(r"-?[0-9]{1,18}", text):
            return int(text)
        case FieldType.STATUS if text in _STATUSES:
            return EntityStatus(text)
        case FieldType.DURATION:
            return parse(text)
        case FieldType.ENTITY:
            return text
    raise ValueError(f"must be {kind.value}, not '{text[:64]}'")


def _ttl_of(value: Value) -> dict[str, object]:
    ticks = _ticks(value)
    ttl_ms = finite_ms(ticks)
    exact = MAX_TICKS if ttl_ms is None else ttl_ms * TICKS_PER_MS
    return {
        "default_ttl_ms": ttl_ms,
        "default_ttl_sent": None if exact == ticks else format_iso(ticks),
    }


def _forward_of(field: Field, text: str) -> dict[str, object]:
    destination = read_destination(field.element, text)
    return {str(field.attribute): destination.name, field.sent: destination.sent}


def _ticks(value: Value) -> int:
    assert isinstance(value, int)
    return value
