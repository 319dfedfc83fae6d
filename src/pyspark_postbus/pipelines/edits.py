"""How dead letters are changed before they are sent again: by SQL expressions, or by a function.

Both are worked out by Spark's tasks, into the JSON that the broker's resubmit endpoint takes.
"""

import base64
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from math import isfinite
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

Letter = dict[str, Any]
"""A dead letter by its columns."""
Repairer = Callable[[Letter], Mapping[str, Any] | None]
"""The change to a letter: its new values by name. None leaves the letter alone."""

FIELDS: Final = (
    *("body", "properties", "messageId", "sessionId", "partitionKey", "correlationId"),
    *("subject", "contentType", "contentEncoding", "to", "replyTo", "replyToSessionId"),
    *("timeToLive", "scheduledEnqueueTime"),
)
"""Fields that can be changed."""
PLANNED: Final = "sequenceNumber long, subscription string, edits string, problem string"
"""The plan for each letter: the edits as JSON; or a problem; or neither, if it is left."""

_PLANNED_ARROW: Final = pa.schema(
    [
        ("sequenceNumber", pa.int64()),
        ("subscription", pa.string()),
        ("edits", pa.string()),
        ("problem", pa.string()),
    ]
)
EDITS_MAX: Final = 3 << 20
"""Of a letter, and of a request: the broker takes 4 MiB, and the request adds some bytes."""

_PROPERTY: Final = "properties."
_EDIT: Final = "edit "
_PROBLEM_MAX: Final = 300
_ASCII: Final = ("contentType", "contentEncoding")
_TIME_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""


class BadEdit(ValueError):
    """An edit that names an unchangeable field, or cannot be understood."""


def parse_edits(texts: list[str]) -> dict[str, str]:
    """`name=expression`, as on a command line; the name may be `properties.<key>`."""
    edits: dict[str, str] = {}
    for text in texts:
        name, equals, expression = text.partition("=")
        name = name.strip()
        if not equals or not expression.strip():
            raise BadEdit(f"'{text}' is not of the form name=expression")
        _check_name(name)
        if name in edits:
            raise BadEdit(f"'{name}' is set twice")
        edits[name] = expression.strip()
    return edits


def _check_name(name: str) -> None:
    if name.startswith(_PROPERTY) and len(name) > len(_PROPERTY):
        return
    if name not in FIELDS or name == "properties":
        known = ", ".join(one for one in FIELDS if one != "properties")
        raise BadEdit(f"'{name}' cannot be changed; what can: {known}, properties.<name>")


def load_function(text: str) -> Repairer:
    """The function `module:name`; modules in the current folder are found. Workers need not have
    the module: it travels with the function."""
    module_name, colon, name = text.partition(":")
    if not colon:
        raise BadEdit(f"'{text}' is not of the form module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
        function = getattr(module, name)
    except (ImportError, AttributeError) as error:
        raise BadEdit(f"'{text}' cannot be loaded: {error}") from error
    if not callable(function):
        raise BadEdit(f"'{text}' is no function")
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    loaded: Repairer = function
    return loaded


def plan(
    letters: DataFrame,
    edits: Mapping[str, str] | None = None,
    function: Repairer | None = None,
) -> DataFrame:
    """The plan for each letter: see PLANNED. The function sees the letter as the expressions leave
    it. If both change a field, the function wins."""
    expressions = dict(edits or {})
    for name in expressions:
        _check_name(name)
    # By number: a name with a dot in it would be a field of a column to Spark.
    chosen = [F.expr(text).alias(f"{_EDIT}{at}") for at, text in enumerate(expressions.values())]
    columns = ["sequenceNumber", "subscription"] if function is None else letters.columns
    return letters.select(*columns, *chosen).mapInArrow(
        _planning(list(expressions), function), PLANNED
    )


def _planning(
    names: list[str],
    function: Repairer | None,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [_planned(row, names, function) for row in _rows(batch)]
            yield pa.RecordBatch.from_pylist(rows, schema=_PLANNED_ARROW)

    return work


def _rows(batch: pa.RecordBatch) -> Iterator[Letter]:
    """Rows as dictionaries. A map column is a list of pairs to Arrow."""
    for row in batch.to_pylist():
        pairs = row.get("properties")
        if isinstance(pairs, list):
            row["properties"] = dict(pairs)
        yield row


def _planned(row: Letter, names: list[str], function: Repairer | None) -> Letter:
    changes = {name: row.pop(f"{_EDIT}{at}") for at, name in enumerate(names)}
    planned: Letter = dict.fromkeys(_PLANNED_ARROW.names)
    planned |= {"sequenceNumber": row["sequenceNumber"], "subscription": row["subscription"]}
    try:
        edits = _edits(changes)
        if function is not None:
            said = function(_as_left(row, edits))
            if said is None:
                return planned
            edits = _merged(edits, _edits(said))
        planned["edits"] = _text(_encoded(edits))
    except Exception as error:  # any error belongs to this letter, and the others go on
        planned["problem"] = f"{type(error).__name__}: {error}"[:_PROBLEM_MAX]
    return planned


def _edits(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Edits as the endpoint wants them: properties gathered in a single object."""
    edits: dict[str, Any] = {}
    for name, value in changes.items():
        if name == "properties":
            edits.setdefault("properties", {}).update(value)
        else:
            _check_name(name)
            if name.startswith(_PROPERTY):
                edits.setdefault("properties", {})[name.removeprefix(_PROPERTY)] = value
            else:
                edits[name] = value
    return edits


def _as_left(row: Letter, edits: Mapping[str, Any]) -> Letter:
    properties = {**(row.get("properties") or {}), **edits.get("properties", {})}
    return {**row, **edits, "properties": properties}


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    merged = {**first, **second}
    if "properties" in first or "properties" in second:
        merged["properties"] = {**first.get("properties", {}), **second.get("properties", {})}
    return merged


def _text(edits: Mapping[str, Any]) -> str:
    text = json.dumps(edits, separators=(",", ":"))
    if len(text) > EDITS_MAX:
        raise BadEdit(f"the edits have {len(text):,} bytes, {EDITS_MAX:,} can be sent")
    return text


def _encoded(edits: Mapping[str, Any]) -> dict[str, Any]:
    """Edits as the broker takes them: for an edit that it refuses, it refuses a whole request."""
    encoded: dict[str, Any] = {}
    for name, value in edits.items():
        if name == "body":
            encoded[name] = _body(value)
        elif name == "properties":
            encoded[name] = {_key(key): _plain(each) for key, each in value.items()}
        elif name == "timeToLive":
            encoded[name] = _span(name, None if value is None else int(value))
        elif name == "scheduledEnqueueTime":
            encoded[name] = _span(name, _millis(value))
        else:
            encoded[name] = _field(name, None if value is None else str(value))
    return encoded


def _field(name: str, value: str | None) -> str | None:
    if name == "messageId" and not value:
        raise BadEdit("a messageId is a text, and not an empty one")
    if name in _ASCII and value is not None and not value.isascii():
        raise BadEdit(f"a {name} is in ASCII")
    return None if value is None else _whole(value)


def _whole(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadEdit("a text has half of a surrogate pair") from None
    return text


def _span(name: str, millis: int | None) -> int | None:
    if millis is not None and not 1 <= millis <= _TIME_MAX:
        raise BadEdit(f"{name} is {millis}, but must be from 1 to {_TIME_MAX}")
    return millis


def _key(name: object) -> str:
    if not isinstance(name, str):
        raise BadEdit(f"the name of a property is a text, not {type(name).__name__}")
    return _whole(name)


def _body(value: object) -> str:
    if isinstance(value, str):
        value = value.encode()
    if not isinstance(value, (bytes, bytearray)):
        raise BadEdit(f"a body is bytes or text, not {type(value).__name__}")
    return base64.b64encode(value).decode()


def _millis(value: object) -> int | None:
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return int(aware.timestamp() * 1_000)
    if value is None or isinstance(value, int):
        return value
    raise BadEdit(f"a point in time is a timestamp or milliseconds, not {type(value).__name__}")


def _plain(value: object) -> object:
    """A property as JSON can say it."""
    match value:
        case str():
            return _whole(value)
        case None | bool():
            return value
        case int() if -(1 << 63) <= value < 1 << 63:
            return value
        case float() if isfinite(value):
            return value
        case int() | float():
            raise BadEdit("a property is a number of 64 bits")
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return str(value)
    raise BadEdit(f"a property is a text, a number, true or false, not {type(value).__name__}")
