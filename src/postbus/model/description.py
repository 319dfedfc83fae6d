"""What a queue is told to be: its description, the defaults and the limits.

Only what has an effect is a field here, with three exceptions that are kept to be given back
(`enable_batched_operations`, `enable_express`, `support_ordering`; docs/http-api.md says why), and
the duplicate window, which Azure checks and keeps even where detection is off.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Final, NamedTuple, Self

from postbus.errors import InvalidArgument
from postbus.model.authorization import Rules, rules_from_json, rules_to_json, validate_rules
from postbus.model.duration import (
    INFINITE,
    TICKS_PER_MS,
    BadDuration,
    format_iso,
    format_timespan,
    is_infinite,
    parse_iso,
)

LOCK_DURATION_MIN_MS: Final = 5_000
LOCK_DURATION_MAX_MS: Final = 5 * 60_000
DEFAULT_TTL_MIN_MS: Final = 1_000
DUPLICATE_WINDOW_MIN_MS: Final = 20_000
DUPLICATE_WINDOW_MAX_MS: Final = 7 * 24 * 3_600_000
# R-PART-10
SIZES_MB: Final = (1_024, 2_048, 3_072, 4_096, 5_120)
# R-PAIR-02 asks for the largest 32-bit number; R-DLQ-07: it cannot be switched off.
MAX_DELIVERY_COUNT_MAX: Final = 2**31 - 1
USER_METADATA_LENGTH_MAX: Final = 1_024
MESSAGE_SIZE_MAX_KB: Final = 102_400

NOT_IN_XML: Final = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML document can hold, and so no description that is given back in one."""


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
    """How many messages a queue holds, and how large they are together."""

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
class QueueDescription:
    """Everything about a queue that its owner chooses."""

    lock_duration_ms: int = 30_000
    max_size_mb: int = 1_024
    default_ttl_ms: int | None = None
    """None: messages do not expire unless they say so themselves."""
    default_ttl_sent: str | None = None
    """The same as an ISO 8601 duration, where milliseconds cannot hold what the client sent. Azure
    gives it back to the digit (semantics part A §5.2)."""
    dead_lettering_on_expiration: bool = False
    duplicate_window_ms: int = 600_000
    max_delivery_count: int = 10
    status: EntityStatus = EntityStatus.ACTIVE
    user_metadata: str | None = None
    max_message_size_kb: int = 256
    enable_batched_operations: bool = True
    enable_express: bool = False
    support_ordering: bool = True
    authorization_rules: Rules = ()

    @property
    def default_ttl_text(self) -> str:
        """The default time to live as an ISO 8601 duration."""
        sent = self.default_ttl_sent
        # A copy with another time to live leaves the old spelling behind.
        if sent is not None and ttl_ms_of(parse_iso(sent)) == self.default_ttl_ms:
            return sent
        if self.default_ttl_ms is None:
            return INFINITE
        return format_iso(self.default_ttl_ms * TICKS_PER_MS)

    def validate(self) -> None:
        """Raise InvalidArgument, in Azure's words where they are known, for the first bad value."""
        self._validate_durations()
        if self.max_size_mb not in SIZES_MB:
            raise InvalidArgument(
                f"The value '{self.max_size_mb}' of the property 'MaxSizeInMegabytes' must be one "
                f"of: {';'.join(map(str, SIZES_MB))}."
            )
        _in_range("MaxDeliveryCount", self.max_delivery_count, 1, MAX_DELIVERY_COUNT_MAX)
        _in_range("MaxMessageSizeInKilobytes", self.max_message_size_kb, 1, MESSAGE_SIZE_MAX_KB)
        if self.user_metadata is not None:
            _check_user_metadata(self.user_metadata)
        validate_rules(self.authorization_rules)

    def _validate_durations(self) -> None:
        if self.lock_duration_ms > LOCK_DURATION_MAX_MS:
            raise InvalidArgument(
                "The supplied lock time exceeds the allowed maximum of '5' minutes."
                + _parameter("LockDuration", self.lock_duration_ms)
            )
        if self.lock_duration_ms < LOCK_DURATION_MIN_MS:
            raise InvalidArgument(
                "The supplied lock time is below the allowed minimum of '5' seconds."
                + _parameter("LockDuration", self.lock_duration_ms)
            )
        if self.default_ttl_ms is not None and self.default_ttl_ms < DEFAULT_TTL_MIN_MS:
            raise InvalidArgument(
                "The supplied time to live is below the allowed minimum of '1' second."
                + _parameter("DefaultMessageTimeToLive", self.default_ttl_ms)
            )
        if not DUPLICATE_WINDOW_MIN_MS <= self.duplicate_window_ms <= DUPLICATE_WINDOW_MAX_MS:
            raise InvalidArgument(
                "The value supplied must be between 00:00:20 and 7.00:00:00."
                + _parameter("DuplicateDetectionHistoryTimeWindow", self.duplicate_window_ms)
            )

    def to_json(self) -> dict[str, Any]:
        """As the catalog keeps it: one key for each field, absent where it is None."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["status"] = self.status.value
        values["authorization_rules"] = rules_to_json(self.authorization_rules) or None
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The description that to_json() wrote. A field that was not known then has its default.

        Raises ValueError for a key or a value that no version of this class has written.
        """
        known = {field.name: field for field in fields(cls)}
        given = dict(values)
        for name, value in given.items():
            if name not in known:
                raise ValueError(f"a queue's description has no '{name}'")
            if name in _TYPES and not _is_like(value, _TYPES[name]):
                raise ValueError(f"'{name}' of a queue's description cannot be {value!r}")
        if "status" in given:
            given["status"] = EntityStatus(given["status"])
        if "authorization_rules" in given:
            given["authorization_rules"] = rules_from_json(given["authorization_rules"])
        if (sent := given.get("default_ttl_sent")) is not None:
            try:
                parse_iso(sent)
            except BadDuration as error:
                raise ValueError(f"'default_ttl_sent' of a queue's description: {error}") from None
        return cls(**given)


_TYPES: Final[dict[str, type]] = {
    "lock_duration_ms": int,
    "max_size_mb": int,
    "default_ttl_ms": int,
    "default_ttl_sent": str,
    "dead_lettering_on_expiration": bool,
    "duplicate_window_ms": int,
    "max_delivery_count": int,
    "user_metadata": str,
    "max_message_size_kb": int,
    "enable_batched_operations": bool,
    "enable_express": bool,
    "support_ordering": bool,
}


def ttl_ms_of(ticks: int) -> int | None:
    """A time to live in milliseconds, or None for one that never ends."""
    return None if is_infinite(ticks) else ticks // TICKS_PER_MS


def _is_like(value: object, kind: type) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _parameter(name: str, value_ms: int) -> str:
    # Azure appends these two lines to every range error of a duration (semantics part A §5.3).
    actual = format_timespan(value_ms * TICKS_PER_MS)
    return f"\r\nParameter name: {name}\r\nActual value was {actual}."


def _in_range(name: str, value: int, lowest: int, highest: int) -> None:
    if not lowest <= value <= highest:
        raise InvalidArgument(
            f"The value '{value}' of the property '{name}' must be between {lowest} and {highest}."
        )


def _check_user_metadata(text: str) -> None:
    if len(text) > USER_METADATA_LENGTH_MAX:
        raise InvalidArgument(
            f"The property 'UserMetadata' has {len(text)} characters; "
            f"{USER_METADATA_LENGTH_MAX} are allowed."
        )
    if NOT_IN_XML.search(text) is not None:
        raise InvalidArgument("The property 'UserMetadata' has a character that XML cannot hold.")
