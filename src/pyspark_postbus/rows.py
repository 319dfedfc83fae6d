"""Rows of a DataFrame as messages: the allowed columns, and their place in a message (AMQP 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from postbus.amqp.codec.types import Int, Long, Symbol, Timestamp
from postbus.amqp.sections import (
    Properties,
    encode_application_properties,
    encode_data,
    encode_header,
    encode_message_annotations,
    encode_properties,
)
from pyspark_postbus.options import BadOption
from pyspark_postbus.row_ids import RowIds

_NUMBERS: Final = (ByteType, ShortType, IntegerType, LongType)
_VALUES: Final = (
    *(StringType, BooleanType, *_NUMBERS, FloatType, DoubleType),
    *(TimestampType, BinaryType),
)
_TTL_MAX: Final = 0xFFFFFFFF
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SCHEDULED: Final = Symbol("x-opt-scheduled-enqueue-time")
_PARTITION_KEY: Final = Symbol("x-opt-partition-key")

WRITABLE: Final[dict[str, tuple[type[DataType], ...]]] = {
    "body": (BinaryType, StringType),
    "messageId": (StringType,),
    "sessionId": (StringType,),
    "partitionKey": (StringType,),
    "correlationId": (StringType,),
    "subject": (StringType,),
    "contentType": (StringType,),
    "to": (StringType,),
    "replyTo": (StringType,),
    "timeToLive": _NUMBERS,
    "scheduledEnqueueTime": (TimestampType,),
    "properties": (MapType,),
}
"""The columns that a message can be made from, and the types they may have."""


class BadRow(ValueError):
    """A value that no message can have."""


def check(schema: StructType) -> None:
    """Refuse a DataFrame with other columns than WRITABLE, by their names."""
    names = [field.name for field in schema.fields]
    if "body" not in names:
        raise BadOption("a DataFrame to be written needs a column 'body'")
    for field in schema.fields:
        allowed = WRITABLE.get(field.name)
        if allowed is None:
            raise BadOption(
                f"the column '{field.name}' cannot be written; there are: {', '.join(WRITABLE)}"
            )
        fits = isinstance(field.dataType, allowed)
        if isinstance(field.dataType, MapType):
            fits = isinstance(field.dataType.keyType, StringType) and isinstance(
                field.dataType.valueType, _VALUES
            )
        if not fits:
            kind = field.dataType.simpleString()
            raise BadOption(f"the column '{field.name}' cannot be written as {kind}")


def messages(batches: Iterator[pa.RecordBatch], ids: RowIds) -> Iterator[bytes]:
    """Each row as an encoded message."""
    for batch in batches:
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        rows = [
            _parts({name: column[place] for name, column in columns.items()})
            for place in range(batch.num_rows)
        ]
        nameless = [parts for parts in rows if parts.properties.message_id is None]
        made = ids.of([_joined(parts) for parts in nameless])
        for parts, message_id in zip(nameless, made, strict=True):
            parts.properties.message_id = message_id
        yield from map(_joined, rows)


def encode(values: dict[str, Any], make_id: Callable[[], str]) -> bytes:
    """A message from the values of a row."""
    parts = _parts(values)
    if parts.properties.message_id is None:
        parts.properties.message_id = make_id()
    return _joined(parts)


class _Parts(NamedTuple):
    """A message that has yet to get its id."""

    head: bytes
    properties: Properties
    tail: bytes


def _joined(parts: _Parts) -> bytes:
    return b"".join((parts.head, encode_properties(parts.properties), parts.tail))


def _parts(values: dict[str, Any]) -> _Parts:
    head = tail = b""
    ttl = values.get("timeToLive")
    if ttl is not None:
        if ttl <= 0:
            raise BadRow(f"a timeToLive of {ttl} ms: it must be above 0")
        # The header has 32 bits for it. A longer time to live is the time between two of the
        # properties.
        head = encode_header(ttl=min(ttl, _TTL_MAX))
    annotations: dict[Any, Any] = {}
    scheduled = values.get("scheduledEnqueueTime")
    if scheduled is not None:
        annotations[_SCHEDULED] = Timestamp(_instant(scheduled))
    if values.get("partitionKey") is not None:
        annotations[_PARTITION_KEY] = values["partitionKey"]
    if annotations:
        head += encode_message_annotations(annotations)
    said = Properties(
        message_id=values.get("messageId"),
        to=values.get("to"),
        subject=values.get("subject"),
        reply_to=values.get("replyTo"),
        correlation_id=values.get("correlationId"),
        content_type=values.get("contentType"),
        group_id=values.get("sessionId"),
    )
    if ttl is not None and ttl >= _TTL_MAX:
        said.creation_time, said.absolute_expiry_time = 0, ttl
    properties = values.get("properties")
    if properties:
        # A map comes out of Arrow as pairs. Spark's have no order: a row that is made again may
        # have another, and is the same message.
        typed = {name: _typed(value) for name, value in sorted(properties, key=_name_of)}
        tail = encode_application_properties(typed)
    body = values["body"]
    if body is None:
        raise BadRow("a row has no body: it is null")
    return _Parts(head, said, tail + encode_data(body.encode() if isinstance(body, str) else body))


def _name_of(pair: tuple[str, Any]) -> str:
    return pair[0]


def _typed(value: Any) -> Any:
    if isinstance(value, datetime):
        return Timestamp(_instant(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return Int(value) if -(1 << 31) <= value < 1 << 31 else Long(value)
    return value


def _instant(value: datetime) -> int:
    when = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return round((when - _EPOCH).total_seconds() * 1_000)
