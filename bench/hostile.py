"""What others notice of a hostile peer: `make bench-hostile`.

A well-behaved client sends and receives at a steady rate and measures its times alone, then beside
each hostile peer in turn, round after round. The broker's memory is read before, during and after.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from bench.brokers import Broker, Postbus
from bench.caller import Place
from bench.client import Work
from bench.holders import HOLDERS
from bench.numbers import Spread
from bench.peers import PEERS, TURNS_PER_S, Peer
from bench.processes import machine_cpu_s, usage_of
from bench.program import add_places, begun, conduct, say, write_json
from bench.report import markdown
from bench.steady import Reading, SteadyClient
from bench.work import QUIET_SHARE, RunFailed
from postbus.amqp.frames.performatives import RCV_SECOND

SHARED, OWN = "steady", "hostile"
# Room for the idle connections; links low enough that the endless ones meet the bound.
FLAGS = ("--connections-max", "11000", "--links-per-connection-max", "1000")
_FORK = multiprocessing.get_context("fork")
_READY_WITHIN_S = 120.0
_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Round:
    """The steady client alone, then beside a peer; what the broker held and spent meanwhile."""

    alone: Reading
    beside: Reading
    before_mb: float
    most_mb: float
    after_mb: float
    alone_share: float
    broker_share: float
    elsewhere_share: float
    told: str


def _be(peer: Peer, pipe: Pipe) -> None:
    """The hostile process: get into position, say so, go on until told to end."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with suppress(KeyboardInterrupt, BrokenPipeError):
        try:
            peer.start()
            pipe.send("")
            due = time.monotonic()
            while not pipe.poll(max(due - time.monotonic(), 0)):
                due = max(due + 1 / TURNS_PER_S, time.monotonic() - 1)
                peer.turn()
            pipe.send(peer.tell())
        except (RunFailed, OSError) as error:
            pipe.send(error)


class PeerProcess:
    """A hostile peer in a process of its own."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._pipe, theirs = _FORK.Pipe()
        self._process = _FORK.Process(target=_be, args=(peer, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def hear(self) -> str:
        told: str | Exception = RunFailed("no answer")
        if self._pipe.poll(_READY_WITHIN_S):
            try:
                told = self._pipe.recv()
            except EOFError:
                told = RunFailed("died")
        if isinstance(told, Exception):
            raise RunFailed(f"{self._peer.title}: {told}") from told
        return told

    def stop(self) -> str:
        self._pipe.send(None)
        return self.hear()

    def end(self) -> None:
        self._process.terminate()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


@dataclass(frozen=True, slots=True)
class Look:
    """One measurement, with what the broker held at most. Shares are of one core."""

    reading: Reading
    most_mb: float
    broker_share: float
    elsewhere_share: float


def read(client: SteadyClient, broker: Broker, seconds: float) -> Look:
    """Measure, and see who was busy meanwhile: the broker, we with all our children, the rest."""
    began, busy_s = time.monotonic(), machine_cpu_s()
    broker_s, own_s = usage_of(broker.pid).cpu_s, usage_of(os.getpid()).cpu_s
    client.begin_reading(seconds)
    most_mb = 0.0
    while (left := began + seconds - time.monotonic()) > 0:
        most_mb = max(most_mb, usage_of(broker.pid).resident_mb)
        time.sleep(min(left, _LOOK_S))
    reading = client.end_reading(seconds + 30)
    broker.check()
    took_s, busy_s = time.monotonic() - began, machine_cpu_s() - busy_s
    broker_s, own_s = usage_of(broker.pid).cpu_s - broker_s, usage_of(os.getpid()).cpu_s - own_s
    return Look(reading, most_mb, broker_s / took_s, max(busy_s - own_s, 0.0) / took_s)


def once(
    client: SteadyClient, broker: Broker, kind: type[Peer], given: argparse.Namespace
) -> Round:
    alone = read(client, broker, given.seconds)
    place = Place(broker.port, broker.user, broker.password)
    process = PeerProcess(kind(place, SHARED, OWN, given.scale))
    try:
        process.hear()
        time.sleep(1)
        beside = read(client, broker, given.seconds)
        told = process.stop()
    finally:
        process.end()
    # Connections are gone, what was locked for them comes back.
    time.sleep(2)
    after_mb = usage_of(broker.pid).resident_mb
    return Round(
        alone.reading,
        beside.reading,
        alone.most_mb,
        beside.most_mb,
        after_mb,
        alone.broker_share,
        beside.broker_share,
        max(alone.elsewhere_share, beside.elsewhere_share),
        told,
    )


def measure(given: argparse.Namespace, folder: Path) -> int:
    kinds = [kind for kind in (*PEERS, *HOLDERS) if given.only in kind.title]
    if not kinds:
        say(f"No peer is called {given.only!r}.")
        return 2
    facts = begun(folder, flags=FLAGS)
    rounds: dict[type[Peer], list[Round]] = {kind: [] for kind in kinds}
    with Postbus(folder / "postbus", (SHARED, OWN), FLAGS) as broker:
        facts["broker"] = broker.full_name
        work = Work(
            "127.0.0.1",
            broker.port,
            broker.user,
            broker.password,
            SHARED,
            count=0,
            size=1_024,
            window=1_000,
            credit=100,
            connections=4,
            rcv_settle_mode=RCV_SECOND,
            stall_s=30,
        )
        with SteadyClient(work, given.rate) as client:
            read(client, broker, 2)
            for index in range(given.rounds):
                for kind in kinds:
                    found = once(client, broker, kind, given)
                    rounds[kind].append(found)
                    say(_line(index, kind, found))
        facts["logged"] = broker.complaints()
    facts["measured"] = {
        kind.title: [asdict(found) for found in each] for kind, each in rounds.items()
    }
    _tell(facts, rounds, given)
    write_json(given.output, facts)
    return 0


def _line(index: int, kind: type[Peer], found: Round) -> str:
    alone, beside = found.alone, found.beside
    return (
        f"round {index + 1}  {kind.title:32}"
        f"  settled p99 {alone.settle_p99_ms:6.1f} -> {beside.settle_p99_ms:6.1f} ms"
        f"  end to end p99 {alone.e2e_p99_ms:6.1f} -> {beside.e2e_p99_ms:6.1f} ms"
        f"  rate {beside.rate:5.0f}/s  broker {found.broker_share:4.0%}"
        f"  elsewhere {found.elsewhere_share:4.0%}"
        f"  MB {found.before_mb:.0f} -> {found.most_mb:.0f} -> {found.after_mb:.0f}"
        f"  ({found.told})"
    )


def _tell(
    facts: dict[str, Any], rounds: dict[type[Peer], list[Round]], given: argparse.Namespace
) -> None:
    heads = [
        f"beside a peer that, {given.rate:g} messages/s",
        "send settled ms, p50 / p99 alone",
        "beside it",
        "p99 ratio",
        "end to end ms, p50 / p99 alone",
        "beside it",
        "p99 ratio",
        "broker MB before / most / after",
        "% of a core",
    ]
    lines = []
    for kind, found in rounds.items():
        alone, beside = [each.alone for each in found], [each.beside for each in found]
        memory = [(each.before_mb, each.most_mb, each.after_mb) for each in found]
        lines.append(
            [
                kind.title,
                _pair([(r.settle_p50_ms, r.settle_p99_ms) for r in alone]),
                _pair([(r.settle_p50_ms, r.settle_p99_ms) for r in beside]),
                _ratio([(r.alone.settle_p99_ms, r.beside.settle_p99_ms) for r in found]),
                _pair([(r.e2e_p50_ms, r.e2e_p99_ms) for r in alone]),
                _pair([(r.e2e_p50_ms, r.e2e_p99_ms) for r in beside]),
                _ratio([(r.alone.e2e_p99_ms, r.beside.e2e_p99_ms) for r in found]),
                " / ".join(f"{max(column):.0f}" for column in zip(*memory, strict=True)),
                _text([100 * each.broker_share for each in found], 0),
            ]
        )
    say(f"{facts['broker']}; {' '.join(FLAGS)}; {given.rounds} rounds of {given.seconds:g} s\n")
    say(markdown(heads, lines) + "\n")
    for kind, found in rounds.items():
        say(f"{kind.title}: {found[-1].told}")
    every = [each for found in rounds.values() for each in found]
    company = sum(each.elsewhere_share > QUIET_SHARE for each in every)
    say(f"{company} of {len(every)} rounds were disturbed by something else on this machine.")


def _pair(values: list[tuple[float, float]]) -> str:
    low, high = (Spread.of(column) for column in zip(*values, strict=True))
    assert low is not None
    assert high is not None
    return f"{low.middle:.1f} / {high.middle:.1f}"


def _ratio(values: list[tuple[float, float]]) -> str:
    return f"**{_text([beside / alone for alone, beside in values if alone], 2)}**"


def _text(values: list[float], digits: int) -> str:
    spread = Spread.of(values)
    return "-" if spread is None else spread.text(digits)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.hostile", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8, help="of one measurement")
    parser.add_argument("--rate", type=float, default=500, help="messages/s of the good client")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the hostility")
    parser.add_argument("--only", default="", help="peers whose title holds this: 'idle'")
    add_places(parser, "bench-hostile.json")
    given = parser.parse_args()
    if not 1 <= given.rounds <= 100 or not 1 <= given.seconds <= 600:
        parser.error("--rounds is from 1 to 100, --seconds from 1 to 600")
    if not 1 <= given.rate <= 10_000 or not 0.01 <= given.scale <= 1:
        parser.error("--rate is from 1 to 10000, --scale from 0.01 to 1")
    return conduct(measure, given)


if __name__ == "__main__":
    sys.exit(main())
