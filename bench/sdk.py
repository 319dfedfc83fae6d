"""What an official client loses to the broker: `make bench-sdk`.

The same program on azure-servicebus works with Postbus and with an in-memory stub, in alternating
rounds. The stub shows how fast the client can be at all, so the ratio is Postbus's share in it.
A second stub syncs a block to disk before each answer and does nothing else: what it loses to the
first is the disk's share, which no durable server can give back to a client that waits for each
answer.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.brokers import ROOT, Broker, Postbus, Stub, SyncingStub
from bench.numbers import Spread
from bench.processes import wait_until_quiet
from bench.program import add_places, begun, conduct, say, write_json
from bench.report import markdown
from bench.sdk_client import (
    FLAVOURS,
    RECEIVE,
    RECEIVE_AHEAD,
    RECEIVE_DELETE,
    RECEIVE_TOGETHER,
    SEND_BATCHES,
    SEND_ONE,
    SEND_TOGETHER,
    WORK,
    WORK_TOGETHER,
)
from bench.work import QUIET_SHARE, RunFailed

# About a second of work each for the client alone.
COUNTS = {
    SEND_ONE: 2_000,
    SEND_BATCHES: 8_000,
    RECEIVE: 2_000,
    RECEIVE_AHEAD: 2_000,
    RECEIVE_DELETE: 6_000,
    SEND_TOGETHER: 2_000,
    RECEIVE_TOGETHER: 1_500,
}
# A batch of 100 has to fit into 256 KB.
_SIZE_MAX = 2_000
_RUN_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Row:
    flavour: str
    work: str

    @property
    def title(self) -> str:
        return f"{self.flavour}: {self.work}"


@dataclass(frozen=True, slots=True)
class Run:
    """What one run gave. Shares are of one core, while the client was measured."""

    rate: float
    seconds: float
    client_share: float
    server_share: float
    elsewhere_share: float


Results = dict[tuple[str, Row], list[Run]]


def rows(only: str) -> list[Row]:
    found = [Row(flavour, work) for flavour in FLAVOURS for work in WORK]
    found += [Row("aio", work) for work in WORK_TOGETHER]
    return [row for row in found if only in row.title]


def queue_of(row: Row, index: int) -> str:
    """Each run has a queue of its own: what another left behind is not in its way."""
    return f"sdk-{row.flavour}-{list(COUNTS).index(row.work)}-{index}"


def once(broker: Broker, row: Row, index: int, scale: float, size: int) -> Run:
    command = [
        *(sys.executable, "-m", "bench.sdk_client", "--flavour", row.flavour, "--work", row.work),
        *("--port", str(broker.port), "--pid", str(broker.pid)),
        *("--user", broker.user, "--password", broker.password),
        *("--queue", queue_of(row, index), "--size", str(size)),
        *("--count", str(max(int(COUNTS[row.work] * scale), 200))),
    ]
    try:
        said = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_RUN_LIMIT_S,
            check=False,
            cwd=ROOT,
        )
    except subprocess.TimeoutExpired as error:
        raise RunFailed(f"{row.title} with {broker.name}: nothing in {_RUN_LIMIT_S} s") from error
    if said.returncode != 0:
        broker.check()
        raise RunFailed(f"{row.title} with {broker.name}: {said.stderr.strip()[-500:]}")
    return Run(**json.loads(said.stdout))


def measure(given: argparse.Namespace, folder: Path) -> int:
    wanted = rows(given.only)
    if not wanted:
        say(f"No work is called {given.only!r}.")
        return 2
    facts = begun(folder, client=f"azure-servicebus {version('azure-servicebus')}", size=given.size)
    queues = [queue_of(row, index) for row in wanted for index in range(given.rounds)]
    brokers: list[Broker] = [
        Postbus(folder / "postbus", queues),
        Stub(folder / "stub"),
        SyncingStub(folder / "syncing"),
    ]
    results: Results = {(broker.name, row): [] for broker in brokers for row in wanted}
    with ExitStack() as running:
        for broker in brokers:
            running.enter_context(broker)
        facts["brokers"] = {broker.name: broker.full_name for broker in brokers}
        for index in range(given.rounds):
            order = brokers if index % 2 == 0 else brokers[::-1]
            for row in wanted:
                wait_until_quiet(QUIET_SHARE, given.quiet)
                for broker in order:
                    run = once(broker, row, index, given.scale, given.size)
                    results[broker.name, row].append(run)
                    say(
                        f"round {index + 1}  {row.title:41}  {broker.name:12} {run.rate:7.0f}/s"
                        f"  client {run.client_share:4.0%}  server {run.server_share:4.0%}"
                        f"  elsewhere {run.elsewhere_share:4.0%}"
                    )
    _tell(facts, results, wanted, [broker.name for broker in brokers])
    facts["measured"] = [
        {"server": name, **asdict(row), "rounds": [asdict(run) for run in runs]}
        for (name, row), runs in results.items()
    ]
    write_json(given.output, facts)
    return 0


def _tell(facts: dict[str, Any], results: Results, wanted: list[Row], names: list[str]) -> None:
    postbus, stub, syncing = names
    lines = []
    for row in wanted:
        ours, theirs = results[postbus, row], results[stub, row]
        least = results[syncing, row]
        lines.append(
            [
                row.title,
                _text([run.rate for run in ours], 0),
                _text([run.rate for run in theirs], 0),
                _text([run.rate for run in least], 0),
                f"**{_ratio(ours, theirs)}**",
                _ratio(least, theirs),
                _ratio(ours, least),
                _text([100 * run.client_share for run in theirs], 0),
                _text([100 * run.server_share for run in theirs], 0),
                _text([100 * run.server_share for run in ours], 0),
            ]
        )
    heads = [
        f"{facts['client']}, {facts['size']} B",
        *(f"{name}: messages/s" for name in names),
        f"{postbus} / {stub}",
        f"{syncing} / {stub}",
        f"{postbus} / {syncing}",
        "with the stub: % of a core for the client",
        "for the stub",
        "for Postbus",
    ]
    say(f"{facts['brokers'][postbus]}\n\n{markdown(heads, lines)}\n")
    runs = [run for one in results.values() for run in one]
    company = sum(run.elsewhere_share > QUIET_SHARE for run in runs)
    say(f"{company} of {len(runs)} runs were disturbed by something else on this machine.")


def _ratio(ours: list[Run], theirs: list[Run]) -> str:
    return _text([mine.rate / its.rate for mine, its in zip(ours, theirs, strict=True)], 2)


def _text(values: list[float], digits: int) -> str:
    spread = Spread.of(values)
    return "-" if spread is None else spread.text(digits)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.sdk", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the message counts")
    parser.add_argument("--size", type=int, default=1_024, help="bytes of a body")
    parser.add_argument("--only", default="", help="work whose title holds this: 'sync: send'")
    parser.add_argument("--quiet", type=float, default=5, help="s to wait for a quiet machine")
    add_places(parser, "bench-sdk.json")
    given = parser.parse_args()
    if not 1 <= given.rounds <= 100 or not 0.001 <= given.scale <= 100:
        parser.error("--rounds is from 1 to 100, --scale from 0.001 to 100")
    if not 1 <= given.size <= _SIZE_MAX:
        parser.error(f"--size is from 1 to {_SIZE_MAX}")
    return conduct(measure, given)


if __name__ == "__main__":
    sys.exit(main())
