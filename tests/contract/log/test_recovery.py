"""Where a log ends, whatever a power cut has left of the frames under way: at every byte of them,
in every selection, over the remains of an earlier use of the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import pytest

from postbus.store import batch
from postbus.store.log import scan
from postbus.store.log.files import DiskFiles
from postbus.store.log.format import (
    FRAME_HEADER_SIZE,
    HEADER_BLOCK,
    FrameHeader,
    SegmentHeader,
    frame_header_at,
    pack_frame,
    pack_segment,
)
from postbus.store.log.recovery import Recovery, SealedSegment
from postbus.store.log.segments import Segments, name_of
from postbus.store.log.spares import Spares
from postbus.store.sqlite.damage import Damaged
from tests.contract.fragments import T0

STORE = bytes(range(16))
SIZE = 8_192
Bytes = dict[int, bytes]
"""What lies where in a segment."""


def make_batch(fragment: int, base: int, body: bytes = b"body") -> bytes:
    return batch.pack(fragment, 1, base, T0, [body])[0]


class Writing:
    """A log in the making: segments, and the bytes of each of their frames."""

    def __init__(self, generation: int = 1, number: int = 1, sequence: int = 1) -> None:
        self.generation = generation
        self.sequence = sequence
        self.base = sequence - 1
        self.segments: dict[int, bytearray] = {}
        self.frames: dict[int, tuple[int, int, bytes]] = {}
        """By sequence: segment, position and bytes."""
        self.begin(number)

    def begin(self, number: int, remains: bytes = bytes(SIZE)) -> None:
        """A new segment, over what an earlier use has left."""
        self.header = SegmentHeader(STORE, number, self.generation, self.sequence)
        self.position = HEADER_BLOCK
        self.number = number
        data = bytearray(remains)
        data[:HEADER_BLOCK] = pack_segment(self.header)
        self.segments[number] = data

    def write(self, synced: int, body: bytes = b"body") -> None:
        """A frame with the batches of two fragments."""
        batches = [make_batch(fragment, self.base, body) for fragment in (1, 2)]
        pieces = pack_frame(self.header, self.header.seed, self.sequence, synced, batches)
        data = b"".join(pieces)
        self.frames[self.sequence] = self.number, self.position, data
        self.position += len(data)
        self.sequence += 1
        self.base += 1

    def with_frames(self, whole: Sequence[int], parts: dict[int, bytes]) -> dict[int, bytearray]:
        """The segments with these frames on the disk, and others in part."""
        found = {number: bytearray(data) for number, data in self.segments.items()}
        kept = {sequence: self.frames[sequence][2] for sequence in whole} | parts
        for sequence, data in kept.items():
            number, position, _ = self.frames[sequence]
            found[number][position : position + len(data)] = data
        return found


def recover(
    folder: Path,
    segments: dict[int, bytearray],
    sealed: dict[int, SealedSegment] | None = None,
) -> Recovery:
    for number, data in segments.items():
        (folder / name_of(number)).write_bytes(data)
    files = DiskFiles(folder)
    found = Segments(files, STORE, Spares(files, SIZE, SIZE, lambda _: True))
    try:
        return Recovery(files, found, STORE, sealed or {}, lambda _fragment, _sequence: True)
    finally:
        found.close()


def ends(recovery: Recovery) -> tuple[int, set[int]]:
    """The end of the log, and the offsets that the fragments reach."""
    return recovery.end_sequence, {runs[-1].end for runs in recovery.runs.values()}


def in_flight(second_segment: bool, remains: bytes = bytes(SIZE)) -> Writing:
    """Three frames that are durable, and three under way together."""
    log = Writing()
    log.begin(1, remains)
    for synced in (0, 1, 2):
        log.write(synced)
    log.write(3, b"under way")
    if second_segment:
        log.begin(2, remains)
    log.write(3, b"under way, too")
    log.write(3)
    return log


def tears(frame: bytes) -> Iterator[bytes]:
    """What a cut leaves of a frame, at every byte of it: the first bytes, the last, or all but a
    sector's worth."""
    for size in range(len(frame)):
        yield frame[:size]
        yield bytes(size + 1) + frame[size + 1 :]


@pytest.mark.parametrize("second_segment", [False, True])
def test_any_selection_of_frames_under_way_ends_the_log_at_the_first_that_is_missing(
    tmp_path: Path, second_segment: bool
) -> None:
    log = in_flight(second_segment)
    for selection in product([False, True], repeat=3):
        there = [
            sequence for sequence, is_there in zip((4, 5, 6), selection, strict=True) if is_there
        ]
        expected = next((n for n in (4, 5, 6) if n not in there), 7)
        found = recover(tmp_path, log.with_frames((1, 2, 3, *there), {}))
        assert ends(found) == (expected, {expected - 1})


@pytest.mark.parametrize("second_segment", [False, True])
@pytest.mark.parametrize("torn", [4, 5, 6])
def test_a_frame_torn_at_any_byte_ends_the_log(
    tmp_path: Path, torn: int, second_segment: bool
) -> None:
    """With the frames after it on the disk, and without."""
    log = in_flight(second_segment)
    before = tuple(range(1, torn))
    frame = log.frames[torn][2]
    padding = len(frame) - len(frame.rstrip(b"\0"))
    for after in ((), tuple(range(torn + 1, 7))):
        for part in tears(frame):
            found = recover(tmp_path, log.with_frames((*before, *after), {torn: part}))
            if part.ljust(len(frame), b"\0") == frame:
                assert padding, "only padding is missing: it is whole"
                continue
            assert ends(found) == (torn, {torn - 1})


@pytest.mark.parametrize("damaged", [1, 2, 3])
def test_damage_to_a_frame_that_was_durable_is_told_from_a_torn_tail(
    tmp_path: Path, damaged: int
) -> None:
    """At every byte: a later frame knew that it was on the disk."""
    log = in_flight(second_segment=True)
    frame = log.frames[damaged][2]
    for at in range(len(frame.rstrip(b"\0"))):
        broken = frame[:at] + bytes([frame[at] ^ 0x40]) + frame[at + 1 :]
        whole = [sequence for sequence in range(1, 7) if sequence != damaged]
        with pytest.raises(Damaged, match=f"frame {damaged} was durable once and is damaged"):
            recover(tmp_path, log.with_frames(whole, {damaged: broken}))


def test_frames_behind_the_end_of_a_generation_are_void_for_good(tmp_path: Path) -> None:
    # given frames 5 and 6 on the disk and not 4, and a start that went on from there
    log = in_flight(second_segment=True)
    segments = log.with_frames((1, 2, 3, 5, 6), {})
    later = Writing(generation=2, number=3, sequence=4)
    for synced in (3, 4, 5):
        later.write(synced)
    segments |= later.with_frames((4, 5, 6), {})
    # then the new frames are the log, with the old segments there or not
    found = recover(tmp_path, segments)
    assert ends(found) == (7, {6})
    assert [run.segment for run in found.runs[1]] == [1, 3]
    # and what the new generation relies on must be there
    broken = log.with_frames((1, 2, 5, 6), {}) | later.with_frames((4, 5, 6), {})
    with pytest.raises(Damaged, match="begins with frame 4, but the log before it ends at 3"):
        recover(tmp_path, broken)


def test_a_segment_between_others_may_be_gone_once_it_was_sealed(tmp_path: Path) -> None:
    log = Writing()
    log.write(0)
    log.begin(2)
    log.write(1)
    log.begin(3)
    log.write(2)
    segments = log.with_frames((1, 2, 3), {})
    del segments[2]
    with pytest.raises(Damaged):
        recover(tmp_path, segments)
    sealed = {1: SealedSegment(HEADER_BLOCK, 2), 2: SealedSegment(HEADER_BLOCK, 3)}
    assert recover(tmp_path, segments, sealed).end_sequence == 4


def stale(torn: int) -> dict[int, bytearray]:
    """A file that was used before, by frames of the same sequences, sizes and places: its next use
    is torn after its first frame."""
    old = Writing(generation=1)
    for synced in range(6):
        old.write(synced, b"old?")
    remains = bytes(old.with_frames(range(1, 7), {})[1])
    new = Writing(generation=2, number=1)
    new.begin(1, remains)
    for synced in range(6):
        new.write(synced)
    return new.with_frames(range(1, torn), {})


@pytest.mark.parametrize("torn", range(1, 7))
def test_no_frame_of_an_earlier_use_of_the_file_is_read_as_new(tmp_path: Path, torn: int) -> None:
    assert recover(tmp_path, stale(torn)).end_sequence == torn


def test_a_header_with_the_batches_of_an_earlier_use_is_not_whole(tmp_path: Path) -> None:
    """The sector with the header got to the disk, those with its batches did not: there are others,
    whole, of the same size, from before."""
    log = stale(6)
    new = Writing(generation=2, number=1)
    for synced in range(6):
        new.write(synced)
    _, position, frame = new.frames[6]
    log[1][position : position + FRAME_HEADER_SIZE] = frame[:FRAME_HEADER_SIZE]
    assert recover(tmp_path, log).end_sequence == 6


def test_a_scan_that_takes_frames_of_any_generation_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_any_use(segment: SegmentHeader, seed: int, data: bytes, at: int) -> FrameHeader | None:
        for generation in (segment.generation, 1):
            for number in (1, 2, 3):
                other = SegmentHeader(STORE, number, generation, 1)
                found = frame_header_at(other, other.seed, data, at)
                if found is not None:
                    return found
        return None

    monkeypatch.setattr(scan, "frame_header_at", of_any_use)
    with pytest.raises((AssertionError, Damaged)):
        test_no_frame_of_an_earlier_use_of_the_file_is_read_as_new(tmp_path, 3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.__setitem__(slice(0, 4), b"ABCD"), "is no segment: it begins with"),
        (lambda data: data.__setitem__(30, data[30] ^ 1), "header fails its checksum"),
        (lambda data: data.__delitem__(slice(20, None)), "too few for a header"),
    ],
)
def test_a_damaged_header_is_named(tmp_path: Path, change: object, said: str) -> None:
    log = Writing()
    data = log.segments[1]
    assert callable(change)
    change(data)
    with pytest.raises(Damaged, match=f"log-0000000001.pbl.*{said}"):
        recover(tmp_path, {1: data})


def test_a_segment_of_another_store_or_name_is_refused(tmp_path: Path) -> None:
    log = Writing()
    with pytest.raises(Damaged, match="was written as"):
        recover(tmp_path, {7: log.segments[1]})
    (tmp_path / name_of(7)).unlink()
    other = SegmentHeader(bytes(16), 1, 1, 1)
    with pytest.raises(Damaged, match="part of another store"):
        recover(tmp_path, {1: bytearray(pack_segment(other))})
