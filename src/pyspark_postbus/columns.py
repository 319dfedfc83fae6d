"""The columns of the data source: their types for Spark and for Arrow, and the cost of each.

The Python data source API has no column pruning. So a query leaves columns out with the schema that
it gives, `spark.read.schema("offset long, body binary")`. Absent columns are never decoded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

_TIME: Final = pa.timestamp("us", tz="UTC")
_PROPERTIES: Final = pa.map_(
    pa.string(), pa.field("value", pa.string(), nullable=True), keys_sorted=False
)

TYPES: Final[dict[str, tuple[str, pa.DataType]]] = {
    "entity": ("string", pa.string()),
    "subscription": ("string", pa.string()),
    "subQueue": ("string", pa.string()),
    "partition": ("int", pa.int32()),
    "offset": ("bigint", pa.int64()),
    "timestamp": ("timestamp", _TIME),
    "operation": ("string", pa.string()),
    "sequenceNumber": ("bigint", pa.int64()),
    "originalSequenceNumber": ("bigint", pa.int64()),
    "enqueuedTime": ("timestamp", _TIME),
    "messageId": ("string", pa.string()),
    "sessionId": ("string", pa.string()),
    "partitionKey": ("string", pa.string()),
    "correlationId": ("string", pa.string()),
    "subject": ("string", pa.string()),
    "contentType": ("string", pa.string()),
    "to": ("string", pa.string()),
    "replyTo": ("string", pa.string()),
    "timeToLive": ("bigint", pa.int64()),
    "scheduledEnqueueTime": ("timestamp", _TIME),
    "expiresAt": ("timestamp", _TIME),
    "deliveryCount": ("int", pa.int32()),
    "deadLetterReason": ("string", pa.string()),
    "deadLetterErrorDescription": ("string", pa.string()),
    "deadLetterSource": ("string", pa.string()),
    "deliveredTime": ("timestamp", _TIME),
    "properties": ("map<string,string>", _PROPERTIES),
    "bodySize": ("bigint", pa.int64()),
    "body": ("binary", pa.binary()),
    "message": ("binary", pa.binary()),
}
"""By name: the type in Spark's words, and in Arrow's."""

ALL: Final = tuple(name for name in TYPES if name != "message")
"""The default columns. `message` is the whole message as AMQP has it, with everything that is in
the other columns: for a caller that sends it again unchanged."""

OF_SECTIONS: Final = frozenset(
    {
        *("partitionKey", "correlationId", "subject", "contentType", "to", "replyTo"),
        *("properties", "body", "message"),
    }
)
"""Columns that only the message itself holds: its sections are read for these."""


class UnknownColumn(ValueError):
    """A schema asks for an unknown column, or for a column in another type."""


def ddl(names: Iterable[str] = ALL) -> str:
    """These columns as the text of a Spark schema."""
    return ", ".join(f"`{name}` {TYPES[name][0]}" for name in names)


def arrow_schema(names: Iterable[str]) -> pa.Schema:
    """These columns as an Arrow schema."""
    return pa.schema([pa.field(name, TYPES[name][1], nullable=True) for name in names])


def check(fields: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The names of a schema that a user gave, as (name, type) in Spark's words; UnknownColumn if
    they are not ours."""
    names = []
    for name, kind in fields:
        if name not in TYPES:
            raise UnknownColumn(f"there is no column '{name}'; there are: {', '.join(TYPES)}")
        if TYPES[name][0] != kind:
            raise UnknownColumn(f"the column '{name}' is {TYPES[name][0]}, not {kind}")
        names.append(name)
    if len(set(names)) < len(names):
        raise UnknownColumn("a column is there twice")
    return tuple(names)
