"""The frames of a store, written one after another into segments.

A commit is a frame, with the batches of all its fragments. It is durable when the writer has synced
it and all frames before it. Only then its batches are added to the locations.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from postbus.store.log.blocks import Place, Run
from postbus.store.log.directory import directory_size, pack_directory
from postbus.store.log.format import FRAME_HEADER_SIZE, frame_size, pack_frame
from postbus.store.log.locations import Locations
from postbus.store.log.recovery import Recovery
from postbus.store.log.segment_writer import SegmentWriter, WriteFailed
from postbus.store.log.segments import Segment, Segments
from postbus.store.ports.journal import Part

SEALED_BATCHES_MAX: Final = 1 << 20
"""Batches in a segment; each has 28 bytes in memory until the segment is sealed."""


class CommitLog:
    """`append` is for any thread that holds the lock of the locations, `collect` for any thread;
    the rest is for the thread of the store."""

    def __init__(
        self,
        segments: Segments,
        locations: Locations,
        recovery: Recovery,
        writer: SegmentWriter,
        want_spare: Callable[[], None],
    ) -> None:
        self._segments = segments
        self._locations = locations
        self._writer = writer
        self._want_spare = want_spare
        self.generation = recovery.generation + 1
        self.next_sequence = recovery.end_sequence
        self.durable = recovery.end_sequence - 1
        """The highest sequence that is known to be durable."""
        self._active: Segment | None = None
        self._active_fragments: set[int] = set()
        self._active_batches = 0
        self._has_asked = False
        """For a spare, since the segment began."""
        self._runs = recovery.of_segment
        """The runs of each segment that is not sealed, by fragment."""
        self._unsealed = [segments.by_number[number] for number in sorted(self._runs)]
        self._pending: deque[tuple[int, list[tuple[int, Place]]]] = deque()
        """Batches of frames under way, by their sequence."""

    def begin_segment(self, size: int = 0) -> None:
        """Go on in a new segment, with room for at least so many bytes of frames. Raises OSError
        and NamesFailed; then all is as before."""
        size += FRAME_HEADER_SIZE + directory_size(1, 1)
        self._active = self._segments.create(self.generation, self.next_sequence, size)
        self._active_fragments = set()
        self._active_batches = 0
        self._has_asked = False
        self._unsealed.append(self._active)
        self._runs[self._active.number] = {}

    def end_segment(self) -> None:
        """The next frame begins a new segment."""
        self._active = None

    def append(self, parts: Sequence[Part]) -> int:
        """Submit a frame of these parts; returns its sequence. Raises as `begin_segment` does, and
        then nothing was submitted."""
        batches = [part.batch for part in parts]
        size = frame_size(sum(map(len, batches)))
        fragments = {part.lease.fragment for part in parts}
        segment = self._with_room(size, fragments)
        assert segment.file is not None
        sequence = self.next_sequence
        pieces = pack_frame(segment.header, segment.seed, sequence, self.durable, batches)
        places: list[tuple[int, Place]] = []
        position = segment.end + FRAME_HEADER_SIZE
        for part in parts:
            length = len(part.batch)
            place = Place(part.base, part.count, part.at, segment.number, position, length)
            places.append((part.lease.fragment, place))
            position += length
        self._submit(sequence, segment.file, segment.end, pieces)
        self._pending.append((sequence, places))
        self.next_sequence = sequence + 1
        segment.end += size
        segment.end_sequence = sequence + 1
        self._active_fragments |= fragments
        self._active_batches += len(parts)
        if not self._has_asked and 2 * segment.end > segment.capacity:
            self._has_asked = True
            self._want_spare()
        return sequence

    def _submit(self, sequence: int, file: int, position: int, pieces: Sequence[bytes]) -> None:
        try:
            self._writer.submit(sequence, file, position, pieces)
        except BlockingIOError:
            # Too much is under way. It has to become less before more is taken.
            self._writer.wait(sequence - 1)
            self._writer.submit(sequence, file, position, pieces)

    def _with_room(self, size: int, fragments: set[int]) -> Segment:
        if self._active is not None:
            count = self._active_batches + len(fragments)
            directory = directory_size(count, len(self._active_fragments | fragments))
            end = self._active.end + size + directory
            if end <= self._active.capacity and count <= SEALED_BATCHES_MAX:
                return self._active
        self.begin_segment(size + directory_size(len(fragments), len(fragments)))
        assert self._active is not None
        return self._active

    def wait(self, sequence: int) -> None:
        """Until the frame is durable, and can be read. Raises WriteFailed."""
        if sequence > self.durable:
            try:
                self._writer.wait(sequence)
            except WriteFailed:
                if self._writer.durable < sequence:
                    raise
            self.publish(sequence)

    def fileno(self) -> int:
        return self._writer.fileno()

    def collect(self) -> int:
        """The highest sequence that is durable by now, without waiting. Raises WriteFailed."""
        self.publish(self._writer.collect())
        return self.durable

    def publish(self, durable: int) -> None:
        """All frames up to this one are durable: add their batches to the locations."""
        with self._locations.lock:
            while self._pending and self._pending[0][0] <= durable:
                sequence, places = self._pending.popleft()
                for fragment, place in places:
                    run = self._locations.add(fragment, sequence, place)
                    if run is not None:
                        self._runs[place.segment][fragment] = run
            self.durable = max(self.durable, durable)

    def is_under_way(self, fragment: int, base: int) -> bool:
        """Is a batch of this fragment and base under way?"""
        return any(
            number == fragment and place.base == base
            for _, places in self._pending
            for number, place in places
        )

    def full_segments(self) -> list[Segment]:
        """Segments that can be sealed, in order: no frame is added any more, and all are durable.
        A segment is sealed after all before it, or not at all."""
        found: list[Segment] = []
        for segment in self._unsealed:
            if segment is self._active or segment.end_sequence - 1 > self.durable:
                break
            found.append(segment)
        return found

    def write_directory(self, segment: Segment) -> int:
        """Returns where it ends. Raises OSError; it can be repeated."""
        runs = self._kept_runs(segment)
        pieces = pack_directory(segment.seed, segment.end, runs)
        self._segments.write(segment.number, segment.end, pieces)
        return segment.end + sum(map(len, pieces))

    def sealed(self, segment: Segment) -> None:
        """The index knows the directory: its blocks need not be in memory."""
        with self._locations.lock:
            for run in self._runs.pop(segment.number).values():
                run.block = None
            self._unsealed.remove(segment)
            segment.is_sealed, segment.is_written = True, False

    def _kept_runs(self, segment: Segment) -> dict[int, Run]:
        """Without fragments that were dropped meanwhile, and those that are out of retention."""
        fragments = self._locations.fragments
        return {
            number: run
            for number, run in self._runs[segment.number].items()
            if number in fragments and run in fragments[number].runs
        }

    def recyclable(self) -> list[int]:
        """Sealed segments in which nothing can be read."""
        return [
            number
            for number, segment in self._segments.by_number.items()
            if segment.is_sealed and not segment.visible_bytes
        ]
