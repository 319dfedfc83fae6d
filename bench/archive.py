"""How fast the archive takes in the change feed: `make bench-archive`.

A queue is filled with messages of 1 KB. Each round archives its whole feed into a new Delta table,
every column and the envelope of each message, with everything on this one machine: broker, Spark,
and the files. A round is what `postbus pipeline archive --once` does after Spark has started.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path
from statistics import median

from bench.brokers import Postbus
from bench.feed_spark import QUEUE, fill
from bench.processes import machine, usage_of
from bench.program import add_places, conduct, say, write_json
from bench.report import markdown
from bench.work import RunFailed
from pyspark_postbus.pipelines.archive import Step, archive
from pyspark_postbus.spark import session

WANTED = 30_000
"""Events per second, on two cores."""


def measure(given: argparse.Namespace, folder: Path) -> int:
    flags = ("--retention-mb", str(1_048_576))
    with Postbus(folder / "broker", [QUEUE], flags, max_size_mb=5_120) as broker:
        connection = broker.connection_string
        fill(connection, given.events, given.size)
        say(f"{given.events} messages of {given.size} bytes were sent")
        spark = session(master="local[2]", settings={"spark.local.dir": str(folder / "spark")})
        rounds = []
        # The first round warms up.
        for number in range(given.rounds + 1):
            table = folder / "lake"
            before = usage_of(os.getpid()).cpu_s
            began = time.monotonic()
            steps: list[Step] = []
            archive(spark, connection, str(table), [QUEUE], once=True, told=steps.append)
            took_s = time.monotonic() - began
            cpu_us = (usage_of(os.getpid()).cpu_s - before) / given.events * 1e6
            found = sum(step.added.events for step in steps)
            if found != given.events:
                raise RunFailed(f"the table has {found} events, not {given.events}")
            say(f"  {found / took_s:.0f}/s with {cpu_us:.1f} µs of CPU each, {len(steps)} batches")
            if number:
                rounds.append((found / took_s, cpu_us))
            shutil.rmtree(table)
        spark.stop()
        rate = median(each for each, _ in rounds)
        row = [f"{rate:.0f}", str(WANTED), f"{median(each for _, each in rounds):.1f}"]
        say(markdown(["events/s", "wanted", "CPU µs/event, with the broker"], [row]))
        write_json(
            given.output,
            {"machine": machine(folder), "broker": broker.full_name, "rounds": rounds},
        )
    return 0 if rate >= WANTED else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=1_000, help="bytes of a body")
    parser.add_argument("--rounds", type=int, default=3)
    add_places(parser, "bench-archive.json")
    return conduct(measure, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
