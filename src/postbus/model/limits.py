"""The bounds of the values in a description, and the texts that refuse a value beyond them.

The texts are Azure's where they are known (semantics A §5.3); the others follow their form.
"""

from typing import Final

from postbus.errors import InvalidArgument, NotSupported
from postbus.model.times import TICKS_PER_MS, format_timespan

LOCK_DURATION_MIN_MS: Final = 5_000
LOCK_DURATION_MAX_MS: Final = 5 * 60_000
DEFAULT_TTL_MIN_MS: Final = 1_000
AUTO_DELETE_MIN_MS: Final = 5 * 60_000
DUPLICATE_WINDOW_MIN_MS: Final = 20_000
DUPLICATE_WINDOW_MAX_MS: Final = 7 * 24 * 3_600_000
# R-PART-10
SIZES_MB: Final = (1_024, 2_048, 3_072, 4_096, 5_120)
# R-PAIR-02 asks for the largest 32-bit number; R-DLQ-07: it cannot be switched off.
MAX_DELIVERY_COUNT_MAX: Final = 2**31 - 1
MESSAGE_SIZE_MIN_KB: Final = 1_024
"""The least that an entity may choose for itself; the setting for all others may be smaller."""
MESSAGE_SIZE_MAX_KB: Final = 102_400
BATCH_SIZE_MAX: Final = 1_024 * 1_024
"""Bytes of a batch, however large one message may be (`com.microsoft:max-message-batch-size`)."""
FEW_HEADER_BYTES: Final = 65_536
"""Headers of up to so many bytes may hold any number of values."""
HEADER_VALUES_MAX: Final = 32_768
"""Values in larger headers, which a setting may allow: reading them holds up other work."""
RETENTION_MAX_HOURS: Final = 87_600
RETENTION_MAX_MB: Final = 1_048_576


def check_lock_duration(lock_duration_ms: int) -> None:
    if lock_duration_ms > LOCK_DURATION_MAX_MS:
        raise InvalidArgument(
            "The supplied lock time exceeds the allowed maximum of "
            f"'{LOCK_DURATION_MAX_MS // 60_000}' minutes."
            + _parameter("LockDuration", lock_duration_ms)
        )
    if lock_duration_ms < LOCK_DURATION_MIN_MS:
        raise InvalidArgument(
            "The supplied lock time is below the allowed minimum of '5' seconds."
            + _parameter("LockDuration", lock_duration_ms)
        )


def check_default_ttl(ttl_ms: int | None) -> None:
    if ttl_ms is not None and ttl_ms < DEFAULT_TTL_MIN_MS:
        raise InvalidArgument(
            "The supplied time to live is below the allowed minimum of '1' second."
            + _parameter("DefaultMessageTimeToLive", ttl_ms)
        )


def check_auto_delete(idle_ms: int | None) -> None:
    if idle_ms is not None and idle_ms < AUTO_DELETE_MIN_MS:
        raise InvalidArgument(
            "The supplied idle time is below the allowed minimum of '5' minutes."
            + _parameter("AutoDeleteOnIdle", idle_ms)
        )


def check_duplicate_window(window_ms: int) -> None:
    if not DUPLICATE_WINDOW_MIN_MS <= window_ms <= DUPLICATE_WINDOW_MAX_MS:
        raise InvalidArgument(
            "The value supplied must be between 00:00:20 and 7.00:00:00."
            + _parameter("DuplicateDetectionHistoryTimeWindow", window_ms)
        )


def check_express(enable_express: bool, finds_duplicates: bool) -> None:
    # A message that is not written at once may be forgotten, and so may its id (semantics A §5.3).
    if enable_express and finds_duplicates:
        raise InvalidArgument(
            "The property 'EnableExpress' (DelayedPersistence) cannot be 'true' where the property "
            "'RequiresDuplicateDetection' is 'true'."
        )


def check_size(max_size_mb: int) -> None:
    """Of an entity, or of each fragment of a partitioned one."""
    if max_size_mb not in SIZES_MB:
        raise InvalidArgument(
            f"The specified value {max_size_mb} is invalid. The property 'MaxSizeInMegabytes', "
            f"must be one of the following values: {';'.join(map(str, SIZES_MB))}."
        )


def check_retention(hours: int | None, megabytes: int | None) -> None:
    """None: the broker's setting."""
    if hours is not None:
        _check_range("RetentionInHours", hours, 0, RETENTION_MAX_HOURS)
    if megabytes is not None:
        _check_range("RetentionInMegabytes", megabytes, 0, RETENTION_MAX_MB)


def check_max_delivery_count(count: int) -> None:
    _check_range("MaxDeliveryCount", count, 1, MAX_DELIVERY_COUNT_MAX)


def check_message_size(max_message_size_kb: int) -> None:
    _check_range("MaxMessageSizeInKilobytes", max_message_size_kb, 1, MESSAGE_SIZE_MAX_KB)


def check_chosen_message_size(size_kb: int, *known_kb: int) -> None:
    """In the range of Azure's Premium tier, or equal to a known size here."""
    if size_kb not in known_kb:
        lowest, highest = MESSAGE_SIZE_MIN_KB, MESSAGE_SIZE_MAX_KB
        _check_range("MaxMessageSizeInKilobytes", size_kb, lowest, highest)


def check_session_forward(requires_session: bool, forward_to: str | None) -> None:
    # Forwarding holds no session (semantics A §5.2); dead letters are in none.
    if requires_session and forward_to is not None:
        raise InvalidArgument(
            "The property 'ForwardTo' cannot be set on an entity whose property 'RequiresSession' "
            "is 'true'."
        )


def check_partitioned_forward(partitioned: bool, *forward_to: str | None) -> None:
    """Raise NotSupported for a partitioned entity that forwards."""
    if partitioned and any(forward_to):
        raise NotSupported(
            "The properties 'ForwardTo' and 'ForwardDeadLetteredMessagesTo' cannot be set here: "
            "Postbus does not support forwarding from or to partitioned entities yet."
        )


def _check_range(name: str, value: int, lowest: int, highest: int) -> None:
    if not lowest <= value <= highest:
        raise InvalidArgument(
            f"The value '{value}' of the property '{name}' must be between {lowest} and {highest}."
        )


def _parameter(name: str, value_ms: int) -> str:
    # Azure appends these two lines to every range error of a duration (semantics A §5.3).
    actual = format_timespan(value_ms * TICKS_PER_MS)
    return f"\r\nParameter name: {name}\r\nActual value was {actual}."
