"""What a commit costs by who writes it: `make bench-writer`.

The native thread of the log, its twin in Python, and the store on SQLite write the same batches.
The interpreter is busy all the time, as it is in a broker under load, in one of two ways:

- `loop`: the thread that commits is busy itself. Between slices of other work it starts commits and
  looks which are durable, as the event loop does. SQLite has a thread of its own for its commits.
- `beside`: another thread is busy, and the thread that commits waits for each commit.

The CPU that goes into the slices tells what commits leave for the rest of the broker. The CPU of a
commit is that of the process without the slices.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final, Protocol

from bench.numbers import Spread
from bench.processes import machine
from bench.program import add_places, conduct, say, write_json
from bench.work import RunFailed
from postbus.store import batch
from postbus.store.log.segment_writer import (
    NATIVE,
    PythonSegmentWriter,
    SegmentWriter,
    SystemFiles,
    choose_writer,
)
from postbus.store.ports.journal import Part
from postbus.store.sqlite.store import SqliteStore

SEGMENT_BYTES: Final = 64 << 20
_SLICE_ROUNDS: Final = 600


@dataclass(frozen=True, slots=True)
class Case:
    title: str
    records: int
    record_bytes: int
    in_flight: int


CASES: Final = (
    Case("1 KB", 1, 1_024, 1),
    Case("1 KB, 100 commits in flight", 1, 1_024, 100),
    Case("100 x 1 KB", 100, 1_024, 1),
    Case("64 KB", 1, 65_536, 1),
    Case("64 KB, 10 commits in flight", 1, 65_536, 10),
)


@dataclass(frozen=True, slots=True)
class Run:
    writer: str
    mode: str
    case: str
    commits_s: float
    cpu_us: float
    slices_share: float
    """CPU of the slices, as a share of the time that passed."""


class Commits(Protocol):
    """Starts commits, and knows which are durable."""

    def start(self, number: int, data: bytes) -> None:
        """Commits are numbered from 1 on."""

    def durable(self) -> int:
        """The number of the last one, without waiting."""

    def wait(self, number: int) -> None: ...

    def close(self) -> None: ...


class LogCommits:
    """Frames in a segment that is allocated and zeroed; at its end it begins anew."""

    def __init__(self, folder: Path, writer: SegmentWriter) -> None:
        self._writer = writer
        self._file = os.open(folder / "segment", os.O_RDWR | os.O_CREAT)
        os.pwrite(self._file, bytes(SEGMENT_BYTES), 0)
        os.fsync(self._file)
        self._position = 0
        self.wait = writer.wait

    def start(self, number: int, data: bytes) -> None:
        if self._position + len(data) > SEGMENT_BYTES:
            self._position = 0
        self._writer.submit(number, self._file, self._position, (data,))
        self._position += len(data)

    def durable(self) -> int:
        return self._writer.collect()

    def close(self) -> None:
        self._writer.close()
        os.close(self._file)


class SqliteCommits:
    """Commits of a store, on the thread that it has in a broker."""

    def __init__(self, folder: Path) -> None:
        self._store = SqliteStore(str(folder / "store.db"))
        self._lease = self._store.acquire(1, "bench", 0)
        self._next = 0
        self._durable = 0
        self._waiting: SimpleQueue[bytes | None] = SimpleQueue()
        self._done = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while (data := self._waiting.get()) is not None:
            count = batch.header_at(data, 0).record_count
            part = Part(self._lease, self._next, count, 0, data, None)
            self._store.commit([part])
            self._next += count
            self._durable += 1
            self._done.release()

    def start(self, number: int, data: bytes) -> None:
        self._waiting.put(data)

    def durable(self) -> int:
        return self._durable

    def wait(self, number: int) -> None:
        while self._durable < number:
            self._done.acquire()

    def close(self) -> None:
        self._waiting.put(None)
        self._thread.join()
        self._store.close()


def work_slice() -> int:
    """Other work of the broker: some 30 µs of plain Python."""
    total = 0
    for number in range(_SLICE_ROUNDS):
        total += number & 7
    return total


class BusyThread:
    """A thread that does slices until it is stopped."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self._goes_on = True
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while self._goes_on:
            work_slice()
        self.cpu_s = time.thread_time()

    def stop(self) -> None:
        self._goes_on = False
        self._thread.join()


def in_the_loop(commits: Commits, case: Case, data: bytes, until: float) -> tuple[int, float]:
    """Returns the commits done, and the CPU of the slices in seconds."""
    started = durable = 0
    sliced_ns = 0
    while time.monotonic() < until:
        while started - durable < case.in_flight:
            started += 1
            commits.start(started, data)
        began = time.thread_time_ns()
        work_slice()
        sliced_ns += time.thread_time_ns() - began
        durable = commits.durable()
    commits.wait(started)
    return started, sliced_ns / 1e9


def beside(commits: Commits, case: Case, data: bytes, until: float) -> tuple[int, float]:
    """Likewise, with another thread that is busy. Waits for the oldest commit in flight."""
    busy = BusyThread()
    started = 0
    while time.monotonic() < until:
        started += 1
        commits.start(started, data)
        commits.wait(max(0, started - case.in_flight + 1))
    commits.wait(started)
    busy.stop()
    return started, busy.cpu_s


MODES: Final = {"loop": in_the_loop, "beside": beside}
WRITERS: Final[dict[str, Callable[[Path], Commits]]] = {
    "native": lambda folder: LogCommits(folder, choose_writer()),
    "Python": lambda folder: LogCommits(folder, PythonSegmentWriter(SystemFiles())),
    "SQLite": SqliteCommits,
}


def run(writer: str, mode: str, case: Case, folder: Path, seconds: float) -> Run:
    folder.mkdir()
    data, _ = batch.pack(1, 1, 0, 0, [os.urandom(case.record_bytes)] * case.records)
    with closing(WRITERS[writer](folder)) as commits:
        began, cpu = time.monotonic(), time.process_time()
        done, sliced = MODES[mode](commits, case, data, began + seconds)
        cpu = time.process_time() - cpu
        took = time.monotonic() - began
    return Run(writer, mode, case.title, done / took, (cpu - sliced) * 1e6 / done, sliced / took)


def table(mode: str, runs: list[Run]) -> str:
    """Commits/s, CPU of a commit, and the share of the slices."""
    lines = [f"| {mode} | " + " | ".join(WRITERS) + " |", "|---|" + "--:|" * len(WRITERS)]
    for case in CASES:
        cells = [
            _cell([one for one in runs if (one.writer, one.case) == (name, case.title)])
            for name in WRITERS
        ]
        lines.append(f"| {case.title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(runs: list[Run]) -> str:
    rate = Spread.of([one.commits_s for one in runs])
    cpu = Spread.of([one.cpu_us for one in runs])
    share = Spread.of([100 * one.slices_share for one in runs])
    if rate is None or cpu is None or share is None:
        return "-"
    return f"{rate.text(0)}/s, {cpu.text(0)} µs, {share.middle:.0f} %"


def measure(given: argparse.Namespace, folder: Path) -> int:
    if not NATIVE:
        raise RunFailed("the native writer was not built: see docs/compiling.md")
    runs: list[Run] = []
    for number in range(given.rounds):
        for mode in MODES:
            for case in CASES:
                for writer in WRITERS:
                    place = folder / f"{number}-{len(runs)}"
                    runs.append(run(writer, mode, case, place, given.seconds))
    for mode in MODES:
        say(table(mode, [one for one in runs if one.mode == mode]) + "\n")
    say("median (least..most) of the rounds: commits, CPU of a commit, time left for slices")
    write_json(given.output, {"machine": machine(folder), "runs": [asdict(one) for one in runs]})
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run")
    add_places(parser, "bench-writer.json")
    return conduct(measure, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
