"""The log as it is found at a start: its segments, its frames, and where it ends.

A sealed segment is known by its directory. All others are scanned. The first frame that is not
whole ends the log, for all frames behind it were under way together with it: none was answered.
If a later frame of the same generation knew it to be durable, it was whole once: that is damage.

Writing goes on in a new segment of the next generation. Its header has the sequence at which the
log ended, so frames of earlier generations from there on are void for good.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from postbus.store import batch
from postbus.store.log.blocks import Run
from postbus.store.log.directory import (
    HEAD_SIZE,
    DirectoryDamaged,
    summaries_size,
    unpack_summaries,
)
from postbus.store.log.files import Files
from postbus.store.log.format import (
    SEGMENT_HEADER_SIZE,
    NotASegment,
    unpack_segment,
)
from postbus.store.log.scan import Frame, synced_behind, whole_frames
from postbus.store.log.segments import Segment, Segments, name_of, number_of
from postbus.store.sqlite.damage import Damaged

FIRST_SEQUENCE: Final = 1
_ENDLESS: Final = 1 << 63

IsWanted = Callable[[int, int], bool]
"""Is a batch of this fragment, in the frame of this sequence, still part of a journal?"""


class SealedSegment(NamedTuple):
    """What the index knows of a sealed segment."""

    end: int
    """Position of its directory."""
    end_sequence: int


class _Scan(NamedTuple):
    """How far a segment without a directory was whole."""

    segment: Segment
    frames: list[Frame]


class Recovery:
    """Reads all segments. Afterwards `runs` has the batches of each fragment in order."""

    def __init__(
        self,
        files: Files,
        segments: Segments,
        store: bytes,
        sealed: Mapping[int, SealedSegment],
        is_wanted: IsWanted,
    ) -> None:
        self._segments = segments
        self._is_wanted = is_wanted
        self.runs: dict[int, list[Run]] = {}
        self.of_segment: dict[int, dict[int, Run]] = {}
        """The runs of each segment that is not sealed yet, by fragment."""
        self.end_sequence = FIRST_SEQUENCE
        """Of the next frame."""
        self.generation = 0
        """The highest so far."""
        self._scans: list[_Scan] = []
        headers = [self._header(files, store, number) for number in _numbers(files)]
        self._read(headers, sealed)
        self._check_claims()

    def _header(self, files: Files, store: bytes, number: int) -> Segment:
        file = files.open(name_of(number))
        try:
            header = unpack_segment(files.pread(file, SEGMENT_HEADER_SIZE, 0))
            capacity = files.size(file)
        except NotASegment as error:
            raise Damaged(f"{name_of(number)} is no segment: {error}") from error
        finally:
            files.close(file)
        if header.store != store:
            raise Damaged(f"{name_of(number)} is part of another store")
        if header.number != number:
            raise Damaged(f"{name_of(number)} was written as {name_of(header.number)}")
        segment = Segment(header, capacity)
        self._segments.add(segment)
        return segment

    def _read(self, segments: list[Segment], sealed: Mapping[int, SealedSegment]) -> None:
        # Segments are sealed in order, and the index keeps the last of them: it may be gone by now.
        expected = max((known.end_sequence for known in sealed.values()), default=None)
        for segment, limit in zip(segments, _limits(segments), strict=True):
            header = segment.header
            if header.generation < self.generation:
                raise Damaged(f"{name_of(segment.number)} is older than the segment before it")
            is_next = header.generation > self.generation
            self.generation = header.generation
            known = sealed.get(segment.number)
            if known is not None:
                self._read_sealed(segment, known)
                continue
            if expected is None:
                expected = header.first_sequence
            if header.first_sequence < expected or (is_next and header.first_sequence > expected):
                raise Damaged(
                    f"{name_of(segment.number)} begins with frame {header.first_sequence}, but the "
                    f"log before it ends at {expected}"
                )
            # A segment that begins later was begun while a frame before it was under way: its
            # frames are void.
            end = limit if header.first_sequence == expected else 0
            scan = _Scan(segment, list(whole_frames(self._segments, segment, end)))
            self._scans.append(scan)
            self._take(scan)
            expected += len(scan.frames)
            segment.end_sequence = expected
        if expected is not None:
            self.end_sequence = expected

    def _read_sealed(self, segment: Segment, known: SealedSegment) -> None:
        segment.end, segment.end_sequence = known
        try:
            runs = self._directory(segment)
        except DirectoryDamaged:
            scan = _Scan(segment, list(whole_frames(self._segments, segment, known.end_sequence)))
            if segment.header.first_sequence + len(scan.frames) < known.end_sequence:
                raise Damaged(
                    f"{name_of(segment.number)} has neither its directory nor all of its frames"
                ) from None
            self._take(scan)
            return
        segment.is_sealed = True
        for fragment, run in runs.items():
            if self._is_wanted(fragment, run.last_sequence):
                self._add(fragment, run)

    def _directory(self, segment: Segment) -> dict[int, Run]:
        head = self._segments.read(segment.number, segment.end, HEAD_SIZE)
        size = summaries_size(head)
        summaries = self._segments.read(segment.number, segment.end + HEAD_SIZE, size)
        return unpack_summaries(segment.seed, segment.number, head, summaries)

    def _take(self, scan: _Scan) -> None:
        """The batches of frames that were read one by one."""
        segment, number = scan.segment, scan.segment.number
        runs = self.of_segment[number] = {}
        for frame in scan.frames:
            sequence = frame.header.sequence
            for position, header in frame.batches:
                fragment, _, base, at, count, length = header
                if not self._is_wanted(fragment, sequence):
                    continue
                run = runs.get(fragment)
                if run is None:
                    run = runs[fragment] = Run(fragment, number, base, at)
                    self._add(fragment, run)
                if base != run.end:
                    raise _gap(fragment, run.end, base)
                size = length + batch.HEADER_SIZE
                run.append(sequence, base, count, at, position, size)
        if scan.frames:
            last = scan.frames[-1]
            segment.end = last.position + last.size

    def _add(self, fragment: int, run: Run) -> None:
        self.runs.setdefault(fragment, []).append(run)

    def _check_claims(self) -> None:
        """No frame behind the end may have known of a durable frame at the end."""
        ends: dict[int, int] = {}
        for segment, _ in self._scans:
            generation = segment.header.generation
            ends[generation] = max(ends.get(generation, 0), segment.end_sequence)
        for segment, _ in self._scans:
            end = ends[segment.header.generation]
            claimed = synced_behind(self._segments, segment, segment.end)
            if claimed >= end:
                raise Damaged(
                    f"frame {end} was durable once and is damaged: {name_of(segment.number)} has "
                    f"a later frame that knew of {claimed}"
                )

    def make_durable(self) -> None:
        """Write again the frames that no later frame knew to be durable, and sync them.

        What a start has found must be there after the next power cut. A frame may be in the memory
        of the kernel only, and after a failed sync even counted as written.
        """
        synced = max(
            (frame.header.synced for _, frames in self._scans for frame in frames), default=0
        )
        for segment, frames in self._scans:
            doubtful = [frame for frame in frames if frame.header.sequence > synced]
            pieces: list[bytes] = []
            if doubtful:
                first, last = doubtful[0], doubtful[-1]
                size = last.position + last.size - first.position
                data = self._segments.read(segment.number, first.position, size)
                pieces = [data]
            position = doubtful[0].position if doubtful else segment.end
            self._segments.write(segment.number, position, pieces)


def _numbers(files: Files) -> list[int]:
    numbers = (number_of(name) for name in files.names())
    return sorted(number for number in numbers if number is not None)


def _limits(segments: list[Segment]) -> list[int]:
    """For each segment the sequence from which on its frames are void: where a later generation
    begins."""
    limits: list[int] = []
    limit, of_generation, generation = _ENDLESS, _ENDLESS, -1
    for segment in reversed(segments):
        if segment.header.generation != generation:
            limit, generation = min(limit, of_generation), segment.header.generation
        of_generation = segment.header.first_sequence
        limits.append(limit)
    return limits[::-1]


def _gap(fragment: int, end: int, base: int) -> Damaged:
    return Damaged(f"the journal of fragment {fragment} goes from offset {end} to {base}")
