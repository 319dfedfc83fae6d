"""A driver that sends all dead letters of a queue again, and stops half-way when told to.

    repair_slowly.py CONNECTION QUEUE MARKS

A file `slow` in the folder MARKS makes it stay after the first request; it tells by `slow-reached`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark_postbus.pipelines.deadletters import Outcome, prepare
from pyspark_postbus.pipelines.inputs import read_dead_letters
from pyspark_postbus.spark import session

connection, queue, folder = sys.argv[1:4]
marks = Path(folder)


def told(outcome: Outcome) -> None:
    print(outcome, flush=True)
    if (marks / "slow").exists():
        (marks / "slow-reached").touch()
        time.sleep(600)


spark = session(master="local[2]")
letters = read_dead_letters(spark, connection, queue)
repair = prepare(letters, queue, edits={"properties.repaired": "true"})
outcome = repair.resubmit(connection, told=told)
print(f"done: {outcome}")
