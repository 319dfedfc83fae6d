"""The project's own load generator: `python -m bench.load --address orders --mode both`.

Prints one JSON object: for each direction the rate and the 50th and 99th percentile of the time to
settlement, for receivers also of the time from sender to receiver. Exit status 1 means that not
all of the work was done. Nothing runs on after it, whatever happens.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from dataclasses import replace
from itertools import chain
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from threading import BrokenBarrierError
from typing import Any

from bench.client import SIZE_MIN, LoadFailed, ReceivingWire, Samples, SendingWire, Wire, Work
from bench.loop import Loop
from bench.numbers import percentile
from postbus.amqp.frames.performatives import RCV_FIRST, RCV_SECOND

SETTLE_MODES = {"first": RCV_FIRST, "second": RCV_SECOND, "at-once": RCV_FIRST}
SIDES = {"send": ("send",), "receive": ("receive",), "both": ("send", "receive")}
# The AMQP core takes messages of 1 MB, sections included.
SIZE_MAX = 1_000_000
_FORK = multiprocessing.get_context("fork")
_STOP_WITHIN_S = 5.0

# A direction and the number of a connection in it.
Share = tuple[str, int]
# What one process has to tell: what each direction saw, and what went wrong.
Told = tuple[dict[str, Samples], str | None]


def spread(sides: tuple[str, ...], connections: int, processes: int) -> list[list[Share]]:
    """Deal the connections out; with two processes one sends and the other receives."""
    shares = [(side, number) for number in range(connections) for side in sides]
    dealt = [shares[start::processes] for start in range(processes)]
    return [share for share in dealt if share]


def quota(work: Work, number: int) -> int:
    """How many messages a link moves: the first takes what does not divide."""
    links = work.connections * work.links
    return work.count // links + (work.count % links if number == 0 else 0)


def wires(work: Work, side: str, number: int, samples: Samples) -> list[Wire]:
    """The links of a connection; `#` in the address stands for the number of the link."""
    made: list[Wire] = []
    kind = SendingWire if side == "send" else ReceivingWire
    for at in range(number * work.links, (number + 1) * work.links):
        own = replace(work, address=work.address.replace("#", str(at)))
        carrier = made[0] if made else None
        made.append(kind(own, f"bench-{side}-{at}", quota(work, at), samples, carrier))
    return made


def work_off(work: Work, shares: list[Share], begin: Barrier, pipe: Pipe) -> None:
    """Do one process's share and tell what was seen."""
    samples = {side: Samples() for side, _ in shares}
    failure = None
    loop = None
    try:
        dealt = [wires(work, side, number, samples[side]) for side, number in shares]
        loop = Loop(list(chain.from_iterable(dealt)), work.stall_s)
        loop.attach()
        begin.wait(work.stall_s)
        loop.work()
        loop.close()
    except (LoadFailed, OSError, BrokenBarrierError) as error:
        failure = str(error) or type(error).__name__
        begin.abort()
        if loop is not None:
            loop.drop()
    pipe.send((samples, failure))
    pipe.close()


def run(work: Work, sides: tuple[str, ...], processes: int, limit_s: float) -> dict[str, Any]:
    """Do the work in several processes and put together what they saw."""
    dealt = spread(sides, work.connections, processes)
    begin = _FORK.Barrier(len(dealt))
    deadline = time.monotonic() + limit_s
    totals = {side: Samples() for side in sides}
    failures: list[str] = []
    started: list[tuple[BaseProcess, Pipe]] = []
    try:
        for shares in dealt:
            ours, theirs = _FORK.Pipe(duplex=False)
            process = _FORK.Process(target=work_off, args=(work, shares, begin, theirs))
            process.start()
            theirs.close()
            started.append((process, ours))
        for _, pipe in started:
            samples, failure = _hear(pipe, deadline)
            for side, seen in samples.items():
                totals[side].add(seen)
            if failure is not None:
                failures.append(failure)
    finally:
        for ended, _ in started:
            _end(ended)
    if any(total.done < work.count for total in totals.values()) and not failures:
        failures.append("less was done than asked for")
    if refused := sum(total.refused for total in totals.values()):
        failures.append(f"{refused} messages were refused")
    report: dict[str, Any] = {side: summary(total) for side, total in totals.items()}
    return {**report, "ok": not failures, "failures": failures}


def _hear(pipe: Pipe, deadline: float) -> Told:
    if not pipe.poll(max(deadline - time.monotonic(), 0)):
        return {}, "not done within the time limit"
    try:
        told: Told = pipe.recv()
    except EOFError:
        return {}, "a process of the load generator died"
    return told


def _end(process: BaseProcess) -> None:
    """Give a process that has told all it knows a moment to end by itself."""
    process.join(0.5)
    if process.is_alive():
        process.terminate()
        process.join(_STOP_WITHIN_S)
    if process.is_alive():
        process.kill()
        process.join()


def summary(seen: Samples) -> dict[str, Any]:
    """The numbers of one direction; a percentile without samples is null."""
    seconds = (seen.last_ns - seen.first_ns) / 1e9 if seen.done else 0.0
    settle, e2e = sorted(seen.settle_us), sorted(seen.e2e_us)
    return {
        "count": seen.done,
        "refused": seen.refused,
        "seconds": round(seconds, 3),
        "rate": round(seen.done / seconds, 1) if seconds > 0 else 0.0,
        "settle_p50_ms": percentile(settle, 0.5),
        "settle_p99_ms": percentile(settle, 0.99),
        "e2e_p50_ms": percentile(e2e, 0.5),
        "e2e_p99_ms": percentile(e2e, 0.99),
    }


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.load", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--mode", choices=SIDES, default="both")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5672)
    parser.add_argument("--user", default="RootManageSharedAccessKey")
    parser.add_argument("--password", default="SAS_KEY_VALUE")
    parser.add_argument(
        "--address", required=True, help="the queue, or # in it for a link's number"
    )
    parser.add_argument("--count", type=int, default=20_000, help="messages, in all")
    parser.add_argument("--size", type=int, default=1_024, help="bytes of a body")
    parser.add_argument("--window", type=int, default=500, help="unsettled sends of a link")
    parser.add_argument("--credit", type=int, default=500, help="credit of a receiver")
    parser.add_argument("--connections", type=int, default=1, help="in each direction")
    parser.add_argument("--links", type=int, default=1, help="of a connection")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--settle",
        choices=SETTLE_MODES,
        default="second",
        help="of receivers: in this mode, each confirmed by the broker, or at once and unconfirmed",
    )
    parser.add_argument("--ids", default="", help="what message ids begin with; each is another")
    parser.add_argument("--stall", type=float, default=20, help="give up after s without progress")
    parser.add_argument("--limit", type=float, default=300, help="give up after s in all")
    return parser


def main() -> int:
    parser = arguments()
    given = parser.parse_args()
    bounds = {
        "count": 10_000_000,
        "window": 100_000,
        "credit": 100_000,
        "connections": 1_000,
        "links": 1_000,
        "processes": 64,
    }
    for name, most in bounds.items():
        if not 1 <= getattr(given, name) <= most:
            parser.error(f"--{name} is from 1 to {most}")
    if not SIZE_MIN <= given.size <= SIZE_MAX:
        parser.error(f"--size is from {SIZE_MIN} to {SIZE_MAX}")
    if given.connections * given.links > given.count:
        parser.error("--connections times --links is at most --count")
    work = Work(
        given.host,
        given.port,
        given.user,
        given.password,
        given.address,
        given.count,
        given.size,
        given.window,
        given.credit,
        given.connections,
        SETTLE_MODES[given.settle],
        given.stall,
        given.ids,
        given.links,
        given.settle == "at-once",
    )
    outcome = run(work, SIDES[given.mode], given.processes, given.limit)
    asked = ("mode", "address", "size", "window", "credit", "connections", "links", "processes")
    report = {name: getattr(given, name) for name in asked} | outcome
    sys.stdout.write(json.dumps(report) + "\n")
    return 0 if outcome["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
