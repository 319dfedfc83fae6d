"""The kinds of records, and the table of their meanings.

The ledger, replay, the change feed, the meters and the Spark reader all read this table. A new kind
is a new number in `RecordKind`, a row in `MEANINGS`, and the decision that writes it.
"""

from enum import Enum, IntEnum
from typing import Final, NamedTuple


class RecordKind(IntEnum):
    """The event of a record. The numbers are part of the stored format; never reuse a number."""

    ENQUEUED = 1
    SCHEDULED = 2
    ACTIVATED = 3
    COMPLETED = 4
    RECEIVED = 5
    """A receive-and-delete removed the message."""
    ABANDONED = 6
    LOCK_EXPIRED = 7
    DEFERRED = 8
    DEAD_LETTERED = 9
    EXPIRED = 10
    """The time to live ran out, and the message was dropped."""
    CANCELLED = 11
    DELETED = 12
    """A batch delete removed the message."""
    COPIED = 13
    """Only the body moved, so that an old batch can be trimmed."""
    PUBLISHED = 14
    """A topic took a message. The same commit has all copies, so the topic keeps nothing."""
    STAGED = 15
    """A topic took a message whose copies follow in later commits."""
    DISTRIBUTED = 16
    """A subscription got its copy of a message. The body is the topic's."""
    ADVANCED = 17
    """Some more subscriptions have their copies."""
    SPREAD = 18
    """All subscriptions have their copies, and the topic drops the message."""
    REPLACED = 19
    """As COPIED, for another copy of the same message, which uses the body just copied."""
    DIVERTED = 20
    """The message entered the outbox to the entity that this entity forwards to."""
    FORWARDED = 21
    """The message arrived at its destination, and is gone from this entity."""
    ARRIVED = 22
    """The message came from an entity that forwards to this entity."""
    STATE_SET = 23
    """A session has a new state, which is the body. Its former state was cleared just before."""
    STATE_CLEARED = 24
    """A session's state is gone."""
    DUPLICATE = 25
    """The message id was known already, so the message was accepted and dropped. The record has a
    number and no body."""
    POSTED = 26
    """Sent through this entity, for another entity (`postbus.broker.send_via`)."""
    PUT_BACK = 27
    """A message that was just removed is back where it was: its receiver had gone by then. After
    RESUBMITTED, a dead letter is back in its queue."""
    RESUBMITTED = 28
    """The message left a dead-letter queue to be sent again. The next record brings it in anew."""
    PINGED = 29
    """A ping was accepted (R-PAIR-07). The record has a number and no body, and nothing is kept."""


class Effect(Enum):
    """The effect of a record on the lanes of its fragment."""

    ADDS = "adds"
    """The message comes into the lane that the record names."""
    CHANGES = "changes"
    """The message has new fields. It moves if the record names another lane as its former lane."""
    REMOVES = "removes"
    """The message leaves the fragment for good."""
    NOTHING = "nothing"
    """The fragment keeps nothing of the message in its lanes."""


class Meaning(NamedTuple):
    """A row of the table: everything that a reader of records has to know about a kind."""

    effect: Effect
    operation: str | None
    """The name in the change feed. None for housekeeping: nothing happened to the message, so the
    record has an offset like any other, and is no event."""
    has_body: bool = False
    """The record ends with the body. A record of another kind says where the body lies."""
    brings_id: bool = False
    """Duplicate detection knows the message id from this record on. POSTED does not count: the id
    counts at the destination. PUT_BACK does not count: the id counted when the message came."""
    notes_origin: bool = False
    """The record may come from an outbox that forwards here. The outbox has then sent everything up
    to the number in the record."""
    meters: tuple[str, ...] = ()
    """The fields of `EntityMeter` that count this kind."""


DEAD_LETTER_METER: Final = "dead_letters"
"""The meter that counts by reason, and not by kind alone."""

MEANINGS: Final[dict[RecordKind, Meaning]] = {
    RecordKind.ENQUEUED: Meaning(
        Effect.ADDS, "enqueued", has_body=True, brings_id=True, meters=("sends",)
    ),
    RecordKind.SCHEDULED: Meaning(
        Effect.ADDS, "scheduled", has_body=True, brings_id=True, meters=("sends", "schedules")
    ),
    RecordKind.ACTIVATED: Meaning(Effect.CHANGES, "activated"),
    RecordKind.COMPLETED: Meaning(Effect.REMOVES, "completed", meters=("completions",)),
    RecordKind.RECEIVED: Meaning(Effect.REMOVES, "received"),
    RecordKind.ABANDONED: Meaning(Effect.CHANGES, "abandoned", meters=("abandons",)),
    RecordKind.LOCK_EXPIRED: Meaning(Effect.CHANGES, "lock-expired", meters=("lock_losses",)),
    RecordKind.DEFERRED: Meaning(Effect.CHANGES, "deferred", meters=("deferrals",)),
    RecordKind.DEAD_LETTERED: Meaning(Effect.CHANGES, "dead-lettered", meters=(DEAD_LETTER_METER,)),
    RecordKind.EXPIRED: Meaning(Effect.REMOVES, "expired", meters=("expirations",)),
    RecordKind.CANCELLED: Meaning(Effect.REMOVES, "cancelled", meters=("cancellations",)),
    RecordKind.DELETED: Meaning(Effect.REMOVES, "deleted", meters=("deletions",)),
    RecordKind.COPIED: Meaning(Effect.CHANGES, None, has_body=True),
    RecordKind.PUBLISHED: Meaning(
        Effect.NOTHING, "published", has_body=True, brings_id=True, meters=("sends",)
    ),
    RecordKind.STAGED: Meaning(
        Effect.ADDS, "staged", has_body=True, brings_id=True, meters=("sends",)
    ),
    RecordKind.DISTRIBUTED: Meaning(Effect.ADDS, "distributed", meters=("copies",)),
    RecordKind.ADVANCED: Meaning(Effect.CHANGES, "advanced"),
    RecordKind.SPREAD: Meaning(Effect.REMOVES, "spread"),
    RecordKind.REPLACED: Meaning(Effect.CHANGES, None),
    RecordKind.DIVERTED: Meaning(Effect.CHANGES, "diverted"),
    RecordKind.FORWARDED: Meaning(Effect.REMOVES, "forwarded", meters=("forwards",)),
    RecordKind.ARRIVED: Meaning(
        Effect.ADDS,
        "arrived",
        has_body=True,
        brings_id=True,
        notes_origin=True,
        meters=("arrivals",),
    ),
    RecordKind.STATE_SET: Meaning(Effect.ADDS, "session-state-set", has_body=True),
    RecordKind.STATE_CLEARED: Meaning(Effect.REMOVES, "session-state-cleared"),
    RecordKind.DUPLICATE: Meaning(
        Effect.NOTHING, "duplicate", notes_origin=True, meters=("duplicates",)
    ),
    RecordKind.POSTED: Meaning(Effect.ADDS, "posted", has_body=True),
    RecordKind.PUT_BACK: Meaning(Effect.ADDS, "put-back", has_body=True),
    RecordKind.RESUBMITTED: Meaning(Effect.REMOVES, "resubmitted", meters=("resubmissions",)),
    RecordKind.PINGED: Meaning(Effect.NOTHING, None, meters=("pings",)),
}

BRINGS_BODY: Final = frozenset(kind for kind, meaning in MEANINGS.items() if meaning.has_body)
OPERATIONS: Final[dict[RecordKind, str]] = {
    kind: meaning.operation for kind, meaning in MEANINGS.items() if meaning.operation is not None
}
"""The events of the change feed: all kinds but housekeeping, with their names."""
