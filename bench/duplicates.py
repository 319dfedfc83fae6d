"""What duplicate detection costs: `make bench-duplicates`.

Two queues of one broker: one finds duplicates and has seen a million ids within its window, the
other does not look at ids. The same messages, each with an id of its own, go through both in
alternating rounds; the ratio of the rates is the price. Then the resident memory of brokers whose
window holds a million and ten million ids is compared, with the same messages sent to each.

The window is filled as the engine does it, but straight into the store: ten million sends would
take a quarter of an hour.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.brokers import Broker, Postbus
from bench.processes import memory_of, usage_of, wait_until_quiet
from bench.program import add_places, alternating, begun, conduct, say, write_json
from bench.report import comparison, markdown
from bench.work import QUIET_SHARE, Case, Generator, Run, RunFailed
from postbus.broker.bloom import digest_of
from postbus.broker.duplicate_history import History
from postbus.broker.ledger import Layout, Ledger
from postbus.runtime.loaded_fragment import CHECKPOINT_RECORDS
from postbus.store import batch
from postbus.store.ports.journal import Part
from postbus.store.sqlite.folder import DataFolder

SEEN, PLAIN = "seen", "plain"
WINDOW_MS = 7 * 86_400_000
WARM_UP_SHARE = 0.2
_SETTLE_WITHIN_S = 300.0
_LOOK_S = 2.0


class Identified(Generator):
    """Gives each message an id that no other message of any run has."""

    runs = 0

    def _command(self, broker: Broker, case: Case, mode: str) -> list[str]:
        self.runs += 1
        return [*super()._command(broker, case, mode), "--ids", f"run-{self.runs}"]


class Detecting(Postbus):
    """A broker with both queues."""

    def __init__(self, folder: Path, flags: tuple[str, ...] = ()) -> None:
        super().__init__(folder, [PLAIN, SEEN], flags)
        with self._config.open("a") as file:
            file.write("requires_duplicate_detection = true\n")
            file.write('duplicate_detection_history_time_window = "P7D"\n')

    def fill(self, count: int) -> float:
        """Have it see so many ids; it is started before and after. Returns how long it took."""
        self.stop()
        began = time.monotonic()
        now = time.time_ns() // 1_000_000
        with closing(DataFolder(self.folder / "data", now)) as folder:
            [entity] = [each for each in folder.catalog.entities() if each.name == SEEN]
            [fragment] = entity.fragments
            store = folder.stores[fragment.store]
            lease = store.acquire(fragment.id, "bench", 0)
            layout = Layout(batch.HEADER_SIZE, batch.RECORD_PREFIX_SIZE)
            history = History(WINDOW_MS)
            ledger = Ledger(layout, fragment.index << 48, lease.head, lease.state, history)
            for number in range(count):
                history.note(digest_of(f"seen before {number}"), now)
                if len(history.recent) == CHECKPOINT_RECORDS or number == count - 1:
                    checkpoint = ledger.make_checkpoint()
                    store.commit([Part(lease, ledger.head, 0, now, b"", checkpoint)])
                    ledger.checkpointed(checkpoint)
            store.release(lease)
        self.start()
        return time.monotonic() - began

    def settle(self) -> None:
        """Wait until it does nothing: after its first use it reads the ids again."""
        deadline = time.monotonic() + _SETTLE_WITHIN_S
        while time.monotonic() < deadline:
            before = usage_of(self.pid).cpu_s
            time.sleep(_LOOK_S)
            if usage_of(self.pid).cpu_s - before < _LOOK_S * QUIET_SHARE / 2:
                return
        raise RunFailed("the broker is busy without end")


def warm_up(broker: Detecting, generator: Generator, given: argparse.Namespace) -> None:
    for name in (SEEN, PLAIN):
        generator.run(broker, _case(given, name, WARM_UP_SHARE))
    broker.settle()


def _case(given: argparse.Namespace, name: str, share: float = 1.0) -> Case:
    count = max(int(given.count * share), 1_000)
    return Case(name, name, count, given.window, size=given.size)


def compare(given: argparse.Namespace, folder: Path, facts: dict[str, Any]) -> None:
    """Rates with and without detection."""
    generator = Identified(None, at_once=False, limit_s=300)
    results: dict[str, list[Run]] = {SEEN: [], PLAIN: []}
    with Detecting(folder / "rates", ("--duplicate-filter-kb", str(given.filter_kb))) as broker:
        facts["broker"] = broker.full_name
        filled_s = broker.fill(given.ids)
        say(f"{given.ids:,} ids in {filled_s:.0f} s")
        warm_up(broker, generator, given)
        for index, name in alternating((SEEN, PLAIN), given.rounds):
            wait_until_quiet(QUIET_SHARE, given.quiet)
            run = generator.run(broker, _case(given, name))
            results[name].append(run)
            say(
                f"round {index}  {name:6} {run.rate:8.0f}/s"
                f"  broker {run.cpu_us_per_message:5.0f} µs"
                f"  settled in {run.send_settle_p50_ms} ms, p99 {run.send_settle_p99_ms} ms"
            )
        facts["logged"] = broker.complaints()
    facts["rates"] = {name: [asdict(run) for run in runs] for name, runs in results.items()}
    titles = (
        ("messages per second", "rate", 0),
        ("CPU µs of the broker for a message", "cpu_us_per_message", 0),
        ("send settled, p50 ms", "send_settle_p50_ms", 1),
        ("send settled, p99 ms", "send_settle_p99_ms", 1),
    )
    lines = comparison(titles, results[SEEN], results[PLAIN])
    heads = [f"{given.size} B, window {given.window}", f"{given.ids:,} ids seen", "off", "ratio"]
    say(f"\n{markdown(heads, lines)}\n")


def weigh(given: argparse.Namespace, folder: Path, facts: dict[str, Any]) -> None:
    """Memory for few and for many ids."""
    found: dict[int, dict[str, float]] = {}
    for count in (given.ids, given.large):
        generator = Identified(None, at_once=False, limit_s=300)
        flags = ("--duplicate-filter-kb", str(given.filter_kb))
        with Detecting(folder / f"memory-{count}", flags) as broker:
            filled_s = broker.fill(count)
            say(f"{count:,} ids in {filled_s:.0f} s")
            warm_up(broker, generator, given)
            run = generator.run(broker, _case(given, SEEN))
            broker.settle()
            memory = memory_of(broker.pid)
            found[count] = {
                "resident_mb": memory.resident_mb,
                "peak_mb": memory.peak_mb,
                "rate": run.rate,
            }
            say(f"{count:,} ids  {found[count]}")
    facts["memory"] = found
    few, many = found.values()
    lines = [
        [title, f"{few[key]:.0f}", f"{many[key]:.0f}", f"**{many[key] / few[key]:.2f}**"]
        for title, key in (
            ("resident MB", "resident_mb"),
            ("largest resident MB", "peak_mb"),
            ("messages per second", "rate"),
        )
    ]
    say(f"\n{markdown(['', *(f'{count:,} ids' for count in found), 'ratio'], lines)}\n")


def measure(given: argparse.Namespace, folder: Path) -> int:
    facts = begun(folder)
    if given.rounds:
        compare(given, folder, facts)
    if given.large:
        weigh(given, folder, facts)
    write_json(given.output, facts)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.duplicates", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=5, help="0 leaves the rates out")
    parser.add_argument("--count", type=int, default=30_000, help="messages in a run")
    parser.add_argument("--ids", type=int, default=1_000_000, help="ids within the window")
    parser.add_argument(
        "--large", type=int, default=10_000_000, help="ids to compare memory with; 0 leaves it out"
    )
    parser.add_argument("--size", type=int, default=1_024, help="bytes of a body")
    parser.add_argument("--window", type=int, default=500, help="unsettled sends")
    parser.add_argument("--filter-kb", type=int, default=8_192, help="the broker's setting")
    parser.add_argument("--quiet", type=float, default=5, help="s to wait for a quiet machine")
    add_places(parser, "bench-duplicates.json")
    given = parser.parse_args()
    if not 0 <= given.rounds <= 100 or not 1_000 <= given.count <= 1_000_000:
        parser.error("--rounds is from 0 to 100, --count from 1,000 to 1,000,000")
    if not 1 <= given.ids <= 20_000_000 or not 0 <= given.large <= 50_000_000:
        parser.error("--ids is from 1 to 20,000,000, --large from 0 to 50,000,000")
    return conduct(measure, given)


if __name__ == "__main__":
    sys.exit(main())
