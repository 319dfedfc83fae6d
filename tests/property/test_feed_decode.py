"""R-PIPE-01: the fast decode of the change feed says what the plain one says, of any records."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from hypothesis import given, settings
from hypothesis import strategies as st

from postbus.amqp.codec.types import (
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Float32,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from postbus.amqp.faults import ProtocolError
from postbus.amqp.sections import (
    Properties,
    encode_amqp_value,
    encode_application_properties,
    encode_data,
    encode_header,
    encode_message_annotations,
    encode_properties,
)
from postbus.broker import records
from postbus.broker.message import LANES, STATE, ForwardingInfo, Message
from postbus.broker.record_kinds import BRINGS_BODY, RecordKind
from postbus.broker.subqueue_numbers import subqueue_of
from postbus.errors import ServiceBusError
from postbus.feed import events
from postbus.feed.events import COLUMNS, TIMES, JournalOrigin, event
from postbus.messages.envelope import read_message
from postbus.store import batch
from pyspark_postbus import record_columns
from pyspark_postbus.chunk_records import DecodeFailed, OtherJournal
from pyspark_postbus.columns import ALL
from pyspark_postbus.decode import Decoder, Selection
from pyspark_postbus.record_columns import INSTANT_MAX
from tests.property.amqp.test_sections import payloads

PLACE = JournalOrigin("orders", 2, {1: "audit", 2: "billing"})
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
times = st.integers(0, 4_000_000_000_000)
texts = st.text(st.characters(codec="utf-8"), max_size=30)
maybe_texts = st.none() | texts

# Properties of every simple type, in every width that there is.
values = st.one_of(
    st.none(),
    st.booleans(),
    *(
        st.integers(low, high).map(kind)
        for kind, low, high in (
            (UByte, 0, 0xFF),
            (UShort, 0, 0xFFFF),
            (UInt, 0, 0xFFFFFFFF),
            (ULong, 0, (1 << 64) - 1),
            (Byte, -128, 127),
            (Short, -(1 << 15), (1 << 15) - 1),
            (Int, -(1 << 31), (1 << 31) - 1),
            (Long, -(1 << 63), (1 << 63) - 1),
            (Timestamp, -(1 << 63), (1 << 63) - 1),
            (Timestamp, -62_135_596_800_000, 253_402_300_799_999),
        )
    ),
    st.integers(-9, 9).map(Int) | st.integers(0, 9).map(ULong),
    st.floats(),
    st.floats(width=32).map(Float32),
    st.uuids(),
    st.binary(max_size=300),
    texts.filter(str.isascii).map(Symbol),
    st.characters(codec="utf-8").map(Char),
    st.binary(min_size=8, max_size=8).map(Decimal64),
    st.dictionaries(texts, st.integers(-9, 9), max_size=2),
)

# Messages as SDKs write them; `payloads` has them as the standard allows.
usual = st.builds(
    lambda header, key, properties, values, body: b"".join((header, key, properties, values, body)),
    st.sampled_from([b"", encode_header(durable=True), encode_header(ttl=5_000)]),
    st.just(b"")
    | st.dictionaries(
        st.sampled_from([Symbol("x-opt-partition-key"), Symbol("x-opt-via-partition-key")]),
        texts | values,
    ).map(lambda said: encode_message_annotations({**said, Symbol("x-opt-at"): Timestamp(5)})),
    st.builds(
        lambda fields: encode_properties(Properties(message_id="m", **fields)),
        st.fixed_dictionaries(
            {},
            optional={
                "to": texts,
                "subject": st.text("ab", min_size=250, max_size=300) | texts,
                "reply_to": texts,
                "correlation_id": texts | st.uuids() | st.binary(max_size=9),
                "content_type": st.sampled_from(["text/plain", "application/json"]),
            },
        ),
    ),
    st.just(b"")
    | st.dictionaries(texts, texts | values, max_size=4).map(encode_application_properties),
    st.just(b"")
    | st.binary(max_size=400).map(encode_data)
    | texts.map(encode_amqp_value)
    | st.binary(max_size=9).map(encode_amqp_value)
    | st.lists(st.binary(max_size=9), min_size=2, max_size=3).map(
        lambda parts: b"".join(map(encode_data, parts))
    )
    | st.dictionaries(texts, texts, max_size=2).map(encode_amqp_value)
    # Nobody looks into bodies: one may say of any bytes that they are a text.
    | st.builds(
        lambda code, data: bytes((0, 0x53, 0x77, code, len(data))) + data,
        st.sampled_from([0xA0, 0xA1, 0xA3]),
        st.binary(max_size=9),
    ),
)


def _sent(payload: bytes) -> Message | None:
    try:
        return read_message(payload, 10_000)
    except (ProtocolError, ServiceBusError):
        return None  # such a one is refused


@st.composite
def any_records(draw: Callable[..., Any]) -> bytes:
    """One record, of any kind."""
    kind = draw(st.sampled_from(sorted(RecordKind)))
    message = Message(b"", "", None)
    if kind in BRINGS_BODY:
        message = draw(st.one_of(usual, payloads).map(_sent).filter(lambda one: one is not None))
    message.message_id, message.session_id = draw(texts), draw(maybe_texts)
    message.lane = draw(st.sampled_from(LANES))
    message.subqueue = subqueue_of(draw(st.integers(0, 3)), draw(st.integers(0, 2)))
    message.number = draw(st.integers(0, 1 << 50))
    message.enqueued_at, message.delivered_at = draw(times), draw(st.just(0) | times)
    message.ttl = draw(st.just(-1) | st.integers(0, 1 << 61))
    message.delivery_count = draw(st.integers(0, 1 << 30))
    if draw(st.booleans()):
        message.reason, message.description = draw(maybe_texts), draw(maybe_texts)
        message.source = draw(maybe_texts)
    if draw(st.integers(0, 5)) == 0:
        message.properties = encode_application_properties({"changed": "yes"})
    if draw(st.integers(0, 3)) == 0:
        message.trail = ForwardingInfo(9)
        message.trail.origin = draw(st.integers(-1, 5))
        message.trail.origin_number = draw(st.integers(0, 1 << 50))
        if draw(st.booleans()):
            message.trail.envelope = encode_properties(Properties(subject="changed"))
        if draw(st.booleans()):
            changed = {Symbol("x-opt-partition-key"): "changed"}
            message.trail.annotations = encode_message_annotations(changed)
    raw = message.raw
    if message.lane == STATE and kind in BRINGS_BODY:
        raw = draw(st.binary(max_size=50))
        message.length = len(raw)
    if kind in BRINGS_BODY:
        return records.encode_with_body(kind, message, raw or b"")
    return records.encode(kind, message, message.subqueue, message.lane, message.number)


journals = st.lists(
    st.tuples(times, st.lists(any_records(), min_size=1, max_size=5)), min_size=1, max_size=3
)
Journal = list[tuple[int, list[bytes]]]
BASE = 1_000


def packed(journal: Journal) -> bytes:
    data, base = b"", BASE
    for at, each in journal:
        data += batch.pack(7, 1, base, at, each)[0]
        base += len(each)
    return data


def plainly(journal: Journal, start: int, end: int) -> list[dict[str, Any]]:
    rows = []
    offset = BASE
    for at, each in journal:
        for record in each:
            if start <= offset < end:
                found = event(PLACE, offset, at, record)
                if found is not None:
                    rows.append(dict(found))
            offset += 1
    return rows


def as_arrow_gives(row: dict[str, Any]) -> dict[str, Any]:
    """Times as Python has them, and maps as pairs."""
    shown = dict(row)
    for name in TIMES & row.keys():
        if shown[name] is not None:
            shown[name] = EPOCH + timedelta(milliseconds=min(shown[name], INSTANT_MAX))
    if shown.get("properties") is not None:
        shown["properties"] = list(shown["properties"].items())
    return shown


def test_the_columns_are_those_of_the_feed() -> None:
    assert ALL == COLUMNS


@given(journals)
def test_the_fast_decode_says_what_the_plain_one_says(journal: Journal) -> None:
    found = Decoder(PLACE, ALL).decode(packed(journal), BASE, 1 << 62)
    found.validate(full=True)
    assert found.to_pylist() == [as_arrow_gives(row) for row in plainly(journal, BASE, 1 << 62)]


def enqueued(subject: str, body: bytes) -> bytes:
    """A record of a message as one application writes all of its own."""
    payload = b"".join(
        (
            encode_header(durable=True),
            encode_properties(Properties(message_id="m", subject=subject)),
            encode_application_properties({"of": subject}),
            body,
        )
    )
    message = read_message(payload, 10_000)
    message.message_id = subject
    return records.encode_with_body(RecordKind.ENQUEUED, message, payload)


def sent_by_the_sdk(number: int) -> bytes:
    """A record of a message as the Python SDK writes one, with a property of each type."""
    sent = ServiceBusMessage(
        bytes(300),
        message_id=str(number),
        session_id="s",
        partition_key="s",
        correlation_id="c",
        subject="tea",
        content_type="application/json",
        to="there",
        reply_to="here",
        time_to_live=timedelta(hours=1),
        scheduled_enqueue_time_utc=datetime(2040, 1, 1, tzinfo=UTC),
        application_properties={
            "text": "north", "number": number, "share": number / 7, "yes": True, "no": False,
            "at": EPOCH + timedelta(seconds=number), "id": UUID(int=number), "bytes": b"xy",
            "null": None,
        },
    )  # fmt: skip
    payload = bytearray()
    encode_payload(payload, PyamqpTransport.to_outgoing_amqp_message(sent.raw_amqp_message))
    message = read_message(bytes(payload), 10_000)
    return records.encode_with_body(RecordKind.ENQUEUED, message, message.raw or b"")


def test_no_message_of_an_sdk_is_read_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty times dearer: one property that is no text was enough for it."""
    journal = [(5, [sent_by_the_sdk(number) for number in range(50)])]
    wanted = [as_arrow_gives(row) for row in plainly(journal, BASE, 1 << 62)]
    read: list[int] = []
    plain = events.event
    monkeypatch.setattr(events, "event", lambda *given: read.append(1) or plain(*given))
    assert Decoder(PLACE, ALL).decode(packed(journal), BASE, 1 << 62).to_pylist() == wanted
    assert not read


@pytest.mark.parametrize(
    "value",
    [
        *(kind(7) for kind in (UByte, UShort, UInt, ULong, Byte, Short, Int, Long, Timestamp)),
        *(0.5, Float32(0.5), True, None, UUID(int=7), b"xy", Symbol("s"), Char("c")),
        *(Decimal32(4), Decimal64(8), Decimal128(16)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_message_with_a_property_of_any_simple_type_is_not_read_plainly(
    monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    payload = encode_application_properties({"of": value}) + encode_data(b"body")
    message = read_message(payload, 10_000)
    journal = [(5, [records.encode_with_body(RecordKind.ENQUEUED, message, message.raw or b"")])]
    wanted = [as_arrow_gives(row) for row in plainly(journal, BASE, 1 << 62)]
    monkeypatch.setattr(events, "event", None)
    assert Decoder(PLACE, ALL).decode(packed(journal), BASE, 1 << 62).to_pylist() == wanted


def read_both_ways(values: dict[str, Any], body: bytes) -> None:
    payload = encode_application_properties(values) + body
    message = read_message(payload, 10_000)
    journal = [(5, [records.encode_with_body(RecordKind.ENQUEUED, message, message.raw or b"")])]
    wanted = [as_arrow_gives(row) for row in plainly(journal, BASE, 1 << 62)]
    assert Decoder(PLACE, ALL).decode(packed(journal), BASE, 1 << 62).to_pylist() == wanted


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        *((UByte, 0, 1 << 8), (UShort, 0, 1 << 16), (UInt, 0, 1 << 32), (ULong, 0, 1 << 64)),
        *((Byte, -(1 << 7), 1 << 7), (Short, -(1 << 15), 1 << 15), (Int, -(1 << 31), 1 << 31)),
        *((Long, -(1 << 63), 1 << 63), (Timestamp, -(1 << 63), 1 << 63)),
    ],
)
def test_a_number_at_any_edge_is_the_same_text_either_way(kind: Any, low: int, high: int) -> None:
    edges = (low, -129, -128, -1, 0, 1, 127, 128, 255, 256, high - 1)
    read_both_ways({str(n): kind(n) for n in edges if low <= n < high}, encode_data(b""))


@pytest.mark.parametrize(
    ("origin", "number", "told"), [(-1, 0, 70), (-1, 7, 7), (5, 7, 70), (0, 7, 70), (5, 0, 70)]
)
def test_the_number_that_a_message_came_in_under_is_told_either_way(
    origin: int, number: int, told: int
) -> None:
    """Trails of earlier versions have none: the number is the one that the message has."""
    message = Message(None, "m")
    message.number, message.trail = 70, ForwardingInfo(9)
    message.trail.origin, message.trail.origin_number = origin, number
    journal = [(5, [records.encode(RecordKind.COMPLETED, message, 0, 0, 70)])]
    name = "originalSequenceNumber"
    assert [row[name] for row in plainly(journal, BASE, 1 << 62)] == [told]
    assert Decoder(PLACE, (name,)).decode(packed(journal), BASE, 1 << 62).to_pylist() == [
        {name: told}
    ]


@given(st.integers(-62_135_596_800_002, 253_402_300_800_002))
def test_a_time_is_the_same_text_either_way(at: int) -> None:
    read_both_ways({"at": Timestamp(at)}, encode_data(b""))


@pytest.mark.parametrize("said", [b"\xa1\x02", b"\xb1\x00\x00\x00\x02"])
def test_a_body_that_says_it_is_a_text_and_is_none_is_the_same_either_way(said: bytes) -> None:
    read_both_ways({}, b"\x00\x53\x77" + said + b"\xff\xfe")


long_bodies = st.binary(min_size=256, max_size=600).map(encode_data)
other_bodies = st.binary(max_size=255).map(encode_data) | st.binary(max_size=9).map(
    lambda part: encode_data(bytes(300)) + encode_data(part)
)


@given(
    st.lists(st.tuples(texts, long_bodies), min_size=1, max_size=6),
    st.lists(st.tuples(texts, long_bodies | other_bodies), max_size=2),
)
def test_messages_that_are_written_alike_are_decoded_as_any_others(
    alike: list[tuple[str, bytes]], more: list[tuple[str, bytes]]
) -> None:
    journal = [(5, [enqueued(*each) for each in (*alike, *more)])]
    found = Decoder(PLACE, ALL).decode(packed(journal), BASE, 1 << 62)
    found.validate(full=True)
    assert found.to_pylist() == [as_arrow_gives(row) for row in plainly(journal, BASE, 1 << 62)]


@pytest.mark.parametrize(("size", "made", "cut"), [(0, 0, 0), (1_000, 12, 3)])
def test_a_name_is_in_every_row_whether_its_column_is_kept_or_not(
    monkeypatch: pytest.MonkeyPatch, size: int, made: int, cut: int
) -> None:
    monkeypatch.setattr(record_columns, "_REPEATED_SIZE", size)
    record_columns._many_kept.cache_clear()
    decoder = Decoder(PLACE, ("entity", "operation", "subscription"))
    for count in (1, 4, 3, 8, 2):
        data = packed([(5, [enqueued("s", encode_data(b"body"))] * count)])
        found = decoder.decode(data, BASE, 1 << 62)
        found.validate(full=True)
        row = {"entity": PLACE.entity, "operation": "enqueued", "subscription": None}
        assert found.to_pylist() == [row] * count
        # as it is handed on to Spark: what is cut from a column that is kept arrives as any other
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, found.schema) as stream:
            stream.write_batch(found)
        [carried] = list(pa.ipc.open_stream(sink.getvalue()))
        assert carried == found
    kept = record_columns._many_kept.cache_info()
    # columns of 1, 4, 8 and 2 rows were made, for three names, and one was cut again for 3 rows
    assert (kept.misses, kept.hits) == (made, cut)


@settings(max_examples=30)
@given(journals, st.integers(0, 16), st.integers(0, 16))
def test_only_the_offsets_asked_for_are_rows(journal: Journal, first: int, more: int) -> None:
    start, end = BASE + first, BASE + first + more
    found = Decoder(PLACE, ("offset", "body")).decode(packed(journal), start, end)
    wanted = [
        {"offset": row["offset"], "body": row["body"]} for row in plainly(journal, start, end)
    ]
    assert found.to_pylist() == wanted


@settings(max_examples=30)
@given(journals, st.sets(st.sampled_from(ALL), min_size=1).map(sorted))
def test_any_columns_can_be_left_out(journal: Journal, names: list[str]) -> None:
    found = Decoder(PLACE, tuple(names)).decode(packed(journal), BASE, 1 << 62)
    wanted = [{name: row[name] for name in names} for row in plainly(journal, BASE, 1 << 62)]
    assert found.to_pylist() == [as_arrow_gives(row) for row in wanted]


@settings(max_examples=30)
@given(journals)
def test_rows_are_chosen_by_operation_subscription_and_subqueue(journal: Journal) -> None:
    selection = Selection(frozenset({"enqueued", "completed"}), frozenset({1}), frozenset({0, 1}))
    found = Decoder(PLACE, ("offset",), selection).decode(packed(journal), BASE, 1 << 62)
    wanted = [
        {"offset": row["offset"]}
        for row in plainly(journal, BASE, 1 << 62)
        if row["operation"] in ("enqueued", "completed")
        and row["subscription"] == "audit"
        and row["subQueue"] in ("", "deadletter")
    ]
    assert found.to_pylist() == wanted


def test_bytes_that_were_changed_on_the_way_are_found_out() -> None:
    record = records.encode(RecordKind.COMPLETED, Message(None, "m"), 0, 0, 1)
    data = bytearray(packed([(5, [record])]))
    data[-1] ^= 1
    with pytest.raises(DecodeFailed, match="checksum"):
        Decoder(PLACE, ALL).decode(bytes(data), BASE, 1 << 62)


def test_a_kind_of_a_later_version_is_refused_and_not_left_out() -> None:
    record = bytearray(records.encode(RecordKind.COMPLETED, Message(None, "m"), 0, 0, 1))
    record[0] = 200
    with pytest.raises(DecodeFailed, match="kind"):
        Decoder(PLACE, ALL).decode(packed([(5, [bytes(record)])]), BASE, 1 << 62)


def completed(number: int) -> bytes:
    return records.encode(RecordKind.COMPLETED, Message(None, "m"), 0, 0, number)


def test_decoding_does_not_import_pandas() -> None:
    # It takes a worker half a second, and then some time after each task.
    data = packed([(5, [enqueued("a", encode_data(bytes(300))), completed(1)])])
    program = f"""
import sys
from postbus.feed.events import JournalOrigin
from pyspark_postbus.columns import ALL
from pyspark_postbus.decode import Decoder
data = bytes.fromhex({data.hex()!r})
assert Decoder(JournalOrigin("orders", 2, {{}}), ALL).decode(data, {BASE}, 1 << 62).num_rows == 2
sys.exit("pandas" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_batch_that_is_missing_is_not_passed_over() -> None:
    first = batch.pack(7, 1, BASE, 5, [completed(1)])[0]
    third = batch.pack(7, 1, BASE + 2, 5, [completed(3)])[0]
    decoder = Decoder(PLACE, ("offset",))
    with pytest.raises(DecodeFailed, match="the batch at offset 1002 comes after offset 1001"):
        decoder.decode(first + third, BASE, 1 << 62)
    with pytest.raises(DecodeFailed, match="the batch at offset 1000 comes after offset 999"):
        decoder.decode(first, BASE - 1, 1 << 62)


def test_batches_of_another_journal_are_no_rows() -> None:
    data = packed([(5, [completed(1)])])
    assert Decoder(PLACE, ("offset",), None, 7).decode(data, BASE, 1 << 62).num_rows == 1
    with pytest.raises(OtherJournal):
        Decoder(PLACE, ("offset",), None, 8).decode(data, BASE, 1 << 62)
