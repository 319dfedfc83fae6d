"""Files of an archive: written by Spark's tasks, a Parquet file for each entity and day.

A task writes files and reports them. They do not count until the driver has put them into the
table's log (`pyspark_postbus.pipelines.lake`). Files of a failed or killed task are named nowhere,
and are removed with other leftovers when the table is cleaned up.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from typing import Any, Final
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSystem, PyFileSystem

from pyspark_postbus.pipelines.envelopes import with_envelopes

Batches = Iterator[pa.RecordBatch]

WRITTEN: Final = (
    "path string, size long, entity string, date string, rows long, ends string, stats string"
)
"""A task's report of a file. `ends`: the offset after its last event, by partition, as JSON."""

PARTITION_BY: Final = ("entity", "date")
_WRITTEN_ARROW: Final = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("entity", pa.string()),
        ("date", pa.string()),
        ("rows", pa.int64()),
        ("ends", pa.string()),
        ("stats", pa.string()),
    ]
)
_GROUP_ROWS: Final = 131_072
_GROUP_BYTES: Final = 64 << 20
_FILE_BYTES: Final = 256 << 20
_REPEATED: Final = (
    *("subscription", "subQueue", "partition", "operation", "sessionId", "subject", "contentType"),
    *("to", "replyTo", "deliveryCount", "deadLetterReason", "deadLetterSource"),
    "properties.key_value.key",
)
"""Columns in which the same values come again. For others, bodies above all, a dictionary is begun,
found too large and thrown away. That took a third of the time of writing."""
_MEASURED: Final = ("partition", "offset", "timestamp", "sequenceNumber")
"""Columns with their smallest and largest value in the log, so that readers can skip files."""


def file_system(table: str, storage: Mapping[str, str] | None) -> FileSystem:
    """The table's folder on any file system: the names of `storage` are those of delta-rs."""
    return PyFileSystem(DeltaStorageHandler(table, dict(storage) if storage else None))


def writing(
    table: str, storage: Mapping[str, str] | None, floors: Mapping[int, int]
) -> Callable[[Batches], Batches]:
    """For `mapInArrow`: write the events that are at or above the floor of their partition."""

    def write(batches: Batches) -> Batches:
        files = file_system(table, storage)
        open_files: dict[tuple[str, date], _File] = {}
        done: list[dict[str, Any]] = []
        for batch in batches:
            wanted = with_envelopes(_above(_in_utc(pa.Table.from_batches([batch])), floors))
            for key, rows in _by_entity_and_day(wanted):
                file = open_files.get(key)
                if file is None:
                    file = open_files[key] = _File(files, *key)
                file.add(rows)
                if file.size > _FILE_BYTES:
                    done.append(open_files.pop(key).close())
        done += [file.close() for file in open_files.values()]
        if done:
            yield pa.RecordBatch.from_pylist(done, schema=_WRITTEN_ARROW)

    return write


def _in_utc(rows: pa.Table) -> pa.Table:
    """Spark gives times the zone of its session, and with it a day begins at another hour."""
    fields = [
        field.with_type(pa.timestamp(field.type.unit, "UTC"))
        if pa.types.is_timestamp(field.type)
        else field
        for field in rows.schema
    ]
    return rows.cast(pa.schema(fields))


def _above(rows: pa.Table, floors: Mapping[int, int]) -> pa.Table:
    for partition, floor in floors.items():
        below = pc.and_(pc.equal(rows["partition"], partition), pc.less(rows["offset"], floor))
        if pc.any(below).as_py():
            rows = rows.filter(pc.invert(below))
    return rows


def _by_entity_and_day(rows: pa.Table) -> Iterator[tuple[tuple[str, date], pa.Table]]:
    if not rows.num_rows:
        return
    days = pc.cast(pc.floor_temporal(rows["timestamp"], unit="day"), pa.date32())
    bare = rows.drop_columns(["entity"])
    entities = pc.unique(rows["entity"]).to_pylist()
    of_days = pc.unique(days).to_pylist()
    if len(entities) == 1 and len(of_days) == 1:
        yield (entities[0], of_days[0]), bare
        return
    for entity in entities:
        for day in of_days:
            chosen = bare.filter(pc.and_(pc.equal(rows["entity"], entity), pc.equal(days, day)))
            if chosen.num_rows:
                yield (entity, day), chosen


class _File:
    """A Parquet file in the making."""

    def __init__(self, files: FileSystem, entity: str, day: date) -> None:
        # The log says which entity it is; the folder's name is for people, and needs no escapes.
        folder = f"entity={re.sub(r'[^A-Za-z0-9._-]', '_', entity)}/date={day.isoformat()}"
        self._path = f"{folder}/{uuid4()}.parquet"
        self._entity, self._day = entity, day
        self._stream = files.open_output_stream(self._path)
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []
        self._waiting_rows = self._waiting_bytes = self._rows = 0
        self._least: dict[str, Any] = {}
        self._most: dict[str, Any] = {}
        self._ends: dict[int, int] = {}

    @property
    def size(self) -> int:
        return int(self._stream.tell())

    def add(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        if self._waiting_rows >= _GROUP_ROWS or self._waiting_bytes >= _GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        rows = pa.concat_tables(self._waiting)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._stream, rows.schema, compression="zstd", compression_level=1,
                use_dictionary=list(_REPEATED), write_statistics=list(_MEASURED),
            )  # fmt: skip
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._rows += rows.num_rows
        for name in _MEASURED:
            if name in rows.column_names:
                bounds = pc.min_max(rows[name]).as_py()
                if bounds["min"] is not None:
                    self._least[name] = min(self._least.get(name, bounds["min"]), bounds["min"])
                    self._most[name] = max(self._most.get(name, bounds["max"]), bounds["max"])
        last = (
            rows.select(["partition", "offset"])
            .group_by("partition")
            .aggregate([("offset", "max")])
        )
        for row in last.to_pylist():
            partition, end = row["partition"], row["offset_max"] + 1
            self._ends[partition] = max(end, self._ends.get(partition, 0))

    def close(self) -> dict[str, Any]:
        if self._waiting:
            self._write_group()
        assert self._writer is not None, "a file is made for its first rows"
        self._writer.close()
        size = self.size
        self._stream.close()
        return {
            "path": self._path,
            "size": size,
            "entity": self._entity,
            "date": self._day.isoformat(),
            "rows": self._rows,
            "ends": json.dumps(self._ends),
            "stats": json.dumps(
                {
                    "numRecords": self._rows,
                    "minValues": _plain(self._least),
                    "maxValues": _plain(self._most),
                    "nullCount": {},
                }
            ),
        }


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as Delta's log has them. Commit times have whole milliseconds, so none is cut off."""
    return {
        name: value.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
        if hasattr(value, "strftime")
        else value
        for name, value in values.items()
    }


def reading(
    table: str, storage: Mapping[str, str] | None, wanted: pa.Schema
) -> Callable[[Batches], Batches]:
    """For `mapInArrow` over rows (path, entity, date): the events in these files."""

    def read(batches: Batches) -> Batches:
        files = file_system(table, storage)
        inside = [name for name in wanted.names if name not in PARTITION_BY]
        for batch in batches:
            for row in batch.to_pylist():
                # The log has paths as URLs have them; paths of `_File` need no escapes.
                with files.open_input_file(unquote(row["path"])) as source:
                    parts = pq.ParquetFile(source).iter_batches(16_384, columns=inside)
                    for part in parts:
                        yield _whole(part, row, wanted)

    return read


def _whole(part: pa.RecordBatch, row: Mapping[str, Any], wanted: pa.Schema) -> pa.RecordBatch:
    columns = []
    for field in wanted:
        if field.name == "entity":
            column = pa.repeat(pa.scalar(row["entity"], field.type), part.num_rows)
        elif field.name == "date":
            value = date.fromisoformat(row["date"])
            column = pa.repeat(pa.scalar(value, field.type), part.num_rows)
        elif field.name in part.schema.names:
            column = part.column(field.name).cast(field.type)
        else:
            column = pa.nulls(part.num_rows, field.type)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=wanted)
