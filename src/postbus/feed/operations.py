"""What the change feed calls the things that happen to a message: one name for each record kind."""

from typing import Final

from postbus.broker.records import Kind

HOUSEKEEPING: Final = frozenset({Kind.COPIED, Kind.REPLACED})
"""Nothing happened to the message, only its body moved: these records have offsets like all
others, and are no events."""

OPERATIONS: Final[dict[Kind, str]] = {
    Kind.ENQUEUED: "enqueued",
    Kind.SCHEDULED: "scheduled",
    Kind.ACTIVATED: "activated",
    Kind.COMPLETED: "completed",
    Kind.RECEIVED: "received",
    Kind.ABANDONED: "abandoned",
    Kind.LOCK_EXPIRED: "lock-expired",
    Kind.DEFERRED: "deferred",
    Kind.DEAD_LETTERED: "dead-lettered",
    Kind.EXPIRED: "expired",
    Kind.CANCELLED: "cancelled",
    Kind.DELETED: "deleted",
    Kind.PUBLISHED: "published",
    Kind.STAGED: "staged",
    Kind.DISTRIBUTED: "distributed",
    Kind.ADVANCED: "advanced",
    Kind.SPREAD: "spread",
    Kind.DIVERTED: "diverted",
    Kind.FORWARDED: "forwarded",
    Kind.ARRIVED: "arrived",
    Kind.STATE_SET: "session-state-set",
    Kind.STATE_CLEARED: "session-state-cleared",
    Kind.DUPLICATE: "duplicate",
    Kind.POSTED: "posted",
    Kind.PUT_BACK: "put-back",
    Kind.RESUBMITTED: "resubmitted",
}
