"""A driver that archives a queue in small batches, and stays in the moments that matter.

    archive_slowly.py CONNECTION QUEUE TABLE MARKS [--once]

In the folder MARKS, a file `before` makes it stay where the files of a batch are written and not
yet in the table; a file `after`, where they are in the table and Spark does not know it yet. It
tells where it stays by a file of the same name with `-reached`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from pyspark_postbus.pipelines.archive import Step, archive
from pyspark_postbus.spark import session

connection, queue, table, folder = sys.argv[1:5]
marks = Path(folder)
commit = DeltaTable.create_write_transaction


def stay(where: str) -> None:
    if (marks / where).exists():
        (marks / f"{where}-reached").touch()
        time.sleep(600)


def commit_slowly(self: DeltaTable, *arguments: Any, **named: Any) -> None:
    if DeltaTable(table).version() >= 2:
        stay("before")
    commit(self, *arguments, **named)


def told(step: Step) -> None:
    print(step, flush=True)
    if step.added.version >= 2:
        stay("after")


DeltaTable.create_write_transaction = commit_slowly  # type: ignore[method-assign]
running = archive(
    session(master="local[2]"), connection, table, [queue],
    once="--once" in sys.argv, every_s=0.1, events_max=700, compact_every=3, told=told,
)  # fmt: skip
running.run()
