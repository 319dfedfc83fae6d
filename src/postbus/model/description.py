"""Descriptions of queues, topics and subscriptions: the settings that their owners choose.

Every field has an effect, with three exceptions. `enable_batched_operations`, `enable_express` and
`support_ordering` are only kept and given back (docs/http-api.md says why). The duplicate window is
kept even where detection is off, because Azure checks and keeps it there.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any, ClassVar, Final, NamedTuple, Self, get_args

from postbus.errors import InvalidArgument
from postbus.model.authorization import Rules, rules_from_json, rules_to_json, validate_rules
from postbus.model.limits import (
    check_auto_delete,
    check_default_ttl,
    check_duplicate_window,
    check_express,
    check_lock_duration,
    check_max_delivery_count,
    check_message_size,
    check_partitioned_forward,
    check_retention,
    check_session_forward,
    check_size,
)
from postbus.model.times import (
    INFINITE,
    TICKS_PER_MS,
    BadDuration,
    format_iso,
    is_infinite,
    parse_iso,
)

USER_METADATA_LENGTH_MAX: Final = 1_024

NOT_IN_XML: Final = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML document can hold, and so no description in a reply."""


FORWARDING_SPELLINGS: Final = ("forward_to_sent", "forward_dead_letters_to_sent")
_READ_APART: Final = ("status", "authorization_rules")


class EntityStatus(Enum):
    """Which operations an entity takes part in."""

    ACTIVE = "Active"
    DISABLED = "Disabled"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"

    @property
    def sends(self) -> bool:
        return self in (EntityStatus.ACTIVE, EntityStatus.RECEIVE_DISABLED)

    @property
    def receives(self) -> bool:
        return self in (EntityStatus.ACTIVE, EntityStatus.SEND_DISABLED)


class QueueCounts(NamedTuple):
    """The number of messages in a queue, topic or subscription, and their total size."""

    active: int = 0
    """Ready, locked or deferred."""
    dead_letter: int = 0
    scheduled: int = 0
    transfer: int = 0
    transfer_dead_letter: int = 0
    size_bytes: int = 0

    @property
    def total(self) -> int:
        return (
            self.active
            + self.dead_letter
            + self.scheduled
            + self.transfer
            + self.transfer_dead_letter
        )


@dataclass(frozen=True, slots=True)
class Description:
    """The settings that the owner of any entity chooses."""

    WORD: ClassVar[str] = "entity"
    """The name of the kind of entity in texts."""
    _SPELLINGS: ClassVar[tuple[str, ...]] = ("default_ttl_sent",)

    default_ttl_ms: int | None = None
    """None: messages do not expire unless they say so themselves."""
    default_ttl_sent: str | None = None
    """The same as an ISO 8601 duration, where milliseconds cannot hold the client's value. Azure
    gives it back to the digit (semantics A §5.2)."""
    auto_delete_ms: int | None = None
    """The idle time after which it is deleted; None: for ever."""
    status: EntityStatus = EntityStatus.ACTIVE
    user_metadata: str | None = None
    enable_batched_operations: bool = True

    @property
    def default_ttl_text(self) -> str:
        """The default time to live as an ISO 8601 duration."""
        sent = self.default_ttl_sent
        # A changed copy may still hold the spelling of an earlier time to live.
        if sent is not None and finite_ms(parse_iso(sent)) == self.default_ttl_ms:
            return sent
        if self.default_ttl_ms is None:
            return INFINITE
        return format_iso(self.default_ttl_ms * TICKS_PER_MS)

    @property
    def meaning(self) -> Self:
        """The same without the client's spellings."""
        unspelled: dict[str, Any] = dict.fromkeys(self._SPELLINGS)
        return replace(self, **unspelled)

    def validate(self) -> None:
        """Raise InvalidArgument, in Azure's words where they are known, for the first bad value."""
        check_default_ttl(self.default_ttl_ms)
        check_auto_delete(self.auto_delete_ms)
        if self.user_metadata is not None:
            _check_user_metadata(self.user_metadata)

    def to_json(self) -> dict[str, Any]:
        """The form in the catalog: one key for each field, absent where it is None."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["status"] = self.status.value
        values["authorization_rules"] = rules_to_json(values.get("authorization_rules", ())) or None
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The description that to_json() wrote. A field that was unknown then has its default.

        Raises ValueError for a key or a value that no version of this class has written.
        """
        types: dict[str, Any] = {field.name: field.type for field in fields(cls)}
        given = dict(values)
        for name, value in given.items():
            if name not in types:
                raise ValueError(f"a {cls.WORD}'s description has no '{name}'")
            if name not in _READ_APART and not _is_like(value, types[name]):
                raise ValueError(f"'{name}' of a {cls.WORD}'s description cannot be {value!r}")
        if "status" in given:
            given["status"] = EntityStatus(given["status"])
        if "authorization_rules" in given:
            given["authorization_rules"] = rules_from_json(given["authorization_rules"])
        if (sent := given.get("default_ttl_sent")) is not None:
            try:
                parse_iso(sent)
            except BadDuration as error:
                raise ValueError(
                    f"'default_ttl_sent' of a {cls.WORD}'s description: {error}"
                ) from None
        return cls(**given)


@dataclass(frozen=True, slots=True)
class QueueDescription(Description):
    """The settings that the owner of a queue chooses."""

    WORD: ClassVar[str] = "queue"
    _SPELLINGS: ClassVar[tuple[str, ...]] = ("default_ttl_sent", *FORWARDING_SPELLINGS)

    lock_duration_ms: int = 30_000
    max_size_mb: int = 1_024
    """Of each fragment, where it is partitioned (R-PART-10)."""
    dead_lettering_on_expiration: bool = False
    requires_duplicate_detection: bool = False
    duplicate_window_ms: int = 600_000
    max_delivery_count: int = 10
    requires_session: bool = False
    forward_to: str | None = None
    """The queue or topic that gets its messages; a name, without scheme and host."""
    forward_to_sent: str | None = None
    """The same in the client's spelling, for replies (`model.address`)."""
    forward_dead_letters_to: str | None = None
    forward_dead_letters_to_sent: str | None = None
    max_message_size_kb: int = 256
    enable_express: bool = False
    enable_partitioning: bool = False
    support_ordering: bool = True
    authorization_rules: Rules = ()
    retention_hours: int | None = None
    """How long its change feed goes back; None: the broker's setting."""
    retention_mb: int | None = None

    def validate(self) -> None:
        Description.validate(self)
        check_lock_duration(self.lock_duration_ms)
        check_duplicate_window(self.duplicate_window_ms)
        check_express(self.enable_express, self.requires_duplicate_detection)
        check_size(self.max_size_mb)
        check_max_delivery_count(self.max_delivery_count)
        check_message_size(self.max_message_size_kb)
        check_retention(self.retention_hours, self.retention_mb)
        check_session_forward(self.requires_session, self.forward_to)
        check_partitioned_forward(
            self.enable_partitioning, self.forward_to, self.forward_dead_letters_to
        )
        validate_rules(self.authorization_rules)


def finite_ms(ticks: int) -> int | None:
    """A span in milliseconds, or None for a span that never ends."""
    return None if is_infinite(ticks) else ticks // TICKS_PER_MS


def _is_like(value: object, declared: Any) -> bool:
    kinds = get_args(declared) or (declared,)
    # In JSON `true` is no number, though in Python it is.
    return type(value) in kinds and value is not None


def _check_user_metadata(text: str) -> None:
    if len(text) > USER_METADATA_LENGTH_MAX:
        raise InvalidArgument(
            f"The property 'UserMetadata' has {len(text)} characters; "
            f"{USER_METADATA_LENGTH_MAX} are allowed."
        )
    if NOT_IN_XML.search(text) is not None:
        raise InvalidArgument("The property 'UserMetadata' has a character that XML cannot hold.")


@dataclass(frozen=True, slots=True)
class TopicDescription(Description):
    """The settings that the owner of a topic chooses; subscriptions have their own."""

    WORD: ClassVar[str] = "topic"

    max_size_mb: int = 1_024
    """For the messages of all its subscriptions together; of each fragment, where partitioned."""
    requires_duplicate_detection: bool = False
    duplicate_window_ms: int = 600_000
    max_message_size_kb: int = 256
    enable_express: bool = False
    enable_partitioning: bool = False
    support_ordering: bool = True
    authorization_rules: Rules = ()
    retention_hours: int | None = None
    """How long its change feed goes back; None: the broker's setting."""
    retention_mb: int | None = None

    def validate(self) -> None:
        Description.validate(self)
        check_duplicate_window(self.duplicate_window_ms)
        check_express(self.enable_express, self.requires_duplicate_detection)
        check_size(self.max_size_mb)
        check_message_size(self.max_message_size_kb)
        check_retention(self.retention_hours, self.retention_mb)
        validate_rules(self.authorization_rules)


@dataclass(frozen=True, slots=True)
class SubscriptionDescription(Description):
    """The settings that the owner of a subscription chooses. Its rules are kept beside it."""

    WORD: ClassVar[str] = "subscription"
    _SPELLINGS: ClassVar[tuple[str, ...]] = ("default_ttl_sent", *FORWARDING_SPELLINGS)

    lock_duration_ms: int = 30_000
    dead_lettering_on_expiration: bool = False
    dead_lettering_on_filter_errors: bool = True
    """Is a message dead-lettered or left out when a rule fails on it?"""
    max_delivery_count: int = 10
    requires_session: bool = False
    forward_to: str | None = None
    """The queue or topic that gets its messages; a name, without scheme and host."""
    forward_to_sent: str | None = None
    """The same in the client's spelling, for replies (`model.address`)."""
    forward_dead_letters_to: str | None = None
    forward_dead_letters_to_sent: str | None = None

    def validate(self) -> None:
        Description.validate(self)
        check_lock_duration(self.lock_duration_ms)
        check_max_delivery_count(self.max_delivery_count)
        check_session_forward(self.requires_session, self.forward_to)
