"""Frames cut out of a byte stream, and frames made."""

from __future__ import annotations

import pytest

from postbus.amqp.faults import FramingError
from postbus.amqp.frames.framing import (
    AMQP_HEADER,
    EMPTY_FRAME,
    FRAME_AMQP,
    FRAME_SASL,
    SASL_HEADER,
    TLS_HEADER,
    FrameReader,
    encode_frame,
)
from postbus.amqp.frames.performatives import Close, SaslOutcome

A_FRAME = bytes.fromhex("0000000c 02 00 0005 61626364")


def reader_of(*chunks: bytes, max_frame_size: int = 512) -> FrameReader:
    reader = FrameReader(max_frame_size)
    for chunk in chunks:
        reader.feed(chunk)
    return reader


def test_frames_are_returned_in_the_order_they_came() -> None:
    reader = reader_of(A_FRAME + EMPTY_FRAME, A_FRAME)
    assert list(reader) == [(0, 5, b"abcd"), (0, 0, b""), (0, 5, b"abcd")]
    assert reader.next_frame() is None
    assert reader.buffered == 0


def test_a_frame_is_put_together_from_single_bytes() -> None:
    reader = FrameReader(512)
    for byte in A_FRAME[:-1]:
        reader.feed(bytes((byte,)))
        assert reader.next_frame() is None
    assert reader.buffered == len(A_FRAME) - 1
    reader.feed(A_FRAME[-1:])
    assert reader.next_frame() == (0, 5, b"abcd")


def test_the_rest_of_a_write_is_the_begin_of_the_next_frame() -> None:
    for cut in range(len(A_FRAME)):
        reader = reader_of(A_FRAME + A_FRAME[:cut])
        assert list(reader) == [(0, 5, b"abcd")]
        reader.feed(A_FRAME[cut:])
        assert list(reader) == [(0, 5, b"abcd")]


def test_bytes_fed_while_frames_wait_are_not_lost() -> None:
    reader = reader_of(A_FRAME * 2)
    assert reader.next_frame() == (0, 5, b"abcd")
    reader.feed(A_FRAME)
    assert reader.buffered == 2 * len(A_FRAME)
    assert len(list(reader)) == 2


def test_a_protocol_header_and_frames_may_come_in_one_write() -> None:
    sasl_frame = encode_frame(0, SaslOutcome(0), kind=FRAME_SASL)
    reader = reader_of(SASL_HEADER + sasl_frame + AMQP_HEADER[:3])
    assert reader.next_header() == SASL_HEADER
    frame = reader.next_frame()
    assert frame is not None
    assert frame[0] == FRAME_SASL
    assert reader.next_header() is None
    reader.feed(AMQP_HEADER[3:] + A_FRAME)
    assert reader.next_header() == AMQP_HEADER
    assert reader.next_frame() == (FRAME_AMQP, 5, b"abcd")


def test_the_protocol_headers_differ_in_their_protocol_id() -> None:
    assert [header[4] for header in (AMQP_HEADER, TLS_HEADER, SASL_HEADER)] == [0, 2, 3]


def test_an_extended_header_is_stepped_over() -> None:
    frame = bytes.fromhex("00000010 03 00 0001 ffffffff 61626364")
    assert reader_of(frame).next_frame() == (0, 1, b"abcd")
    assert reader_of(frame[:9], frame[9:]).next_frame() == (0, 1, b"abcd")


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("00000201 02 00 0000", "a frame of 513 bytes, 512 agreed"),
        ("ffffffff 02 00 0000", "4294967295 bytes"),
        ("00000007 02 00 0000", "starts its body at 8"),
        ("00000000 02 00 0000", "starts its body at 8"),
        ("00000010 01 00 0000", "starts its body at 4"),
        ("0000000c 04 00 0000", "starts its body at 16"),
    ],
)
def test_a_frame_that_cannot_be_is_refused_by_its_header_alone(
    header: str, text: str, chunked: bool
) -> None:
    data = bytes.fromhex(header)
    reader = reader_of(data[:4] if chunked else data)
    if chunked:
        assert reader.next_frame() is None
        reader.feed(data[4:])
    with pytest.raises(FramingError, match=text) as caught:
        reader.next_frame()
    assert caught.value.condition == "amqp:connection:framing-error"


def test_a_frame_of_the_agreed_size_is_taken() -> None:
    frame = bytes.fromhex("00000200 02 00 0000") + bytes(504)
    assert reader_of(frame).next_frame() == (0, 0, bytes(504))


def test_empty_writes_change_nothing() -> None:
    reader = reader_of(b"", A_FRAME, b"")
    assert list(reader) == [(0, 5, b"abcd")]


def test_a_made_frame_carries_its_size_channel_and_payload() -> None:
    frame = encode_frame(7, Close(), b"payload")
    assert reader_of(frame).next_frame() == (0, 7, bytes.fromhex("005318c0020140") + b"payload")


@pytest.mark.parametrize(("channel", "kind"), [(65536, 0), (-1, 0), (0, 256)])
def test_a_channel_out_of_range_is_our_mistake(channel: int, kind: int) -> None:
    with pytest.raises(ValueError, match="channel"):
        encode_frame(channel, Close(), kind=kind)
