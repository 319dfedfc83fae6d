"""What a backlog costs: `make bench-backlog`, or `python -m bench.backlog --large 1000000`.

A queue is filled with few messages and another, of another broker, with many. On top come deferred
and scheduled ones, then peeks from random numbers. From both queues messages are received and
completed, in turns, so that both have the same minute of the machine. At last each broker is killed
(kill -9) and started again. After each step its resident memory is read. The table shows both sizes
side by side: what matters is how little the second one is larger. Nothing runs on after it, and its
data is deleted, whatever happens.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from types import FrameType
from typing import TypeVar

from bench.brokers import BrokerFailed, Postbus
from bench.bulk import Bulk
from bench.client import LoadFailed, Samples, Work
from bench.numbers import percentile
from bench.processes import machine, memory_of
from postbus.amqp.frames.performatives import RCV_SECOND

ROOT = Path(__file__).resolve().parents[1]
QUEUE = "backlog"
SIZE_BYTES = 256
QUEUE_SIZE_MB = 5_120
MESSAGES_MAX = 12_000_000
DUE_IN_S = 30 * 24 * 3600
"""Far enough ahead for scheduled messages to stay so while this runs."""
CREDIT = 1_000
SETTLE_S = 1.0
"""What is under way when a step ends is done after this."""

T = TypeVar("T")


@dataclass(slots=True)
class Backlog:
    """How much is put into the queue, and what is done with it."""

    waiting: int
    deferred: int
    scheduled: int
    peeks: int
    received: int

    @property
    def last_number(self) -> int:
        return self.waiting + self.deferred + self.scheduled


@dataclass(slots=True)
class Found:
    """What was measured with one backlog, by name, in the order in which it was."""

    numbers: dict[str, float] = field(default_factory=dict)

    def put(self, name: str, value: float | None) -> None:
        if value is not None:
            self.numbers[name] = value


class Measurement:
    """One backlog, from an empty folder to the restart. Its broker runs while it is entered."""

    def __init__(self, backlog: Backlog, folder: Path, deadline: float, stall_s: float) -> None:
        self._backlog = backlog
        self.broker = Postbus(folder, [QUEUE], max_size_mb=QUEUE_SIZE_MB)
        self._deadline = deadline
        self._stall_s = stall_s
        self._rates: list[float] = []
        self.found = Found()

    def fill(self) -> None:
        backlog, bulk = self._backlog, self._bulk()
        say(f"{backlog}")
        self._remember("idle")
        sent = backlog.waiting + backlog.deferred
        seen = self._step("sending", lambda: bulk.send(sent))
        self.found.put("sent per s", _rate(seen))
        if backlog.deferred:
            seen = self._step("deferring", lambda: bulk.defer(backlog.deferred))
            self.found.put("deferred per s", _rate(seen))
        if backlog.scheduled:
            seen = self._step("scheduling", lambda: bulk.send(backlog.scheduled, DUE_IN_S))
            self.found.put("scheduled per s", _rate(seen))
        if backlog.peeks:
            seen = self._step("random peeks", lambda: bulk.peek(backlog.peeks, backlog.last_number))
            self.found.put("peek p50 ms", percentile(sorted(seen.settle_us), 0.5))
            if seen.refused:
                raise LoadFailed(f"{seen.refused} peeks found nothing")

    def receive(self) -> None:
        """Receive and complete some; the rate is the median of all such rounds."""
        seen = self._step("receiving", lambda: self._bulk().receive(self._backlog.received))
        self._rates.append(_rate(seen))
        self.found.put("received per s", median(self._rates))

    def restart(self) -> None:
        self.found.put("data folder MB", _folder_mb(self.broker.folder / "data"))
        self.broker.kill()
        began = time.monotonic()
        self.broker.start()
        self.found.put("restart: port open s", time.monotonic() - began)
        self._bulk().receive(1)
        self.found.put("restart: first message s", time.monotonic() - began)
        self._step("restart and receiving", lambda: self._bulk().receive(self._backlog.received))

    def _bulk(self) -> Bulk:
        broker = self.broker
        return Bulk(
            Work(
                "127.0.0.1",
                broker.port,
                broker.user,
                broker.password,
                broker.address(QUEUE),
                count=1,
                size=SIZE_BYTES,
                window=CREDIT,
                credit=CREDIT,
                connections=1,
                rcv_settle_mode=RCV_SECOND,
                stall_s=self._stall_s,
            )
        )

    def _step(self, name: str, call: Callable[[], T]) -> T:
        if time.monotonic() > self._deadline:
            raise LoadFailed(f"the time is up before {name}")
        say(f"  {name} ...")
        result = call()
        self.broker.check()
        time.sleep(SETTLE_S)
        self._remember(f"after {name}")
        return result

    def _remember(self, name: str) -> None:
        memory = memory_of(self.broker.pid)
        self.found.put(f"MB {name}", memory.resident_mb)
        self.found.put(f"MB {name}, peak", memory.peak_mb)


def _rate(seen: Samples) -> float:
    return seen.done / ((seen.last_ns - seen.first_ns) / 1e9)


def _folder_mb(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


def table(small: Found, large: Found, titles: tuple[str, str]) -> str:
    """Both backlogs side by side, and how many times the first the second is."""
    lines = [("", *titles, "ratio"), ("---", "--:", "--:", "--:")]
    for name, value in small.numbers.items():
        other = large.numbers.get(name)
        cells = (f"{value:.2f}", "", "") if other is None else _pair(value, other)
        lines.append((name, *cells))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _pair(value: float, other: float) -> tuple[str, str, str]:
    digits = 0 if max(value, other) >= 1_000 else 2
    ratio = f"{other / value:.2f}" if value else "-"
    return f"{value:.{digits}f}", f"{other:.{digits}f}", ratio


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def measure(given: argparse.Namespace, folder: Path) -> int:
    facts = machine(folder)
    sizes = {"small": given.small, "large": given.large}
    deadline = time.monotonic() + given.limit
    with ExitStack() as running:
        both: list[Measurement] = []
        for name, waiting in sizes.items():
            # In proportion, so that the large backlog is large in every lane.
            share = waiting / given.large
            backlog = Backlog(
                waiting,
                round(given.deferred * share),
                round(given.scheduled * share),
                given.peeks,
                min(given.received, given.small // (2 * given.rounds + 2)),
            )
            both.append(Measurement(backlog, folder / name, deadline, given.stall))
            running.enter_context(both[-1].broker)
            both[-1].fill()
        for number in range(given.rounds):
            for one in both if number % 2 else reversed(both):
                one.receive()
        for one in both:
            one.restart()
    found = [one.found for one in both]
    titles = [f"{waiting:,}" for waiting in sizes.values()]
    say(f"\n{datetime.now(UTC):%Y-%m-%d %H:%M UTC}, {', '.join(map(': '.join, facts.items()))}")
    say(f"{SIZE_BYTES} B; {given.deferred:,} deferred and {given.scheduled:,} scheduled beside")
    say(f"the large backlog, as many in proportion beside the small one; {given.peeks} peeks;")
    say(f"received in {given.rounds} rounds, in turns.\n")
    say(table(found[0], found[1], (titles[0], titles[1])))
    if given.output:
        numbers = {title: each.numbers for title, each in zip(titles, found, strict=True)}
        given.output.write_text(json.dumps({"machine": facts, **numbers}, indent=1) + "\n")
    return 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.backlog", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--small", type=int, default=500_000, help="waiting messages, few")
    parser.add_argument("--large", type=int, default=5_000_000, help="waiting messages, many")
    parser.add_argument("--deferred", type=int, default=1_000_000, help="beside the many")
    parser.add_argument("--scheduled", type=int, default=1_000_000, help="beside the many")
    parser.add_argument("--peeks", type=int, default=300)
    parser.add_argument("--received", type=int, default=30_000, help="received in each round")
    parser.add_argument("--rounds", type=int, default=5, help="of receiving from both in turns")
    parser.add_argument("--stall", type=float, default=60, help="give up after s without progress")
    parser.add_argument("--limit", type=float, default=3_600, help="seconds in all, at most")
    parser.add_argument("--folder", type=Path, default=ROOT / "build", help="where data is kept")
    parser.add_argument("--output", type=Path, help="a file for all numbers, as JSON")
    return parser


def main() -> int:
    parser = arguments()
    given = parser.parse_args()
    if not 1_000 <= given.small <= given.large:
        parser.error("--small is from 1000 to --large")
    if given.large + given.deferred + given.scheduled > MESSAGES_MAX:
        parser.error(f"at most {MESSAGES_MAX} messages fit into a queue of {QUEUE_SIZE_MB} MB")
    if not 1 <= given.rounds <= 100:
        parser.error("--rounds is from 1 to 100")
    if min(given.deferred, given.scheduled, given.peeks) < 0 or given.received < 1:
        parser.error(
            "--deferred, --scheduled and --peeks are not negative, --received is 1 or more"
        )
    # Ends as Ctrl-C does, so that the broker is stopped and its data deleted.
    signal.signal(signal.SIGTERM, _interrupt)
    given.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="backlog-", dir=given.folder))
    try:
        return measure(given, folder)
    except (BrokerFailed, LoadFailed, OSError) as error:
        say(f"backlog: {error}")
        return 1
    except KeyboardInterrupt:
        say("backlog: interrupted")
        return 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
