"""Send, receive and complete at full rate for a long time: `make bench-soak ARGS='--minutes 30'`.

What stays behind is what is looked at: the data folder against the retention that is set, and the
broker's memory at the end against the beginning.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.balanced import BalancedLoad
from bench.brokers import Postbus
from bench.client import Work
from bench.processes import machine_cpu_s, usage_of
from bench.program import add_places, begun, conduct, say, write_json
from bench.report import markdown
from postbus.amqp.frames.performatives import RCV_SECOND

QUEUE = "soak"
# What the folder may hold beyond the retention.
EXCESS_MAX = 0.2
_ROWS_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Sample:
    """One look. `rate` is of completed messages since the look before."""

    at_s: float
    folder_mb: float
    log_mb: float
    resident_mb: float
    completed: int
    written_mb: float
    rate: float
    broker_share: float
    busy_share: float


class Watch:
    """Looks at the broker from outside."""

    def __init__(self, broker: Postbus) -> None:
        self._broker = broker
        self._data = broker.folder / "data"
        self._began = time.monotonic()
        self._last = self._began, 0, usage_of(broker.pid).cpu_s, machine_cpu_s()

    def look(self) -> Sample:
        now = time.monotonic()
        counters = self._scrape()
        completed = int(_total(counters, "postbus_completions_total"))
        written = _total(counters, "postbus_written_bytes_total")
        busy_s, used = machine_cpu_s(), usage_of(self._broker.pid)
        then, before, cpu_s, busy_before_s = self._last
        self._last = now, completed, used.cpu_s, busy_s
        sizes = {path.name: _size(path) for path in self._data.rglob("*")}
        return Sample(
            at_s=now - self._began,
            folder_mb=sum(sizes.values()) / (1 << 20),
            log_mb=sum(size for name, size in sizes.items() if name.endswith("-wal")) / (1 << 20),
            resident_mb=used.resident_mb,
            completed=completed,
            written_mb=written / (1 << 20),
            rate=(completed - before) / (now - then),
            broker_share=(used.cpu_s - cpu_s) / (now - then),
            busy_share=(busy_s - busy_before_s) / (now - then),
        )

    def _scrape(self) -> str:
        address = f"http://127.0.0.1:{self._broker.port}/metrics"
        with urllib.request.urlopen(address, timeout=30) as answer:
            text: str = answer.read().decode()
        return text


def _total(counters: str, name: str) -> float:
    """The sum of a counter over its labels."""
    found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", counters, re.MULTILINE)
    return sum(map(float, found))


def _work(broker: Postbus, given: argparse.Namespace) -> Work:
    return Work(
        "127.0.0.1",
        broker.port,
        broker.user,
        broker.password,
        QUEUE,
        count=0,
        size=given.size,
        window=given.window,
        credit=500,
        connections=given.connections,
        rcv_settle_mode=RCV_SECOND,
        stall_s=60,
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0


def measure(given: argparse.Namespace, folder: Path) -> int:
    facts = begun(folder, minutes=given.minutes, retention_mb=given.retention_mb, size=given.size)
    samples: list[Sample] = []
    flags = ("--retention-mb", str(given.retention_mb))
    with Postbus(folder / "postbus", [QUEUE], flags) as broker:
        facts["broker"] = broker.full_name
        watch, load = Watch(broker), BalancedLoad(_work(broker, given), given.processes)
        end = time.monotonic() + 60 * given.minutes
        due = time.monotonic()
        try:
            while time.monotonic() < end:
                due += given.every
                time.sleep(max(min(due, end) - time.monotonic(), 0))
                broker.check()
                load.check()
                samples.append(watch.look())
                say(_line(samples[-1]))
        finally:
            load.stop()
        facts["logged"] = broker.complaints()
    verdict = judge(samples, given.retention_mb)
    facts |= {"verdict": verdict, "samples": [asdict(sample) for sample in samples]}
    _tell(facts, samples, verdict)
    write_json(given.output, facts)
    return 0


def judge(samples: list[Sample], retention_mb: int) -> dict[str, float]:
    """The folder against the retention, and the last quarter against the first.

    The first look is left out of both: by then little has been written, and not everything that
    the broker needs has been loaded.
    """
    later = samples[1:] or samples
    quarter = max(len(later) // 4, 1)
    first, last = later[:quarter], later[-quarter:]
    memory = median(s.resident_mb for s in first), median(s.resident_mb for s in last)
    return {
        "messages": samples[-1].completed,
        "written_mb": samples[-1].written_mb,
        "folder_most_mb": max(s.folder_mb for s in samples),
        "folder_last_mb": samples[-1].folder_mb,
        "folder_allowed_mb": retention_mb * (1 + EXCESS_MAX),
        "memory_first_quarter_mb": memory[0],
        "memory_last_quarter_mb": memory[1],
        "memory_growth": memory[1] / memory[0] - 1,
        "rate_first_quarter": median(s.rate for s in first),
        "rate_last_quarter": median(s.rate for s in last),
    }


def _line(sample: Sample) -> str:
    return (
        f"{sample.at_s:7.0f} s  folder {sample.folder_mb:7.1f} MB (log {sample.log_mb:5.1f})"
        f"  resident {sample.resident_mb:6.1f} MB  {sample.rate:7.0f}/s"
        f"  broker {sample.broker_share:4.0%}  machine {sample.busy_share:4.0%}"
    )


def _tell(facts: dict[str, Any], samples: list[Sample], verdict: dict[str, float]) -> None:
    step = max(len(samples) // _ROWS_SHOWN, 1)
    shown = (
        samples[::step] if samples[::step][-1] is samples[-1] else [*samples[::step], samples[-1]]
    )
    rows = [
        [
            f"{sample.at_s:.0f} s",
            f"{sample.folder_mb:.0f}",
            f"{sample.log_mb:.0f}",
            f"{sample.resident_mb:.0f}",
            f"{sample.rate:.0f}",
        ]
        for sample in shown
    ]
    say(f"{facts['broker']}; bodies of {facts['size']} B, retention {facts['retention_mb']} MB\n")
    say(markdown(["after", "folder MB", "of it log MB", "resident MB", "messages/s"], rows) + "\n")
    most, allowed = verdict["folder_most_mb"], verdict["folder_allowed_mb"]
    say(
        f"{verdict['messages']:.0f} messages, {verdict['written_mb']:.0f} MB of journal."
        f" Folder: {most:.0f} MB at most,"
        f" {verdict['folder_last_mb']:.0f} MB at the end; retention + {EXCESS_MAX:.0%} ="
        f" {allowed:.0f} MB: {'within' if most <= allowed else 'EXCEEDED'}."
    )
    say(
        f"Memory: {verdict['memory_first_quarter_mb']:.1f} MB in the first quarter,"
        f" {verdict['memory_last_quarter_mb']:.1f} MB in the last"
        f" ({verdict['memory_growth']:+.1%}); rate {verdict['rate_first_quarter']:.0f}/s,"
        f" then {verdict['rate_last_quarter']:.0f}/s."
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--every", type=float, default=5, help="seconds between two looks")
    parser.add_argument("--retention-mb", type=int, default=512, help="the broker's setting")
    parser.add_argument("--size", type=int, default=1_024, help="bytes of a body")
    parser.add_argument("--window", type=int, default=500, help="unsettled sends of a connection")
    parser.add_argument("--connections", type=int, default=1, help="of a process, both ways")
    parser.add_argument("--processes", type=int, default=2)
    add_places(parser, "bench-soak.json")
    given = parser.parse_args()
    if not 0.1 <= given.minutes <= 10_080 or not 0.5 <= given.every <= 600:
        parser.error("--minutes is from 0.1 to 10080, --every from 0.5 to 600")
    if given.every > 60 * given.minutes:
        parser.error("--every is at most --minutes")
    if not 1 <= given.processes <= 16 or not 1 <= given.connections <= 100:
        parser.error("--processes is from 1 to 16, --connections from 1 to 100")
    return conduct(measure, given)


if __name__ == "__main__":
    sys.exit(main())
