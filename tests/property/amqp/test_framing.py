"""However the stream is cut, the same frames come out of it."""

from __future__ import annotations

import contextlib
import tracemalloc
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from postbus.amqp.faults import FramingError
from postbus.amqp.frames.framing import AMQP_HEADER, EMPTY_FRAME, Frame, FrameReader

MAX_FRAME_SIZE = 512

frames = st.tuples(
    st.integers(0, 1), st.integers(0, 0xFFFF), st.binary(max_size=MAX_FRAME_SIZE - 8)
)


def wire(frame: Frame) -> bytes:
    kind, channel, body = frame
    head = (len(body) + 8).to_bytes(4, "big") + bytes((2, kind)) + channel.to_bytes(2, "big")
    return head + body


def read_all(chunks: list[bytes], drain: bool = True) -> list[Frame]:
    reader = FrameReader(MAX_FRAME_SIZE)
    out: list[Frame] = []
    for chunk in chunks:
        reader.feed(chunk)
        if drain:
            out += reader
    out += reader
    return out


@given(st.lists(frames, max_size=4))
def test_frames_survive_every_split_point_of_the_stream(sent: list[Frame]) -> None:
    stream = b"".join(map(wire, sent))
    for point in range(len(stream) + 1):
        assert read_all([stream[:point], stream[point:]]) == sent


@given(st.lists(frames, max_size=6), st.data())
def test_frames_survive_any_cutting_of_the_stream(sent: list[Frame], data: st.DataObject) -> None:
    stream = b"".join(map(wire, sent))
    points = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    edges = [0, *points, len(stream)]
    chunks = [stream[a:b] for a, b in pairwise(edges)]
    assert read_all(chunks) == sent
    assert read_all(chunks, drain=False) == sent
    assert read_all([stream[i : i + 1] for i in range(len(stream))]) == sent


@given(st.lists(frames, max_size=3), st.data())
def test_protocol_headers_between_frames_survive_any_cutting(
    sent: list[Frame], data: st.DataObject
) -> None:
    stream = AMQP_HEADER + b"".join(map(wire, sent)) + AMQP_HEADER
    point = data.draw(st.integers(0, len(stream)))
    reader = FrameReader(MAX_FRAME_SIZE)
    got: list[object] = []
    for chunk in (stream[:point], stream[point:]):
        reader.feed(chunk)
        while True:
            wanted_header = len(got) in (0, len(sent) + 1)
            piece = reader.next_header() if wanted_header else reader.next_frame()
            if piece is None:
                break
            got.append(piece)
            if len(got) == len(sent) + 2:
                break
    assert got == [AMQP_HEADER, *sent, AMQP_HEADER]
    assert reader.buffered == 0


@given(st.lists(st.binary(max_size=100), max_size=10))
def test_whatever_comes_only_a_framing_error_is_raised(chunks: list[bytes]) -> None:
    reader = FrameReader(MAX_FRAME_SIZE)
    for chunk in chunks:
        reader.feed(chunk)
        try:
            for _ in reader:
                pass
        except FramingError:
            return
        assert reader.buffered < MAX_FRAME_SIZE


def test_a_frame_that_is_too_large_is_never_kept() -> None:
    reader = FrameReader(MAX_FRAME_SIZE)
    tracemalloc.start()
    try:
        reader.feed(b"\xff\xff\xff\xff\x02\x00\x00\x00")
        with contextlib.suppress(FramingError):
            reader.next_frame()
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()


def test_the_cost_of_many_frames_in_one_write_does_not_grow_with_what_is_left() -> None:
    # Each frame is cut out where it lies: nothing behind it is moved.
    reader = FrameReader(MAX_FRAME_SIZE)
    reader.feed(EMPTY_FRAME * 50_000)
    assert sum(1 for _ in reader) == 50_000
