"""Frames are written where they belong, in order, and reported when they are durable."""

from __future__ import annotations

import os
import select
import threading
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.store.log.segment_writer import (
    PythonSegmentWriter,
    SegmentWriter,
    SystemFiles,
    choose_writer,
)
from tests.contract.segment_writer.kinds import KINDS, OpenWriter


def content(file: int) -> bytes:
    return os.pread(file, 1 << 20, 0)


def test_the_pieces_of_a_frame_are_written_one_after_another(
    writer: SegmentWriter, file: int
) -> None:
    pieces: list[bytes | memoryview] = [
        b"head",
        memoryview(b"-body-"),
        b"",
        memoryview(bytearray(b"tail")),
    ]
    writer.submit(1, file, 3, pieces)
    writer.wait(1)
    assert content(file) == b"\0\0\0head-body-tail"


def test_names_may_be_given(writer: SegmentWriter, file: int) -> None:
    writer.submit(sequence=1, file=file, position=0, pieces=(b"a",))
    writer.wait(sequence=1)
    assert content(file) == b"a"


def test_a_view_of_larger_items_is_written_as_bytes(writer: SegmentWriter, file: int) -> None:
    writer.submit(1, file, 0, [memoryview(b"abcdefgh").cast("I"), b"i"])
    writer.wait(1)
    assert content(file) == b"abcdefghi"


def test_a_frame_without_bytes_is_a_frame(writer: SegmentWriter, file: int) -> None:
    writer.submit(1, file, 0, [])
    writer.submit(2, file, 0, [b"", b""])
    writer.wait(2)
    assert (writer.collect(), content(file)) == (2, b"")


def test_a_later_frame_writes_over_an_earlier_one(writer: SegmentWriter, file: int) -> None:
    writer.submit(1, file, 0, [b"aaaa"])
    writer.submit(2, file, 2, [b"bbbb"])
    writer.submit(3, file, 1, [b"c"])
    writer.wait(3)
    assert content(file) == b"acbbbb"


def test_news_makes_the_writer_readable_until_it_is_collected(
    writer: SegmentWriter, file: int
) -> None:
    poll = select.poll()
    poll.register(writer.fileno(), select.POLLIN)
    assert writer.collect() == 0
    assert poll.poll(0) == []
    for sequence in (1, 2):
        writer.submit(sequence, file, 0, [b"x"])
        assert poll.poll() == [(writer.fileno(), select.POLLIN)]
        assert writer.collect() == writer.durable == sequence
        assert poll.poll(0) == []


def test_sequences_go_on_where_the_log_ended(open_writer: OpenWriter, file: int) -> None:
    with closing(open_writer(durable=41)) as writer:
        assert writer.collect() == writer.durable == 41
        with pytest.raises(ValueError, match="frame 1 does not follow frame 41"):
            writer.submit(1, file, 0, [b"x"])
        writer.submit(42, file, 0, [b"y"])
        writer.wait(42)
        assert (writer.collect(), content(file)) == (42, b"y")


@pytest.mark.parametrize("sequence", [-1, 0, 1, 3, 1 << 62])
def test_a_sequence_that_does_not_follow_is_refused_and_leaves_no_trace(
    writer: SegmentWriter, file: int, sequence: int
) -> None:
    writer.submit(1, file, 0, [b"a"])
    with pytest.raises(ValueError, match=f"frame {sequence} does not follow frame 1"):
        writer.submit(sequence, file, 0, [b"wrong"])
    writer.submit(2, file, 1, [b"b"])
    writer.wait(2)
    assert content(file) == b"ab"


def test_what_is_no_frame_is_refused_and_leaves_no_trace(writer: SegmentWriter, file: int) -> None:
    with pytest.raises(ValueError, match="position -1"):
        writer.submit(1, file, -1, [b"a"])
    with pytest.raises(BufferError):
        writer.submit(1, file, 0, [b"a", memoryview(b"abcd")[::2]])
    with pytest.raises(TypeError):
        writer.submit(1, file, 0, [b"a", "text"])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        writer.submit(1, file, 0, None)  # type: ignore[arg-type]
    writer.submit(1, file, 0, [b"right"])
    writer.wait(1)
    assert content(file) == b"right"


def test_nobody_waits_for_a_frame_that_was_never_submitted(
    writer: SegmentWriter, file: int
) -> None:
    writer.submit(1, file, 0, [b"a"])
    with pytest.raises(ValueError, match="frame 2 was never submitted"):
        writer.wait(2)


def test_other_threads_wait_and_collect_while_one_submits(writer: SegmentWriter, file: int) -> None:
    last = 2_000
    seen: list[int] = [0]
    waited = []

    def collect() -> None:
        while seen[-1] < last:
            select.select([writer], [], [])
            seen.append(writer.collect())

    def wait() -> None:
        for sequence in range(100, last + 1, 100):
            turn.acquire()
            writer.wait(sequence)
            waited.append((sequence, writer.durable >= sequence))

    turn = threading.Semaphore(0)
    threads = [threading.Thread(target=target, daemon=True) for target in (collect, wait)]
    for thread in threads:
        thread.start()
    sequence = 0
    while sequence < last:
        try:
            writer.submit(sequence + 1, file, sequence * 4, [b"%4d" % sequence])
        except BlockingIOError:
            writer.wait(sequence)
            continue
        sequence += 1
        if sequence % 100 == 0:
            turn.release()
    for thread in threads:
        thread.join()
    assert seen == sorted(seen)
    assert waited == [(sequence, True) for sequence in range(100, last + 1, 100)]
    assert content(file) == b"".join(b"%4d" % number for number in range(last))


def test_closing_writes_what_is_queued(open_writer: OpenWriter, file: int) -> None:
    writer = open_writer()
    for sequence in range(1, 501):
        writer.submit(sequence, file, sequence - 1, [b"x"])
    writer.close()
    assert content(file) == b"x" * 500
    assert writer.durable == writer.collect() == 500
    writer.wait(500)


def test_a_closed_writer_takes_nothing(open_writer: OpenWriter, file: int) -> None:
    writer = open_writer()
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.submit(1, file, 0, [b"a"])
    with pytest.raises(ValueError, match="closed"):
        writer.fileno()
    assert writer.collect() == 0


def test_the_native_writer_is_chosen_where_it_was_built(file: int) -> None:
    with closing(choose_writer(7)) as writer:
        assert type(writer) is type(KINDS["native"]())
        writer.submit(8, file, 0, [b"a"])
        writer.wait(8)
        assert writer.durable == 8


def test_without_a_thread_its_owner_takes_the_steps(file: int) -> None:
    writer = PythonSegmentWriter(SystemFiles(), threaded=False)
    assert not writer.step()
    writer.submit(1, file, 0, [b"a"])
    writer.submit(2, file, 1, [b"b"])
    assert (writer.collect(), content(file)) == (0, b"")
    assert writer.step()
    assert (writer.collect(), content(file)) == (2, b"ab")
    writer.submit(3, file, 2, [b"c"])
    writer.wait(3)
    assert writer.collect() == 3
    writer.submit(4, file, 3, [b"d"])
    writer.close()
    assert (writer.collect(), content(file)) == (4, b"abcd")


FRAMES = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.one_of(st.none(), st.integers(0, 40)),
        st.lists(st.binary(max_size=9), max_size=5),
    ),
    max_size=40,
)


@pytest.mark.parametrize("kind_of_writer", KINDS)
@given(frames=FRAMES)
def test_files_hold_what_was_submitted(
    kind_of_writer: str, frames: list[tuple[int, int | None, list[bytes]]]
) -> None:
    """A frame without a position follows the frame before it in its file."""
    expected = [bytearray() for _ in range(3)]
    with TemporaryDirectory() as folder, closing(KINDS[kind_of_writer]()) as writer:
        files = [os.open(Path(folder, str(n)), os.O_RDWR | os.O_CREAT) for n in range(3)]
        for sequence, (number, given_position, pieces) in enumerate(frames, 1):
            model = expected[number]
            position = len(model) if given_position is None else given_position
            writer.submit(sequence, files[number], position, pieces)
            data = b"".join(pieces)
            if data:
                model.extend(bytes(max(0, position - len(model))))
                model[position : position + len(data)] = data
        writer.wait(len(frames))
        assert [content(file) for file in files] == expected
        for file in files:
            os.close(file)
