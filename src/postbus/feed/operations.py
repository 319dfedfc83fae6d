"""What the change feed calls the things that happen to a message: one name for each record kind."""

from typing import Final

from postbus.broker.records import RecordKind

HOUSEKEEPING: Final = frozenset({RecordKind.COPIED, RecordKind.REPLACED})
"""Nothing happened to the message, only its body moved: these records have offsets like all
others, and are no events."""

OPERATIONS: Final[dict[RecordKind, str]] = {
    RecordKind.ENQUEUED: "enqueued",
    RecordKind.SCHEDULED: "scheduled",
    RecordKind.ACTIVATED: "activated",
    RecordKind.COMPLETED: "completed",
    RecordKind.RECEIVED: "received",
    RecordKind.ABANDONED: "abandoned",
    RecordKind.LOCK_EXPIRED: "lock-expired",
    RecordKind.DEFERRED: "deferred",
    RecordKind.DEAD_LETTERED: "dead-lettered",
    RecordKind.EXPIRED: "expired",
    RecordKind.CANCELLED: "cancelled",
    RecordKind.DELETED: "deleted",
    RecordKind.PUBLISHED: "published",
    RecordKind.STAGED: "staged",
    RecordKind.DISTRIBUTED: "distributed",
    RecordKind.ADVANCED: "advanced",
    RecordKind.SPREAD: "spread",
    RecordKind.DIVERTED: "diverted",
    RecordKind.FORWARDED: "forwarded",
    RecordKind.ARRIVED: "arrived",
    RecordKind.STATE_SET: "session-state-set",
    RecordKind.STATE_CLEARED: "session-state-cleared",
    RecordKind.DUPLICATE: "duplicate",
    RecordKind.POSTED: "posted",
    RecordKind.PUT_BACK: "put-back",
    RecordKind.RESUBMITTED: "resubmitted",
}
