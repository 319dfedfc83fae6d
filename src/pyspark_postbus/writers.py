"""DataFrames and streams into a queue or topic.

Spark runs a task again when it has failed, and a micro-batch when the query was killed. Their
messages are then sent again, with the ids they had. An entity with duplicate detection drops them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pyspark_postbus.client import Client, PostbusError
from pyspark_postbus.options import WriteOptions
from pyspark_postbus.ranges import check_kind
from pyspark_postbus.row_ids import RowIds
from pyspark_postbus.rows import check, messages
from pyspark_postbus.sender import Sender
from pyspark_postbus.worker import BATCH_ID, QUERY_ID

_ASKED_S: Final = 5.0


@dataclass
class Sent(WriterCommitMessage):
    """The result of a task."""

    count: int


class BatchWriter(DataSourceArrowWriter):
    """A `df.write`."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check(schema)
        self._options = options
        # Made on the driver, so that a task that is run again has the same.
        self._write = str(uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        # Within `foreachBatch` a write is a part of the micro-batch, and is repeated with it.
        own = self._write if self._options.id is None else ""
        return _sent(self._options, iterator, _micro_batch() or own)


class StreamWriter(DataSourceStreamArrowWriter):
    """A `df.writeStream`, micro-batch by micro-batch."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check(schema)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        batch = _micro_batch()
        if batch is None:
            raise RuntimeError("Spark has not said which micro-batch this is")
        return _sent(self._options, iterator, batch)


def check_target(options: WriteOptions) -> None:
    """BadOption for a topic named as a queue, and the reverse. A key that may only send cannot ask.
    Other faults are left to the tasks, which try for longer."""
    with suppress(PostbusError), Client(options.namespace, _ASKED_S) as client:
        check_kind(client.feed(options.entity), options.is_topic)


def _micro_batch() -> str | None:
    """The streaming query and its micro-batch that this task is of, the same after a restart."""
    task = _task()
    query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
    return None if query is None or batch is None else f"{query}/{batch}"


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise RuntimeError("messages are written by Spark's tasks only")
    return task


def _sent(options: WriteOptions, batches: Iterator[pa.RecordBatch], write: str) -> Sent:
    ids = RowIds(f"{write}/{options.id or ''}", _task().partitionId())
    with Sender(options.namespace, options.entity) as sender:
        for message in messages(batches, ids):
            sender.send(message)
        sender.flush()
        return Sent(sender.settled)
