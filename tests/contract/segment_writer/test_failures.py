"""After a failed write or sync nothing more is written, and everybody is told."""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Callable
from contextlib import closing

import pytest

from postbus.store.log.segment_writer import SegmentWriter, WriteFailed
from tests.contract.segment_writer.kinds import OpenWriter


def a_full_device() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def a_device_that_cannot_sync() -> int:
    return os.open("/dev/null", os.O_WRONLY)


def a_closed_file() -> int:
    file = os.open("/dev/null", os.O_WRONLY)
    os.close(file)
    return file


def a_file_for_reading() -> int:
    return os.open("/dev/zero", os.O_RDONLY)


def a_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def a_socket() -> int:
    return socket.socket(socket.AF_UNIX).detach()


FAILURES = [
    (a_full_device, [b"x"], "write", errno.ENOSPC),
    (a_closed_file, [b"x"], "write", errno.EBADF),
    (a_file_for_reading, [b"x"], "write", errno.EBADF),
    (a_pipe, [b"x"], "write", errno.ESPIPE),
    (a_device_that_cannot_sync, [b"x"], "sync", errno.EINVAL),
    (a_pipe, [], "sync", errno.EINVAL),
    (a_socket, [], "sync", errno.EINVAL),
    (a_closed_file, [], "sync", errno.EBADF),
]


@pytest.mark.parametrize(
    ("open_file", "pieces", "step", "number"),
    FAILURES,
    ids=[f"{one[0].__name__}-{one[2]}" for one in FAILURES],
)
def test_a_failure_ends_the_writing_for_ever(
    writer: SegmentWriter,
    file: int,
    open_file: Callable[[], int],
    pieces: list[bytes],
    step: str,
    number: int,
) -> None:
    writer.submit(1, file, 0, [b"good"])
    writer.wait(1)
    bad = open_file()
    writer.submit(2, bad, 0, pieces)
    for _ in range(2):
        with pytest.raises(WriteFailed) as waited:
            writer.wait(2)
        with pytest.raises(WriteFailed) as collected:
            writer.collect()
        with pytest.raises(WriteFailed) as submitted:
            writer.submit(3, file, 4, [b"never"])
        with pytest.raises(WriteFailed):
            writer.wait(1)
        for raised in (waited, collected, submitted):
            assert (raised.value.step, raised.value.errno) == (step, number)
            assert os.strerror(number) in str(raised.value)
    writer.close()
    with pytest.raises(WriteFailed):
        writer.collect()
    assert writer.durable == 1
    assert os.pread(file, 100, 0) == b"good"
    if open_file is not a_closed_file:
        os.close(bad)


def test_a_failure_is_news(writer: SegmentWriter) -> None:
    full = a_full_device()
    writer.submit(1, full, 0, [b"x"])
    select.select([writer], [], [])
    with pytest.raises(WriteFailed):
        writer.collect()
    os.close(full)


def test_frames_behind_a_failure_let_go_of_their_pieces(open_writer: OpenWriter, file: int) -> None:
    block = bytearray(b"block")
    with closing(open_writer()) as writer:
        full = a_full_device()
        writer.submit(1, full, 0, [memoryview(block)])
        try:
            for sequence in range(2, 100):
                writer.submit(sequence, file, 0, [memoryview(block)])
        except WriteFailed:
            pass
        with pytest.raises(WriteFailed):
            writer.wait(1)
        with pytest.raises(WriteFailed):
            writer.collect()
        block.append(0)  # a BufferError while anybody holds it
        assert os.pread(file, 100, 0) == b""
        os.close(full)
