"""Performatives and delivery states: bytes, defaults, and how wrong ones are refused."""

from __future__ import annotations

import pytest

from postbus.amqp.codec import decode, encode
from postbus.amqp.codec.types import Described, Symbol, UInt, ULong
from postbus.amqp.faults import DecodeError
from postbus.amqp.frames.framing import encode_frame
from postbus.amqp.frames.performatives import (
    ACCEPTED,
    RCV_SECOND,
    RELEASED,
    ROLE_RECEIVER,
    ROLE_SENDER,
    SND_UNSETTLED,
    Accepted,
    Attach,
    Begin,
    Close,
    Composite,
    Coordinator,
    Declare,
    Declared,
    DeliveryState,
    Detach,
    Discharge,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Open,
    Received,
    Rejected,
    Released,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Source,
    Target,
    TransactionalState,
    Transfer,
    decode_performative,
    encode_disposition_frame,
    encode_flow_frame,
    encode_transfer_frame,
    from_described,
)
from postbus.amqp.frames.readers import decode_disposition, decode_flow, decode_transfer

LOST = Error("com.microsoft:message-lock-lost", "The lock is gone.", {Symbol("tracking"): "t"})

PERFORMATIVES = [
    Open("container"),
    Open(
        container_id="c",
        hostname="h",
        max_frame_size=65536,
        channel_max=255,
        idle_time_out=240_000,
        outgoing_locales=[Symbol("en-US")],
        incoming_locales=[Symbol("en-US"), Symbol("nl")],
        offered_capabilities=[],
        desired_capabilities=[Symbol("x" * 300)],
        properties={Symbol("product"): "postbus"},
    ),
    Begin(remote_channel=1, next_outgoing_id=2, incoming_window=3, outgoing_window=4),
    Attach(
        name="link",
        handle=0,
        role=ROLE_RECEIVER,
        snd_settle_mode=SND_UNSETTLED,
        rcv_settle_mode=RCV_SECOND,
        source=Source(
            address="queue",
            durable=2,
            expiry_policy=Symbol("never"),
            timeout=5,
            dynamic=False,
            distribution_mode=Symbol("move"),
            filter={Symbol("com.microsoft:session-filter"): Described(ULong(0x137000000C), "s")},
            default_outcome=Modified(delivery_failed=True),
            outcomes=[Symbol("amqp:accepted:list")],
        ),
        target=Target(address="reply", capabilities=[Symbol("queue")]),
        unsettled={b"tag": Described(ULong(0x24), [])},
        max_message_size=1 << 40,
    ),
    Attach(name="txn", handle=1, role=ROLE_SENDER, target=Coordinator([Symbol("amqp:local")])),
    Flow(incoming_window=1, next_outgoing_id=2, outgoing_window=3),
    Flow(1, 2, 3, 4, 5, 6, 7, 8, True, True, {Symbol("k"): None}),
    Transfer(0),
    Transfer(1, 2, b"tag", 0, True, True, 1, ACCEPTED, True, True, True),
    Disposition(ROLE_RECEIVER, 1),
    Disposition(ROLE_SENDER, 1, 2, True, Rejected(LOST), True),
    Disposition(ROLE_SENDER, 1, 2, True, TransactionalState(b"txn", Released())),
    Disposition(ROLE_RECEIVER, 1, 1, True, Declared(b"txn")),
    Disposition(ROLE_RECEIVER, 1, 1, False, Received(1, 2)),
    Disposition(ROLE_RECEIVER, 1, 1, False, Modified(True, False, {Symbol("k"): "v"})),
    Detach(3, True, LOST),
    End(),
    End(LOST),
    Close(),
    Close(Error("amqp:internal-error")),
    SaslMechanisms([Symbol("PLAIN"), Symbol("ANONYMOUS")]),
    SaslInit("PLAIN", b"\x00u\x00p", "host"),
    SaslChallenge(b"c"),
    SaslResponse(b"r"),
    SaslOutcome(0),
]


@pytest.mark.parametrize("performative", PERFORMATIVES, ids=lambda value: type(value).__name__)
def test_a_performative_is_read_back_as_it_was(performative: Composite) -> None:
    body = encode_frame(0, performative, b"payload")[8:]
    assert body[:3] == bytes((0, 0x53, performative.CODE))
    assert decode_performative(body) == (performative, len(body) - len(b"payload"))


@pytest.mark.parametrize(
    "composite", [Declare(), Declare(b"global"), Discharge(b"txn"), Discharge(b"txn", True)]
)
def test_what_a_coordinator_is_sent_is_read_from_a_value(composite: Composite) -> None:
    assert from_described(decode(encode(composite))[0]) == composite


WIRE = [
    (Close(), "00 53 18 c0 02 01 40"),
    (SaslOutcome(0), "00 53 44 c0 04 02 50 00 40"),
    (Detach(1, True), "00 53 16 c0 05 03 52 01 41 40"),
    (Accepted(), "00 53 24 45"),
    (Rejected(), "00 53 25 45"),
    (Modified(None, True), "00 53 27 c0 03 02 40 41"),
    (Error("a:b"), "00 53 1d c0 08 03 a3 03 613a62 40 40"),
    (Source(), "00 53 28 c0 02 01 40"),
    (Target(), "00 53 29 c0 02 01 40"),
    (Coordinator(), "00 53 30 c0 02 01 40"),
    (Transfer(1), "00 53 14 c0 0d 0b 52 01 40 40 40 40 42 40 40 42 42 42"),
]


@pytest.mark.parametrize(("composite", "wire"), WIRE, ids=lambda part: repr(part)[:30])
def test_a_composite_is_written_with_the_fields_clients_index(
    composite: Composite, wire: str
) -> None:
    assert encode(composite) == bytes.fromhex(wire)


def test_fields_left_out_take_the_defaults_of_the_standard() -> None:
    assert decode_performative(bytes.fromhex("005310 c0 04 01 a1 01 63"))[0] == Open(
        "c", max_frame_size=0xFFFFFFFF, channel_max=0xFFFF
    )
    attach = decode_performative(bytes.fromhex("005312 c0 06 03 a1 01 63 43 42"))[0]
    assert attach == Attach("c", 0, False, snd_settle_mode=2, rcv_settle_mode=0)


def test_a_descriptor_may_come_in_any_of_its_forms() -> None:
    for descriptor in (b"\x53\x18", b"\x80" + bytes(7) + b"\x18", b"\xa3\x0famqp:close:list"):
        body = b"\x00" + descriptor + b"\x45"
        assert decode_performative(body) == (Close(), len(body))


def test_a_single_symbol_stands_for_a_list_of_one() -> None:
    assert decode_performative(bytes.fromhex("005340 c0 04 01 a3 01 41"))[0] == SaslMechanisms(
        [Symbol("A")]
    )


REFUSED = {
    "no list": ("005318 40", "amqp:close:list must be a list, not null"),
    "no described value": ("45", "a described list must stand here, not list"),
    "an unknown descriptor": ("005399 45", "no composite type has the descriptor 153"),
    "an unknown symbol": ("00 a3 01 61 45", "no composite type has the descriptor 'a'"),
    "a descriptor of another type": ("00 a1 01 61 45", "no composite type"),
    "an outcome in place of a performative": ("005324 45", "amqp:accepted:list is no performative"),
    "a missing mandatory field": ("005310 45", "lacks its mandatory field container-id"),
    "a null mandatory field": ("005314 c0 02 01 40", "lacks its mandatory field handle"),
    "too many fields": ("005318 c0 03 02 40 40", "2 fields in amqp:close:list, at most 1 allowed"),
    "a string for a uint": (
        "005314 c0 04 01 a1 01 61",
        "amqp:transfer:list handle: uint must stand here, not str",
    ),
    "a number for symbols": ("005340 c0 03 01 52 01", "sasl-server-mechanisms: symbols must"),
    "an array of strings for symbols": ("005340 c0 07 01 e0 04 01 a1 01 61", "symbols must"),
    "a target where an error belongs": (
        "005318 c0 05 01 00 53 29 45",
        "amqp:close:list error: error must stand here, not amqp:target:list",
    ),
    "an unknown delivery state": ("005315 c0 09 05 41 43 40 42 00 53 99 45", "state: no composite"),
    "a truncated body": ("005318 c0 05 01", "a compound of 5 bytes where 1 are left"),
    "nothing": ("", "runs past the end"),
}


@pytest.mark.parametrize(("wire", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_performative_is_refused_with_its_reason(wire: str, text: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_performative(bytes.fromhex(wire))
    assert text in caught.value.text


def test_what_the_python_sdk_sends_is_read_by_hand() -> None:
    # Frame bodies recorded from azure-servicebus 7.15.
    transfer = bytes.fromhex("005314c0150b52015203a0040000000143560056004040404040")
    assert decode_transfer(transfer + b"xx") == (
        Transfer(1, 3, b"\x00\x00\x00\x01", 0, False),
        len(transfer),
    )
    disposition = bytes.fromhex("005315c00e0656015205520556000053244540")
    assert decode_disposition(disposition) == (
        Disposition(ROLE_RECEIVER, 5, 5, False, ACCEPTED),
        len(disposition),
    )
    flow = bytes.fromhex("005313c0180b437000010000437000010000520343520a405600560040")
    assert decode_flow(flow) == (Flow(0, 65536, 0, 65536, 3, 0, 10), len(flow))


@pytest.mark.parametrize(
    ("body", "transfer"),
    [
        ("005314 c0 05 04 43 43 40 43", Transfer(0, 0, None, 0)),
        ("005314 c0 07 04 43 40 40 52 07 41", None),
        ("005314 c0 06 04 43 40 40 52 07", Transfer(0, None, None, 7)),
        ("005314 d0 00000008 00000004 43 40 40 40", Transfer(0)),
        ("005314 c0 11 06 7000000001 7000000002 a0 01 74 43 42", None),
        (
            "005314 c0 16 0b 7000000001 7000000002 a0 01 74 43 42 41 40 40 40 42 41",
            Transfer(1, 2, b"t", 0, False, True, batchable=True),
        ),
    ],
)
def test_a_transfer_is_read_by_hand_in_the_usual_forms(
    body: str, transfer: Transfer | None
) -> None:
    data = bytes.fromhex(body)
    assert decode_transfer(data) == (None if transfer is None else (transfer, len(data)))


@pytest.mark.parametrize(
    ("body", "disposition"),
    [
        ("005315 c0 05 04 42 43 43 41", Disposition(False, 0, 0, True)),
        ("005315 c0 0d 04 41 7000000001 7000000002 41", Disposition(True, 1, 2, True)),
        ("005315 c0 09 05 41 43 40 41 00 53 26 45", Disposition(True, 0, None, True, RELEASED)),
        (
            "005315 d0 0000000f 00000006 41 43 40 41 00 53 24 c0 01 00 41",
            Disposition(True, 0, None, True, ACCEPTED, True),
        ),
    ],
)
def test_a_disposition_is_read_by_hand_in_the_usual_forms(
    body: str, disposition: Disposition
) -> None:
    data = bytes.fromhex(body)
    assert decode_disposition(data) == (disposition, len(data))


def body_of(frame: bytes) -> bytes:
    assert int.from_bytes(frame[:4], "big") == len(frame)
    assert frame[4:6] == b"\x02\x00"
    return frame[8:]


@pytest.mark.parametrize("parts", [(b"one",), (b"one", b"two"), ()])
@pytest.mark.parametrize("message_format", [0, 1, 0x80013700, None])
@pytest.mark.parametrize("tag", [b"0123456789abcdef", b"", b"x" * 200, None])
def test_a_transfer_frame_by_hand_says_what_the_plain_one_says(
    tag: bytes | None, message_format: int | None, parts: tuple[bytes, ...]
) -> None:
    frame = encode_transfer_frame(9, 1, 2, tag, message_format, False, True, parts)
    body = body_of(frame)
    performative, end = decode_performative(body)
    assert performative == Transfer(1, 2, tag, message_format, False, True)
    assert body[end:] == b"".join(parts)
    assert frame[6:8] == b"\x00\x09"


@pytest.mark.parametrize(
    "state", [None, ACCEPTED, RELEASED, Rejected(), Rejected(LOST), Modified(True), Declared(b"t")]
)
@pytest.mark.parametrize("settled", [True, False])
def test_a_disposition_frame_by_hand_says_what_the_plain_one_says(
    state: DeliveryState | None, settled: bool
) -> None:
    frame = encode_disposition_frame(3, ROLE_SENDER, 7, 9, settled, state)
    body = body_of(frame)
    assert decode_performative(body) == (Disposition(ROLE_SENDER, 7, 9, settled, state), len(body))


def test_a_disposition_of_one_delivery_names_it_as_the_last_too() -> None:
    body = body_of(encode_disposition_frame(0, ROLE_RECEIVER, 7, None, True, ACCEPTED))
    assert decode_performative(body)[0] == Disposition(ROLE_RECEIVER, 7, 7, True, ACCEPTED)


def test_a_flow_frame_by_hand_says_what_the_plain_one_says() -> None:
    link = body_of(encode_flow_frame(1, 2, 3, 4, 5, 6, 7, 8, drain=True))
    assert decode_performative(link)[0] == Flow(2, 3, 4, 5, 6, 7, 8, None, True, False)
    session = body_of(encode_flow_frame(1, None, 3, 4, 5, echo=True))
    assert decode_performative(session)[0] == Flow(None, 3, 4, 5, echo=True)
    available = body_of(encode_flow_frame(1, 2, 3, 4, 5, 6, 7, 8, 9))
    assert decode_performative(available)[0] == Flow(2, 3, 4, 5, 6, 7, 8, 9)


def test_fields_out_of_range_are_our_mistake() -> None:
    too_big = 1 << 32
    with pytest.raises(ValueError, match="transfer"):
        encode_transfer_frame(0, too_big, 1, b"t", 0, False, False, (b"",))
    with pytest.raises(ValueError, match="disposition"):
        encode_disposition_frame(0, True, too_big, None, True, None)
    with pytest.raises(ValueError, match="flow"):
        encode_flow_frame(70_000, 1, 2, 3, 4, 5, 6, 7)
    with pytest.raises(ValueError, match="range"):
        encode(Received(UInt(-1), 0))


@pytest.mark.parametrize(
    "body",
    [
        "005314",
        "005314 45",
        "005314 c0 30 0b 52 01",
        "005314 c0 03 01 52 01",
        "005314 c0 07 04 a1 01 61 40 40 40",
        "005314 c0 06 04 43 a1 00 40 40",
        "005314 c0 06 04 43 40 a1 00 40",
        "005314 c0 06 04 43 40 40 a1 00",
        "005314 c0 06 05 43 40 40 43 45",
        "005314 c0 05 05 43 40 40 43",
        "005314 d0 00000004",
        "005314 c0 02 04 43 40 40 40",
    ],
)
def test_an_unusual_transfer_is_left_to_the_plain_way(body: str) -> None:
    assert decode_transfer(bytes.fromhex(body)) is None


@pytest.mark.parametrize(
    "body",
    [
        "005315",
        "005315 45",
        "005315 c0 05 04 40 43 40 42",
        "005315 c0 06 04 56 02 43 40 42",
        "005315 c0 05 04 41 40 40 42",
        "005315 c0 06 04 41 43 a0 00 42",
        "005315 c0 05 04 41 43 40 45",
        "005315 c0 05 05 41 43 40 42",
        "005315 c0 02 04 41 43 40 42",
    ],
)
def test_an_unusual_disposition_is_left_to_the_plain_way(body: str) -> None:
    assert decode_disposition(bytes.fromhex(body)) is None


@pytest.mark.parametrize(
    "body",
    [
        "005313",
        "005313 45",
        "005313 c0 05 04 43 43 43 45",
        "005313 c0 04 03 43 43 43",
        "005313 c0 05 04 43 40 43 43",
        "005313 c0 06 05 43 43 43 43",
        "005313 c0 02 04 43 43 43 43",
        "005313 c0 0d 09 43 43 43 43 43 43 43 43 45",
    ],
)
def test_an_unusual_flow_is_left_to_the_plain_way(body: str) -> None:
    assert decode_flow(bytes.fromhex(body)) is None
