"""A table of events in the Delta format: exactly one row for each event that was archived.

A commit adds files. The same log entry says for each fragment up to which offset the table has its
events now. This is a Delta application transaction: the fragment is the application, the offset
after its last event is the version. Spark repeats a batch after a crash, or a checkpoint is lost: a
writer then leaves out the events below that offset. So the promise does not depend on how Spark
cuts its batches. Two writers of the same fragment cannot both commit either: Delta refuses a
version of an application that changed during a commit.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from pyspark_postbus.pipelines.inputs import parallelism
from pyspark_postbus.pipelines.lake_files import PARTITION_BY, WRITTEN, reading, writing

_FILE_SIZE: Final = 128 << 20
_COMMIT_RETRIES: Final = 50
_DATE: Final = pa.field("date", pa.date32())
_NEEDED: Final = frozenset({"partition", "offset", "timestamp"})


class NotAnArchive(Exception):
    """The table at that address is no table of events."""


class NotArchived(Exception):
    """The table has no events of the entity that was asked for."""


class Source(NamedTuple):
    """A fragment with events in the table, under a name that is never given to another fragment."""

    entity: str
    partition: int
    fragment: int

    @property
    def application(self) -> str:
        return f"postbus/{self.entity}/{self.partition}/{self.fragment:x}"


class Added(NamedTuple):
    """The additions of a commit."""

    events: int
    files: int
    size: int
    version: int
    """Of the table, after it."""


class Lake:
    """A Delta table, by its address; made with the first commit."""

    def __init__(self, uri: str, storage: Mapping[str, str] | None = None) -> None:
        # Workers have folders of their own to stand in.
        self.uri = uri if "://" in uri else str(Path(uri).absolute())
        self.storage = dict(storage) if storage else None
        self._table: DeltaTable | None = None

    def table(self) -> DeltaTable | None:
        """The table as it is now; None when there is none yet."""
        if self._table is not None:
            self._table.update_incremental()
        elif DeltaTable.is_deltatable(self.uri, self.storage):
            self._table = self._opened()
        return self._table

    def _opened(self) -> DeltaTable:
        """Files of events among others would spoil a table, and so would cleaning it up."""
        table = DeltaTable(self.uri, storage_options=self.storage)
        names = {field.name for field in table.schema().fields}
        if table.metadata().partition_columns != [*PARTITION_BY] or not names >= _NEEDED:
            raise NotAnArchive(f"{self.uri} is a table of something else: name another one")
        return table

    def id(self, events: StructType) -> str:
        """The id of the table, which no other table has at any address. An absent table is made
        with all columns of these events: entities that begin at once do not all add them then."""
        table = self.table() or self._create(events)
        self._widen(table, events)
        return str(table.metadata().id)

    def ends(self, sources: Iterable[Source]) -> dict[int, int]:
        """By partition, the offset up to which the table has the events. Absent partitions are left
        out."""
        table = self.table()
        if table is None:
            return {}
        found = {one.partition: table.transaction_version(one.application) for one in sources}
        return {partition: end for partition, end in found.items() if end is not None}

    def rows(
        self, entity: str, partition: int, offset: int, columns: Sequence[str]
    ) -> list[dict[str, Any]]:
        """The rows of the table at this offset. Several rows if several entities had this name,
        each after the other."""
        table = self.table()
        if table is None:
            return []
        stored = table.to_pyarrow_dataset()
        wanted = pc.field("entity") == entity
        wanted &= (pc.field("partition") == partition) & (pc.field("offset") == offset)
        known = [name for name in columns if name in stored.schema.names]
        rows: list[dict[str, Any]] = stored.to_table(columns=known, filter=wanted).to_pylist()
        return rows

    def append(self, events: DataFrame, sources: Sequence[Source]) -> Added:
        """Add the events of these fragments that are not in the table yet."""
        floors = self.ends(sources)
        table = self._table or self._create(events.schema)
        self._widen(table, events.schema)
        rows = events.mapInArrow(writing(self.uri, self.storage, floors), WRITTEN).collect()
        if not rows:
            return Added(0, 0, 0, table.version())
        ends: dict[int, int] = {}
        for row in rows:
            for partition, end in json.loads(row.ends).items():
                ends[int(partition)] = max(end, ends.get(int(partition), 0))
        now = int(time.time() * 1_000)
        table.create_write_transaction(
            [
                AddAction(
                    row.path, row.size, {"entity": row.entity, "date": row.date}, now, True,
                    row.stats,
                )
                for row in rows
            ],
            "append",
            table.schema(),
            list(PARTITION_BY),
            commit_properties=CommitProperties(
                max_commit_retries=_COMMIT_RETRIES,
                app_transactions=[
                    Transaction(one.application, ends[one.partition])
                    for one in sources
                    if one.partition in ends
                ],
            ),
        )  # fmt: skip
        table.update_incremental()
        return Added(
            sum(row["rows"] for row in rows), len(rows), sum(row.size for row in rows),
            table.version(),
        )  # fmt: skip

    def _create(self, events: StructType) -> DeltaTable:
        """An empty table. Two callers that make it at once end up with the same table."""
        DeltaTable.create(
            self.uri,
            Schema.from_arrow(pa.schema([*_columns(events), _DATE])),
            mode="ignore",
            partition_by=list(PARTITION_BY),
            name="postbus events",
            storage_options=self.storage,
        )
        self._table = self._opened()
        return self._table

    def _widen(self, table: DeltaTable, events: StructType) -> None:
        """Columns that came with a later version: null in the events before it."""
        known = {field.name for field in table.schema().fields}
        new = [each.with_nullable(True) for each in _columns(events) if each.name not in known]
        if new:
            table.alter.add_columns(Schema.from_arrow(pa.schema(new)).fields)

    def compact(self, file_size: int = _FILE_SIZE) -> dict[str, Any]:
        """Put small files together; readers see the same rows before and after."""
        table = self.table()
        if table is None:
            return {}
        outcome: dict[str, Any] = table.optimize.compact(
            target_size=file_size, max_concurrent_tasks=1
        )
        return outcome

    def clean(self, hours: int) -> list[str]:
        """Remove files that the table has not needed for so long, and old entries of its log."""
        table = self.table()
        if table is None:
            return []
        removed = table.vacuum(
            retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=True
        )
        table.create_checkpoint()
        table.cleanup_metadata()
        return removed

    def read(
        self,
        spark: SparkSession,
        entities: Sequence[str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        columns: Sequence[str] | None = None,
    ) -> DataFrame:
        """The events, through the log's list of files: the folder may hold others."""
        table = self.table()
        if table is None:
            raise FileNotFoundError(f"there is no table of events at {self.uri}")
        since, until = (None if at is None else instant(at) for at in (since, until))
        schema = pa.schema(table.schema().to_arrow())
        names = list(columns or [name for name in schema.names if name != "date"])
        wanted = pa.schema([schema.field(name) for name in names])
        stored = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        asked = _asked({row["partition.entity"] for row in stored}, entities, self.uri)
        files = [
            (row["path"], row["partition.entity"], row["partition.date"].isoformat())
            for row in stored
            if row["partition.entity"] in asked
            and (since is None or row["partition.date"] >= since.date())
            and (until is None or row["partition.date"] <= until.date())
        ]
        listed = spark.createDataFrame(files, "path string, entity string, date string")
        spread = max(1, min(len(files), parallelism(spark) * 4))
        read = listed.repartition(spread).mapInArrow(
            reading(self.uri, self.storage, wanted), from_arrow_schema(wanted)
        )
        if since is not None:
            read = read.where(read["timestamp"] >= since)
        if until is not None:
            read = read.where(read["timestamp"] < until)
        return read


def _asked(known: set[str], entities: Sequence[str] | None, uri: str) -> set[str]:
    """The entities that are to be read, without regard to case. A name without events in the table
    was misspelt, or belongs to another broker."""
    if entities is None:
        return known
    lower = {name.lower() for name in known}
    for name in entities:
        if name.lower() not in lower:
            there = ", ".join(sorted(known)) or "nothing"
            raise NotArchived(f"{uri} has no events of '{name}'; it has: {there}")
    # An entity that was made anew may be written in another way than it was before.
    wanted = {name.lower() for name in entities}
    return {name for name in known if name.lower() in wanted}


def _columns(events: StructType) -> list[pa.Field]:
    return [
        pa.field("envelope", pa.binary()) if field.name == "message" else field
        for field in to_arrow_schema(events, timezone="UTC")
    ]


def instant(at: datetime) -> datetime:
    """A time as the table's days have it: UTC. A time without a zone is taken as UTC."""
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
