"""The change feed of a log: read from the segments, on a thread of its own.

Where batches lie is in memory or in the directories of segments. So a reader asks SQLite nothing,
and holds back nothing but the segment that it reads at the moment.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Final

from postbus.errors import StoreFailed
from postbus.model.times import Instant
from postbus.store.batch import HEADER_SIZE, StoredBatch
from postbus.store.checks import check_within
from postbus.store.log.blocks import Place
from postbus.store.log.locations import Locations
from postbus.store.log.segments import Segments
from postbus.store.ports.journal_reader import RAW_MAX, BatchOutline, JournalView
from postbus.store.sqlite.damage import Damaged, check_batch, check_header
from postbus.store.sqlite.spare_buffers import SpareBuffers

SPARE_BUFFERS: Final = 4
"""Enough for the two slices of each of two readers, as many as two cores can serve."""
GAP_MAX: Final = 64 * 1024
"""Batches of one fragment with fewer bytes of others between them are read at once."""


class LogReader:
    """A JournalReader of a log. See `postbus.store.ports.journal_reader`."""

    own_thread = True

    def __init__(self, locations: Locations, segments: Segments) -> None:
        self._locations = locations
        self._segments = segments
        self._spare = SpareBuffers(RAW_MAX, SPARE_BUFFERS)

    def look(self, fragment: int, start: int, bytes_max: int, limit: int) -> JournalView:
        with _translated(), self._locations.lock:
            extent = self._locations.extent(fragment)
            found: list[BatchOutline] = []
            if not (extent.first <= start < extent.next and bytes_max):
                return JournalView(extent, found)
            room = bytes_max
            for place in islice(self._locations.places(fragment, start), limit):
                if found and place.length > room:
                    break
                found.append(BatchOutline(place.base, place.count, place.at, place.length))
                room -= place.length
        return JournalView(extent, found)

    def read(self, fragment: int, first: int, last: int) -> list[StoredBatch]:
        found: list[StoredBatch] = []
        with _translated(), self._held(lambda: self._between(fragment, first, last)) as places:
            for place in places:
                data = self._segments.read(place.segment, place.position, place.length)
                check_batch(fragment, place.base, place.count, data)
                found.append(StoredBatch(place.base, data))
        return found

    def read_raw(self, fragment: int, first: int, last: int) -> tuple[int, bytes | memoryview]:
        with _translated(), self._held(lambda: self._between(fragment, first, last)) as places:
            if not places:
                return 0, b""
            data = self._spare.take(sum([place.length for place in places]))
            at = 0
            for group in _neighbours(places):
                at = self._read_group(fragment, group, data, at)
        return len(places), data

    def _read_group(self, fragment: int, group: list[Place], data: memoryview, at: int) -> int:
        """Read neighbours at once, and cut out what lies between them."""
        start = group[0].position
        size = group[-1].position + group[-1].length - start
        is_dense = size == sum([place.length for place in group])
        buffer = data[at : at + size] if is_dense else memoryview(bytearray(size))
        self._fill(group[0].segment, start, buffer)
        for place in group:
            begin = place.position - start
            piece = buffer[begin : begin + place.length]
            header = bytes(piece[:HEADER_SIZE])
            check_header(fragment, place.base, place.count, header, place.length)
            if not is_dense:
                data[at : at + place.length] = piece
            at += place.length
        return at

    def _fill(self, segment: int, position: int, buffer: memoryview) -> None:
        if self._segments.read_into(segment, position, buffer) < len(buffer):
            raise Damaged(f"segment {segment} ends before the batch at {position}")

    def read_part(
        self, fragment: int, base: int, position: int, size: int
    ) -> bytes | memoryview | None:
        with _translated(), self._held(lambda: self._between(fragment, base, base)) as places:
            for place in places:
                header = self._segments.read(place.segment, place.position, HEADER_SIZE)
                check_header(fragment, base, place.count, header, place.length)
                check_within(position, size, place.length)
                data = self._spare.take(size)
                self._fill(place.segment, place.position + position, data)
                return data
        return None

    def find(self, fragment: int, at: Instant) -> int:
        with _translated():
            return self._locations.first_since(fragment, at)

    def time_of(self, fragment: int, offset: int) -> Instant | None:
        with _translated(), self._locations.lock:
            place = next(self._locations.places(fragment, offset), None)
            return None if place is None else place.at

    def close(self) -> None:
        """It holds nothing of its own."""

    def _between(self, fragment: int, first: int, last: int) -> list[Place]:
        found: list[Place] = []
        for place in self._locations.places(fragment, first):
            if place.base > last:
                break
            if place.base >= first:
                found.append(place)
        return found

    @contextmanager
    def _held(self, find: Callable[[], list[Place]]) -> Iterator[list[Place]]:
        """Batches whose segments stay while they are read."""
        with self._locations.lock:
            places = find()
            numbers = {place.segment for place in places}
            self._segments.hold(numbers)
        try:
            yield places
        finally:
            self._segments.let_go(numbers)


def _neighbours(places: list[Place]) -> Iterator[list[Place]]:
    """Groups of batches that lie close together in one segment."""
    group: list[Place] = []
    for place in places:
        if group:
            last = group[-1]
            gap = place.position - last.position - last.length
            if place.segment != last.segment or gap > GAP_MAX:
                yield group
                group = []
        group.append(place)
    if group:
        yield group


@contextmanager
def _translated() -> Iterator[None]:
    """The writer of a log finds damage, and stops. A reader only refuses the question."""
    try:
        yield
    except (OSError, Damaged) as error:
        raise StoreFailed(f"The journal cannot be read: {error}") from error
