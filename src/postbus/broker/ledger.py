"""The durable state of a fragment: journal records out, the same records in again.

Decisions are made elsewhere. Every lasting change is made here, by a record. Live traffic writes
the record and applies it; recovery applies it through the same methods.
"""

import struct
from typing import Final, NamedTuple

from postbus.broker import records
from postbus.broker.bloom import digest_of
from postbus.broker.delta import Delta
from postbus.broker.duplicate_history import NO_SEGMENTS, History, check_none
from postbus.broker.message import (
    ACTIVE,
    PUBLISHING,
    CorruptRow,
    Message,
    has_extras,
)
from postbus.broker.record_kinds import MEANINGS, Effect, RecordKind
from postbus.broker.records import Record
from postbus.model.index_rows import Checkpoint
from postbus.model.times import Instant

_STATE_VERSION: Final = 3
_STATE = struct.Struct("<HQQII")
_COUNT = struct.Struct("<IHQ")
_MARK = struct.Struct("<QQ")


class Layout(NamedTuple):
    """How a store frames records in a batch, so that a body's place is known when written."""

    header_size: int
    prefix_size: int


class Ledger:
    """Emits records, applies them, and sums them up in checkpoints."""

    __slots__ = (
        "_at",
        "_frozen_bytes",
        "_layout",
        "_next",
        "bytes_since_checkpoint",
        "checkpoint",
        "counts",
        "delta",
        "durable",
        "first_number",
        "head",
        "history",
        "marks",
        "outdated",
        "pending",
        "size_bytes",
    )

    def __init__(
        self,
        layout: Layout,
        first_number: int,
        head: int,
        state: bytes,
        history: History | None = None,
    ) -> None:
        self._layout = layout
        self.first_number = first_number
        """Sequence numbers are `fragment index << 48 | n` (semantics B §9)."""
        self._next = 1
        self.head = head
        """Offset of the next record that will be written."""
        self.durable = head
        """Offset after the newest record that is known to be durable."""
        self.checkpoint = head
        self.counts: dict[tuple[int, int], int] = {}
        self.size_bytes = 0
        self.marks: dict[int, int] = {}
        """The last number that arrived from each outbox that forwards to this fragment."""
        self.outdated: set[int] = set()
        """Outboxes that are gone for good: the next checkpoint leaves their marks out."""
        self.history = history
        """The ids that were seen, with duplicate detection; mostly None."""
        self.delta = Delta()
        self.pending: list[bytes] = []
        self.bytes_since_checkpoint = 0
        self._frozen_bytes = 0
        """The share of these bytes that the checkpoint under way sums up."""
        self._at = layout.header_size
        if state:
            self._restore(state)

    # -- live: write the record and apply it ------------------------------------------------

    def next_number(self) -> int:
        number = self.first_number + self._next
        self._next += 1
        return number

    @property
    def last_number(self) -> int:
        """The latest that was given away."""
        return self.first_number + self._next - 1

    def add(self, kind: RecordKind, message: Message, body: bytes) -> None:
        """A message comes in, with its body."""
        if kind is RecordKind.PUT_BACK:
            message.weigh()  # all others come with nothing but their bodies
        self._write_body(kind, message, body)
        self._added(message)

    def pass_on(self, message: Message, body: bytes) -> None:
        """A message comes in that only its copies are kept of; they are written next."""
        self._write_body(RecordKind.PUBLISHED, message, body)

    def place(self, message: Message) -> None:
        """Add a copy of a message whose body is written already."""
        message.weigh()
        self._emit(
            message,
            records.encode(
                RecordKind.DISTRIBUTED, message, message.subqueue, message.lane, message.number
            ),
        )
        self._added(message)

    def arrive(self, message: Message, body: bytes) -> None:
        """A forwarded message comes in. Its mark says so if the source sends the message again."""
        assert message.trail is not None
        message.weigh()
        self._write_body(RecordKind.ARRIVED, message, body)
        self.marks[message.trail.origin] = message.trail.origin_number
        self._added(message)

    def drop(self, message: Message) -> None:
        """A message with a known id was accepted: only its record is kept."""
        self._emit(
            message,
            records.encode(
                RecordKind.DUPLICATE, message, message.subqueue, message.lane, message.number
            ),
        )
        if message.trail is not None:
            self.marks[message.trail.origin] = message.trail.origin_number

    def ping(self, message: Message) -> None:
        """A ping was accepted: its answer waits for the commit of this record."""
        number = message.number
        record = records.encode(RecordKind.PINGED, message, message.subqueue, ACTIVE, number)
        self._emit(message, record)

    def _write_body(self, kind: RecordKind, message: Message, body: bytes) -> None:
        record = records.encode_with_body(kind, message, body)
        message.base = self.head
        message.position = self._at + self._layout.prefix_size + len(record) - len(body)
        self._emit(message, record)

    def remove(self, kind: RecordKind, message: Message) -> None:
        """A message goes for good."""
        self._emit(
            message, records.encode(kind, message, message.subqueue, message.lane, message.number)
        )
        self._removed(message, message.subqueue, message.lane, message.number, message.indexed)

    def move(
        self, kind: RecordKind, message: Message, subqueue: int, lane: int, number: int
    ) -> None:
        """A message changes place; its other fields are as they shall be already."""
        from_subqueue, from_lane, from_number = message.subqueue, message.lane, message.number
        assert (subqueue, lane, number) != (from_subqueue, from_lane, from_number)
        if number != from_number:
            message.keep_first_number()
        message.subqueue, message.lane, message.number = subqueue, lane, number
        _weigh(message)
        self._emit(message, records.encode(kind, message, from_subqueue, from_lane, from_number))
        self._removed(message, from_subqueue, from_lane, from_number, message.indexed)
        # The index does not have the message in its new lane, which is never its old lane.
        message.indexed = False
        self._added(message)

    def change(self, kind: RecordKind, message: Message) -> None:
        """A message stays in its place with other fields."""
        _weigh(message)
        self._emit(
            message, records.encode(kind, message, message.subqueue, message.lane, message.number)
        )
        self._changed(message)

    def copy(self, message: Message, body: bytes) -> None:
        """Write the body into a new batch, so that the old batch can be trimmed."""
        self._write_body(RecordKind.COPIED, message, body)
        self._changed(message)

    def _emit(self, message: Message, record: bytes) -> None:
        message.last_base = self.head
        self.pending.append(record)
        self.bytes_since_checkpoint += len(record)
        self._at += self._layout.prefix_size + len(record)

    # -- both: the effect of a record --------------------------------------------------------

    def _added(self, message: Message) -> None:
        place = message.subqueue, message.lane
        self.counts[place] = self.counts.get(place, 0) + 1
        self.size_bytes += message.charge
        self.delta.put(message)

    def _changed(self, message: Message) -> None:
        self.size_bytes += message.charge - _counted(message)
        self.delta.put(message)

    def _removed(
        self, message: Message, subqueue: int, lane: int, number: int, indexed: bool
    ) -> None:
        place = subqueue, lane
        left = self.counts[place] - 1
        if left:
            self.counts[place] = left
        else:
            del self.counts[place]  # subscriptions come and go, and their numbers with them
        self.size_bytes -= _counted(message)
        self.delta.remove(subqueue, lane, number, indexed, message.session_id)

    # -- recovery ----------------------------------------------------------------------------

    def replay(self, record: Record, base: int, position: int, at: Instant) -> None:
        """Apply one stored record; `position` is where it starts in the batch at `base`, which was
        committed at `at`."""
        meaning, message = MEANINGS[record.kind], record.message
        number = message.number - self.first_number
        if not 0 < number < 1 << 48:
            raise CorruptRow(f"message {message.number} is not of this fragment")
        if self.history is not None and meaning.brings_id and message.message_id:
            self.history.note(digest_of(message.message_id), at)
        self._next = max(self._next, number + 1)
        if meaning.has_body:
            message.base, message.position = base, position + record.body_at
        if meaning.notes_origin and message.trail is not None:
            self.marks[message.trail.origin] = message.trail.origin_number
        effect = meaning.effect
        if effect is Effect.NOTHING:
            return
        # Replay does not know whether the index has the message, so the index must forget it.
        if effect is Effect.REMOVES:
            self._removed(message, message.subqueue, message.lane, message.number, True)
            return
        message.indexed = True
        if effect is Effect.ADDS:
            self._added(message)
        elif (record.from_subqueue, record.from_lane, record.from_number) == (
            message.subqueue,
            message.lane,
            message.number,
        ):
            self._changed(message)
        else:
            self._removed(message, record.from_subqueue, record.from_lane, record.from_number, True)
            self._added(message)

    # -- commit and checkpoint ---------------------------------------------------------------

    def seal(self) -> list[bytes]:
        """Close the batch: these records are on their way to the store, later records follow."""
        records, self.pending = self.pending, []
        self.head += len(records)
        self._at = self._layout.header_size
        return records

    def committed(self, end: int) -> None:
        """The store has all records below this offset."""
        self.durable = end

    def is_durable(self, message: Message) -> bool:
        """Has the store everything that happened to the message? A batch is durable as a whole."""
        return message.last_base < self.durable

    def make_checkpoint(self) -> Checkpoint:
        """Freeze and sum up everything until now, pending records included. The commit that has
        them must bring it to the store; until `checkpointed` there is no second one."""
        # Marks are removed only here, so that removing them needs no record. A replay begins with a
        # state that lacks them, or ends with a state that still has them.
        for origin in self.outdated:
            self.marks.pop(origin, None)
        self.outdated.clear()
        seen = None if self.history is None else self.history.flush()
        made = Checkpoint(
            self.head + len(self.pending),
            self.delta.rows(),
            self.delta.removed(),
            self._state(),
            seen,
        )
        self.delta.freeze()
        self._frozen_bytes = self.bytes_since_checkpoint
        return made

    def checkpointed(self, checkpoint: Checkpoint) -> None:
        """The index stands at the checkpoint that was made last."""
        self.checkpoint = checkpoint.offset
        self.bytes_since_checkpoint -= self._frozen_bytes
        self.delta.thaw()
        if self.history is not None:
            self.history.flushed()

    def checkpoint_failed(self) -> None:
        """The store did not take the checkpoint that was made last, nor any record with it."""
        self.delta.unfreeze()
        if self.history is not None:
            self.history.unflush()

    def count(self, subqueue: int, lane: int = ACTIVE) -> int:
        return self.counts.get((subqueue, lane), 0)

    def _state(self) -> bytes:
        counts = [(place, n) for place, n in self.counts.items() if n]
        return b"".join(
            (
                _STATE.pack(
                    _STATE_VERSION, self._next, self.size_bytes, len(counts), len(self.marks)
                ),
                *(_COUNT.pack(subqueue, lane, n) for (subqueue, lane), n in counts),
                *(_MARK.pack(origin, number) for origin, number in self.marks.items()),
                NO_SEGMENTS if self.history is None else self.history.state(),
            )
        )

    def _restore(self, state: bytes) -> None:
        version, self._next, self.size_bytes, places, marks = _STATE.unpack_from(state)
        if version != _STATE_VERSION:
            raise CorruptRow(f"engine state of version {version}, {_STATE_VERSION} is known")
        at = _STATE.size
        for _ in range(places):
            subqueue, lane, n = _COUNT.unpack_from(state, at)
            self.counts[(subqueue, lane)] = n
            at += _COUNT.size
        for _ in range(marks):
            origin, number = _MARK.unpack_from(state, at)
            self.marks[origin] = number
            at += _MARK.size
        if self.history is None:
            check_none(state, at)
        else:
            self.history.restore(state, at)


def _weigh(message: Message) -> None:
    """Count a stored message again with everything that was put on it, on every path that changes
    it. The record carries its size until now, which a replay cannot find elsewhere."""
    if message.lane == PUBLISHING or not has_extras(message):
        return
    counted = message.charge
    message.weigh()
    if message.trail is not None and message.trail.size != counted:
        message.trail.former_size = counted


def _counted(message: Message) -> int:
    """The bytes that a message has been counted with until now. Asked once for each record."""
    trail = message.trail
    if trail is None or not trail.former_size:
        return message.charge
    former, trail.former_size = trail.former_size, 0
    return former
