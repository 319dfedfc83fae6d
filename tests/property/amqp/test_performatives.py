"""Every performative in every encoding; the hand-written ways against the plain one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.amqp.faults import DecodeError
from postbus.amqp.frames.composites import Composite
from postbus.amqp.frames.framing import encode_frame
from postbus.amqp.frames.performatives import (
    Disposition,
    Flow,
    Transfer,
    decode_performative,
    decode_plainly,
    encode_disposition_frame,
    encode_flow_frame,
    encode_transfer_frame,
)
from postbus.amqp.frames.readers import decode_disposition, decode_flow, decode_transfer
from tests.property.amqp.composites import PERFORMATIVES, instances, spelled
from tests.property.amqp.values import damaged, uints

performatives = st.sampled_from(PERFORMATIVES).flatmap(instances)
optional_uints = st.none() | uints

HOT = [
    (Transfer, decode_transfer),
    (Disposition, decode_disposition),
    (Flow, decode_flow),
]


@given(performatives, st.binary(max_size=20))
def test_what_was_encoded_is_decoded(performative: Composite, payload: bytes) -> None:
    body = encode_frame(0, performative, payload)[8:]
    assert decode_performative(body) == (performative, len(body) - len(payload))


@given(st.data(), performatives, st.binary(max_size=20))
def test_every_encoding_of_a_performative_reads_the_same(
    data: st.DataObject, performative: Composite, payload: bytes
) -> None:
    body = data.draw(spelled(performative))
    assert decode_performative(body + payload) == (performative, len(body))


@given(st.binary(max_size=100) | damaged(performatives.flatmap(spelled)))
def test_whatever_the_bytes_are_only_a_decode_error_is_raised(body: bytes) -> None:
    try:
        _, end = decode_performative(body)
    except DecodeError:
        return
    assert end <= len(body)


@pytest.mark.parametrize(("cls", "reader"), HOT)
@given(data=st.data())
def test_what_is_read_by_hand_is_what_the_plain_way_reads(data, cls, reader) -> None:  # type: ignore[no-untyped-def]
    # Which reader is asked is decided by the first three bytes, so these stay.
    sound = instances(cls).flatmap(
        lambda composite: spelled(composite, short_descriptor=True).map(lambda body: body[3:])
    )
    body = bytes((0, 0x53, cls.CODE)) + data.draw(sound | damaged(sound))
    by_hand = reader(body)
    if by_hand is not None:
        assert by_hand == decode_plainly(body)


@given(
    st.integers(0, 0xFFFF),
    uints,
    optional_uints,
    st.none() | st.binary(max_size=140),
    st.none() | st.sampled_from((0, 0x80013700)) | uints,
    st.none() | st.booleans(),
    st.booleans(),
    st.lists(st.binary(max_size=20), max_size=3).map(tuple),
)
def test_a_transfer_frame_by_hand_says_what_the_plain_one_says(  # type: ignore[no-untyped-def]
    channel, handle, delivery_id, tag, message_format, settled, more, parts
) -> None:
    frame = encode_transfer_frame(
        channel, handle, delivery_id, tag, message_format, settled, more, parts
    )
    transfer = Transfer(handle, delivery_id, tag, message_format, settled, more)
    assert same_frame(frame, encode_frame(channel, transfer, b"".join(parts)))


@given(
    st.integers(0, 0xFFFF),
    st.booleans(),
    uints,
    uints,
    st.booleans(),
    instances(Disposition).map(lambda disposition: disposition.state),
)
def test_a_disposition_frame_by_hand_says_what_the_plain_one_says(  # type: ignore[no-untyped-def]
    channel, role, first, last, settled, state
) -> None:
    frame = encode_disposition_frame(channel, role, first, last, settled, state)
    plain = encode_frame(channel, Disposition(role, first, last, settled, state))
    assert same_frame(frame, plain)


@given(
    st.integers(0, 0xFFFF),
    st.tuples(optional_uints, uints, uints, uints),
    st.tuples(optional_uints, optional_uints, optional_uints, optional_uints),
    st.booleans(),
    st.booleans(),
)
def test_a_flow_frame_by_hand_says_what_the_plain_one_says(  # type: ignore[no-untyped-def]
    channel, session, link, drain, echo
) -> None:
    frame = encode_flow_frame(channel, *session, *link, drain, echo)  # type: ignore[call-arg]
    plain = encode_frame(channel, Flow(*session, *link, drain, echo))  # type: ignore[call-arg]
    assert same_frame(frame, plain)


def same_frame(one: bytes, other: bytes) -> bool:
    for frame in (one, other):
        assert int.from_bytes(frame[:4], "big") == len(frame)
    performative, end = decode_plainly(one[8:])
    expected, expected_end = decode_plainly(other[8:])
    return (performative, one[4:8], one[8 + end :]) == (
        expected,
        other[4:8],
        other[8 + expected_end :],
    )
