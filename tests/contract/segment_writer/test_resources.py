"""A writer leaves nothing behind: no thread, no file descriptor, no object, no memory."""

from __future__ import annotations

import gc
import os
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from postbus.store.log.segment_writer import SegmentWriter, WriteFailed
from tests.contract.segment_writer.kinds import OpenWriter, native


def threads() -> int:
    """Threads of this process that write a log, native ones included."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    python = sum(thread.name == "postbus-log" for thread in threading.enumerate())
    return names.count("postbus-log") + python


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def memory_kb() -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0])


def test_a_closed_writer_leaves_no_thread_and_no_descriptor(
    open_writer: OpenWriter, file: int
) -> None:
    before, threads_before = descriptors(), threads()
    for _ in range(20):
        writer = open_writer()
        assert threads() > threads_before
        writer.submit(1, file, 0, [b"x"])
        writer.close()
        assert threads() == threads_before
    assert descriptors() == before


def test_a_native_writer_that_nobody_holds_writes_what_is_queued_and_ends(file: int) -> None:
    before, threads_before = descriptors(), threads()
    for sequence in range(20):
        writer = native()
        writer.submit(1, file, sequence, [b"x"])
        del writer
    gc.collect()
    assert threads() == threads_before
    assert descriptors() == before
    assert os.pread(file, 100, 0) == b"x" * 20


@pytest.mark.parametrize("ending", ["collect", "submit", "wait", "close"])
def test_pieces_are_let_go_once_they_are_written(
    open_writer: OpenWriter, file: int, ending: str
) -> None:
    piece = bytes(range(256)) * 3
    block = bytearray(b"block")
    holds = sys.getrefcount(piece)
    with closing(open_writer()) as writer:
        for sequence in range(1, 101):
            writer.submit(sequence, file, 0, [piece, memoryview(block)])
        while writer.durable < 100:
            pass
        if ending == "collect":
            writer.collect()
        elif ending == "submit":
            writer.submit(101, file, 0, [])
        elif ending == "wait":
            writer.wait(100)
        else:
            writer.close()
        assert sys.getrefcount(piece) == holds
        block.append(0)


def test_a_frame_that_is_refused_lets_go_of_its_pieces(writer: SegmentWriter, file: int) -> None:
    piece = bytes(range(256)) * 3
    holds = sys.getrefcount(piece)
    for _ in range(10):
        with pytest.raises(ValueError, match="follow"):
            writer.submit(7, file, 0, [piece, piece])
        with pytest.raises(TypeError):
            writer.submit(1, file, 0, [piece, None])  # type: ignore[list-item]
    assert sys.getrefcount(piece) == holds


def test_a_failed_writer_leaves_nothing_behind(open_writer: OpenWriter) -> None:
    before, threads_before = descriptors(), threads()
    piece = bytes(range(256)) * 3
    holds = sys.getrefcount(piece)
    for _ in range(20):
        full = os.open("/dev/full", os.O_WRONLY)
        writer = open_writer()
        writer.submit(1, full, 0, [piece])
        with pytest.raises(WriteFailed):
            writer.wait(1)
        writer.close()
        os.close(full)
    assert (descriptors(), threads()) == (before, threads_before)
    del writer
    gc.collect()
    assert sys.getrefcount(piece) == holds


def test_memory_does_not_grow_with_the_frames(writer: SegmentWriter, file: int) -> None:
    def write(first: int, last: int) -> None:
        for sequence in range(first, last):
            try:
                writer.submit(sequence, file, 0, [b"%d" % sequence] * 20)
            except BlockingIOError:
                writer.wait(sequence - 1)
                writer.submit(sequence, file, 0, [b"%d" % sequence] * 20)

    write(1, 2_001)
    before = memory_kb()
    write(2_001, 22_001)
    writer.wait(22_000)
    # 20,000 frames of 20 pieces would be 32 MB if they were kept.
    assert memory_kb() - before < 8_000
