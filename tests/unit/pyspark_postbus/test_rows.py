"""R-PIPE-01: columns become the properties of messages."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from postbus.amqp.codec.types import Int, Timestamp
from postbus.amqp.sections import (
    read_annotations,
    read_application_properties,
    read_data,
    read_header,
    read_properties,
    scan,
)
from postbus.messages.envelope import read_message
from pyspark_postbus.options import BadOption
from pyspark_postbus.row_ids import Counted, RowIds
from pyspark_postbus.rows import BadRow, check, encode, messages

JANUARY_2 = datetime(1970, 1, 2, tzinfo=UTC)


KINDS: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "long": LongType(),
    "double": DoubleType(),
    "timestamp": TimestampType(),
    "map<int,string>": MapType(IntegerType(), StringType()),
    "map<string,array<int>>": MapType(StringType(), ArrayType(IntegerType())),
    "map<string,bigint>": MapType(StringType(), LongType()),
}


def schema(text: str) -> StructType:
    parts = [part.split(" ") for part in text.split(", ")]
    return StructType([StructField(name, KINDS[kind]) for name, kind in parts])


def test_every_column_is_where_a_receiver_looks_for_it() -> None:
    raw = encode(
        {
            "body": "tea",
            "messageId": "m",
            "sessionId": "s",
            "partitionKey": "s",
            "correlationId": "c",
            "subject": "breakfast",
            "contentType": "text/plain",
            "to": "there",
            "replyTo": "here",
            "timeToLive": 5_000,
            "scheduledEnqueueTime": datetime(2026, 6, 30, tzinfo=UTC),
            "properties": [("n", 7), ("big", 1 << 40), ("yes", True), ("at", JANUARY_2)],
        },
        lambda: "unused",
    )
    sections = scan(raw)
    properties = read_properties(raw, sections)
    assert read_data(raw, sections) == b"tea"
    assert (properties.message_id, properties.group_id) == ("m", "s")
    assert (properties.correlation_id, properties.subject) == ("c", "breakfast")
    assert (properties.content_type, properties.to) == ("text/plain", "there")
    assert (properties.reply_to, read_header(raw, sections).ttl) == ("here", 5_000)
    annotations = read_annotations(raw, sections)
    assert annotations["x-opt-partition-key"] == "s"
    assert annotations["x-opt-scheduled-enqueue-time"] == 1_782_777_600_000
    values = read_application_properties(raw, sections)
    assert values == {"n": 7, "big": 1 << 40, "yes": True, "at": 86_400_000}
    assert [type(values[name]) for name in ("n", "big", "yes", "at")] == [Int, int, bool, Timestamp]


def ids(*batches: list[str], write: str = "query/7", partition: int = 3) -> list[object]:
    rows = (pa.record_batch({"body": batch}) for batch in batches)
    made = messages(rows, RowIds(write, partition))
    return [read_properties(each, scan(each)).message_id for each in made]


def test_a_row_without_an_id_has_the_same_one_when_its_task_is_run_again() -> None:
    first = ids(["a", "b"], ["c"])
    assert len(set(first)) == 3
    assert ids(["a", "b"], ["c"]) == first
    assert not set(first) & set(ids(["a", "b"], ["c"], write="query/8"))
    assert not set(first) & set(ids(["a", "b"], ["c"], partition=2))


def test_rows_that_come_in_another_order_keep_their_ids() -> None:
    """After a shuffle: by its place a row would take the id of another, and be dropped for it."""
    rows = [str(number % 40) for number in range(100)]
    first = ids(rows[:30], rows[30:70], rows[70:])
    assert len(set(first)) == 100, "equal rows are as many messages"
    again = ids(list(reversed(rows[50:])), rows[:50])
    assert set(again) == set(first)


def test_a_map_in_another_order_is_the_same_row() -> None:
    """Spark's maps have no order: one that is put together after a shuffle may have any."""
    kind = pa.map_(pa.string(), pa.string())
    pairs = [("a", "1"), ("b", None), ("c", "3")]

    def made(*maps: list[tuple[str, str | None]]) -> list[object]:
        columns = [pa.array(["x"] * len(maps)), pa.array(list(maps), kind)]
        batch = pa.record_batch(columns, ["body", "properties"])
        found = messages(iter([batch]), RowIds("w", 0))
        return [read_properties(each, scan(each)).message_id for each in found]

    assert made(pairs) == made(pairs[::-1])
    assert len(set(made(pairs, pairs[::-1], pairs[:2], []))) == 4


def test_a_row_keeps_the_id_that_it_has() -> None:
    batch = pa.record_batch({"body": ["a", "a", "a"], "messageId": ["x", None, "y"]})
    made = [read_properties(each, scan(each)).message_id
            for each in messages(iter([batch]), RowIds("w", 0))]  # fmt: skip
    assert [made[0], made[2]] == ["x", "y"]
    assert ids(["a"], write="w", partition=0) == made[1:2]


@given(st.lists(st.lists(st.integers(0, 5))))
def test_equal_rows_are_counted_over_all_batches(batches: list[list[int]]) -> None:
    counted, seen = Counted(), Counter[int]()
    for batch in batches:
        expected = []
        for key in batch:
            expected.append(seen[key])
            seen[key] += 1
        assert counted.before(np.array(batch, np.uint64)).tolist() == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("messageId string", "needs a column 'body'"),
        ("body string, offset long", "'offset' cannot be written; there are: body"),
        ("body int", "'body' cannot be written as int"),
        ("body string, properties map<int,string>", "'properties' cannot be written as map"),
        ("body string, properties map<string,array<int>>", "'properties' cannot be written as"),
        ("body string, timeToLive double", "'timeToLive' cannot be written as double"),
    ],
)
def test_a_column_that_no_message_has_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(BadOption, match=said):
        check(schema(text))


def test_all_columns_that_a_message_has_are_taken() -> None:
    check(
        schema(
            "body binary, messageId string, timeToLive int, scheduledEnqueueTime timestamp, "
            "properties map<string,bigint>"
        )
    )


def test_a_value_that_no_message_can_have_is_refused() -> None:
    with pytest.raises(BadRow, match="no body"):
        encode({"body": None}, lambda: "m")
    with pytest.raises(BadRow, match="timeToLive of 0 ms"):
        encode({"body": "", "timeToLive": 0}, lambda: "m")


@pytest.mark.parametrize("ttl", [0xFFFFFFFE, 0xFFFFFFFF, 100 * 86_400_000])
def test_a_time_to_live_of_any_length_is_what_the_broker_reads(ttl: int) -> None:
    raw = encode({"body": "", "timeToLive": ttl}, lambda: "m")
    assert read_message(raw, 1_000).ttl == ttl
