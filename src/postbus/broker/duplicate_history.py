"""The ids that an entity has seen: exactly since the last checkpoint, before that by a filter.

The filter says "never seen" without a read. If the filter may have seen an id, the engine looks it
up in the store, where a checkpoint puts the ids. A segment is a stretch of time with a layer of the
filter. It is dropped as a whole when it is past the window. In the store it lies in a few parts,
written one after the other, so that the ids of a checkpoint fall on few pages.

A filter is not stored. After a start a chore reads the ids of each segment again (`next_unread`).
Until then every id may be in the segment: correct, and slower.
"""

import struct
from collections.abc import Sequence
from typing import Final

from postbus.broker.bloom import SIZE_MIN, UNFOLDED, Layer, places_of, size_for
from postbus.broker.message import CorruptRow
from postbus.model.index_rows import SeenIds
from postbus.model.times import NEVER, Instant

SEGMENT_IDS: Final = 131_072
COUNT_SHARE: Final = 4
TIME_SHARE: Final = 8
"""A segment ends with 1/COUNT_SHARE of all ids, but not below SEGMENT_IDS, or when it has lasted
1/TIME_SHARE of the window. So a message is compared with about eight layers."""
PART_IDS: Final = 32_768
PARTS: Final = 8
"""A segment lies in the store in about so many parts, or fewer if they would be small. Digests come
in no order, so the digests of a checkpoint fall on nearly all pages of their part."""
CAPACITY_MIN: Final = 1_024
FILTER_BYTES: Final = 8 << 20

_COUNT = struct.Struct("<I")
_SEGMENT = struct.Struct("<QIQQqq")


class Segment:
    """The ids of a stretch of time."""

    __slots__ = ("count", "cursor", "draft", "first_at", "last_at", "layer", "number",
                 "part_count", "parts", "parts_read", "room", "stored", "worn")  # fmt: skip

    def __init__(self, number: int) -> None:
        self.number = number
        """The number of its first part."""
        self.parts = 1
        self.part_count = 0
        """Ids in the last of them."""
        self.count = 0
        self.first_at: Instant = 0
        self.last_at: Instant = 0
        self.stored = False
        """Does the store have ids of it?"""
        self.layer: Layer | None = None
        """None until the ids of the segment have been read."""
        self.draft: Layer | None = None
        """The layer that its ids are being read into."""
        self.parts_read = 0
        self.cursor = b""
        """The last digest that was read of the part after the parts already read."""
        self.room = 0
        """Ids that its layer has room for before it must grow."""
        self.worn = False
        """Its layer was made larger than it was: it is worth reading again."""

    @property
    def next_number(self) -> int:
        """The number of the first part that is not its own."""
        return self.number + self.parts

    @property
    def all_parts(self) -> range:
        """The numbers of its parts."""
        return range(self.number, self.next_number)


class History:
    """The ids of one entity, within bounded memory."""

    __slots__ = ("_bytes_max", "_ends_at", "_flushed", "_parts_before", "_since", "recent",
                 "segments", "window_ms")  # fmt: skip

    def __init__(self, window_ms: int, bytes_max: int = FILTER_BYTES) -> None:
        self.window_ms = window_ms
        """An id counts as seen for so long, from when it was first seen."""
        self._bytes_max = bytes_max
        self.recent: dict[bytes, Instant] = {}
        """When the ids since the last checkpoint were seen. All are of the last segment, or of the
        last but one while a checkpoint is under way."""
        self._since: dict[bytes, Instant] | None = None
        """The ids since the checkpoint that is under way was made; None without it."""
        self.segments: list[Segment] = [Segment(1)]
        """Oldest first; new ids go into the last segment."""
        self._flushed: Segment | None = None
        self._parts_before = 1, 0
        """Parts of that segment before the flush, and ids in the last of them."""
        self._ends_at: Instant = NEVER
        """No segment is past the window before."""

    @property
    def filter_bytes(self) -> int:
        """The memory that the filter takes."""
        return sum(layer.size for layer in self._layers())

    @property
    def count(self) -> int:
        return sum(segment.count for segment in self.segments)

    # -- looking up and noting ids -----------------------------------------------------------

    def segments_of(self, digest: bytes, since: Instant) -> list[Segment]:
        """The segments in the store that may have seen it after a time. Mostly none."""
        first, step = places_of(digest)
        found: list[Segment] = []
        for segment in self.segments:
            if not segment.stored or segment.last_at <= since:
                continue
            layer = segment.layer
            if layer is not None:
                # Tested here and not in the layer: the first position rules out most layers, and
                # there are a dozen layers for each message.
                at = first & layer.mask
                if not layer.bits[at >> 3] >> (at & 7) & 1 or not layer.may_have(first, step):
                    continue
            found.append(segment)
        return found

    def note(self, digest: bytes, now: Instant) -> None:
        """An id is seen now, for the first time within the window."""
        segment = self.segments[-1]
        if segment.stored and not self.recent and segment.last_at <= now - self.window_ms:
            # The store may be removing the parts of this segment, slice by slice, so no id may go
            # there. `expire` says the same, but not every caller asks it first.
            segment = Segment(segment.next_number)
            self.segments.append(segment)
        self.recent[digest] = now
        if self._since is not None:
            self._since[digest] = now
        if not segment.count:
            segment.first_at = now
        segment.last_at = now
        segment.count += 1
        layer, draft = segment.layer, segment.draft
        if layer is None and draft is None:
            if segment.stored:
                return  # read from the store when it is its turn
            layer = segment.layer = self._new_layer(self._expected())
            segment.room = layer.capacity
        first, step = places_of(digest)
        if layer is not None:
            if segment.count > segment.room:
                self._make_room(segment, layer)
            layer.add(first, step)
        if draft is not None:
            draft.add(first, step)

    def set_window(self, window_ms: int) -> None:
        """The window was made longer or shorter. Ids that were dropped do not come back."""
        self.window_ms = window_ms
        self._ends_at = 0

    def expire(self, now: Instant) -> int:
        """Drop segments past the window; returns the number of the first part that is still
        kept."""
        if now < self._ends_at:
            return self.segments[0].number
        since = now - self.window_ms
        segments = self.segments
        while len(segments) > 1 and segments[0].last_at <= since:
            del segments[0]
        last = segments[-1]
        if len(segments) == 1 and last.stored and last.last_at <= since and not self.recent:
            segments[0] = Segment(last.next_number)
        first = segments[0]
        self._ends_at = first.last_at + self.window_ms if first.stored else NEVER
        return first.number

    # -- memory ------------------------------------------------------------------------------

    def _layers(self) -> list[Layer]:
        return [
            layer
            for segment in self.segments
            for layer in (segment.layer, segment.draft)
            if layer is not None
        ]

    def _limit(self) -> int:
        """Ids after which a segment ends."""
        return max(SEGMENT_IDS, self.count // COUNT_SHARE)

    def _expected(self) -> int:
        """Ids that the next segment will have if traffic goes on as in the last segment."""
        before = self.segments[-2].count if len(self.segments) > 1 else 0
        return self._limit() if before >= SEGMENT_IDS else max(CAPACITY_MIN, before)

    def _new_layer(self, capacity: int) -> Layer:
        """A layer that fits within the bound; the other layers give up the room they can spare."""
        size = size_for(capacity)
        layers = self._layers()
        while size > SIZE_MIN and self.filter_bytes + size > self._bytes_max:
            widest = max(
                (layer for layer in layers if layer.size > SIZE_MIN),
                key=lambda layer: layer.bytes_per_id,
                default=None,
            )
            if widest is None or widest.bytes_per_id < size / capacity:
                size //= 2
            else:
                widest.fold()
        return Layer(size, capacity)

    def _make_room(self, segment: Segment, layer: Layer) -> None:
        more = layer.size * (UNFOLDED - 1)
        if (
            layer.capacity * UNFOLDED <= self._limit()
            and self.filter_bytes + more <= self._bytes_max
        ):
            layer.unfold()
            segment.room = layer.capacity
            segment.worn = True
        else:
            segment.room = NEVER  # it gets fuller from here on

    # -- the filter, read from the store -----------------------------------------------------

    def next_unread(self) -> Segment | None:
        """A segment whose ids must be read into a layer, with the layer; None if there is none. A
        worn layer of a segment that has ended is read again, too."""
        for segment in reversed(self.segments):
            ended = segment is not self.segments[-1]
            if segment.stored and (segment.layer is None or (segment.worn and ended)):
                if segment.draft is None:
                    self._begin_reading(segment, ended)
                return segment
        return None

    def _begin_reading(self, segment: Segment, ended: bool) -> None:
        capacity = max(segment.count, CAPACITY_MIN if ended else self._expected())
        segment.draft = self._new_layer(capacity)
        segment.cursor, segment.parts_read = b"", 0
        if not ended or self._since is not None:
            # The store may place these ids behind the position that was read last.
            segment.draft.add_all(self.recent)

    def read_on(self, segment: Segment, digests: Sequence[bytes], is_last: bool) -> None:
        """Add the next digests of the store; `is_last` says whether their part ends with them."""
        draft = segment.draft
        assert draft is not None
        draft.add_all(digests)
        if is_last:
            segment.parts_read += 1
            segment.cursor = b""
        if segment.parts_read == segment.parts:
            segment.layer, segment.draft = draft, None
            segment.room = draft.capacity
            segment.worn = False
        elif not is_last:
            segment.cursor = digests[-1]

    # -- checkpoints -------------------------------------------------------------------------

    def flush(self) -> SeenIds | None:
        """The ids that the store must have with the checkpoint that is being made."""
        last = self.segments[-1]
        self._since = {}
        self._flushed = last if last.count else None
        self._parts_before = last.parts, last.part_count
        if not last.count:
            return None
        limit, seen = self._limit(), None
        if self.recent:
            if last.stored and last.part_count + len(self.recent) > max(PART_IDS, limit // PARTS):
                last.parts += 1
                last.part_count = 0
            last.part_count += len(self.recent)
            part = last.next_number - 1
            seen = SeenIds(part, list(self.recent), list(self.recent.values()))
        lasted = last.last_at - last.first_at
        if last.count >= limit or lasted >= self.window_ms // TIME_SHARE:
            self.segments.append(Segment(last.next_number))
        return seen

    def flushed(self) -> None:
        """The store has it."""
        self.recent, self._since = self._since or {}, None
        segment = self._flushed
        if segment is not None:
            segment.stored = True
            self._ends_at = min(self._ends_at, segment.last_at + self.window_ms)

    def unflush(self) -> None:
        """The store does not have it: the ids are of the last segment, as before."""
        since, self._since = self._since or {}, None
        segment, self._flushed = self._flushed, None
        if segment is None:
            return
        segment.parts, segment.part_count = self._parts_before
        if self.segments[-1] is segment:
            return
        del self.segments[-1]
        for digest, at in since.items():
            del self.recent[digest]
            self.note(digest, at)

    def state(self) -> bytes:
        """The segments, as they are with the checkpoint."""
        return _COUNT.pack(len(self.segments)) + b"".join(
            _SEGMENT.pack(
                *(each.number, each.parts, each.part_count),
                *(each.count, each.first_at, each.last_at),
            )
            for each in self.segments
        )

    def restore(self, state: bytes, at: int) -> int:
        """Go on from a checkpoint; returns where its part of the state ends."""
        segments: list[Segment] = []
        (count,) = _COUNT.unpack_from(state, at)
        at += _COUNT.size
        for _ in range(count):
            segment = Segment(0)
            (
                segment.number,
                segment.parts,
                segment.part_count,
                segment.count,
                segment.first_at,
                segment.last_at,
            ) = _SEGMENT.unpack_from(state, at)
            segment.stored = segment.count > 0
            segments.append(segment)
            at += _SEGMENT.size
        if segments:
            self.segments = segments
            self._ends_at = 0
        return at


NO_SEGMENTS: Final = _COUNT.pack(0)
"""The state of an entity that keeps no history."""


def check_none(state: bytes, at: int) -> None:
    """An entity that keeps no history has none in its state."""
    if state[at : at + _COUNT.size] != NO_SEGMENTS:
        raise CorruptRow("an entity without duplicate detection has a history of ids")
