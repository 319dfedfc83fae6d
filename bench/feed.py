"""What a reader of the change feed costs the traffic: `make bench-feed`.

The same messages go through one queue in alternating rounds, with and without somebody who reads
its feed as it is written, up to so many events a second. Told are the broker's CPU for a message
that is sent and received, the rate, and the times to settle.
"""

from __future__ import annotations

import argparse
import http.client
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path

from bench.brokers import Postbus
from bench.processes import wait_until_quiet
from bench.program import add_places, alternating, begun, conduct, say, write_json
from bench.report import comparison, markdown
from bench.work import QUIET_SHARE, Case, Generator, Run
from postbus.auth.sas import create_sas

READ, UNREAD = "read", "unread"
WARM_UP_SHARE = 0.2
PAUSE_S = 0.1
"""From one question to the next: nobody processes events one by one."""

_SPAWN = get_context("spawn")


def read_feed(
    port: int, key: tuple[str, str], queue: str, rate: int, stop: Event, count: Synchronized[int]
) -> None:
    """Read from the end on, raw batches, at most so many events a second."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    token = create_sas(*key, "http://127.0.0.1", (int(time.time()) + 86_400) * 1_000)

    def ask(query: str) -> tuple[int, int]:
        path = f"/{queue}/$feed/0?{query}"
        connection.request("GET", path, headers={"Authorization": token})
        reply = connection.getresponse()
        reply.read()
        if reply.status != 200:
            raise RuntimeError(f"the feed answers {reply.status}")
        return int(reply.headers["Postbus-Next"]), int(reply.headers["Postbus-Head"])

    _, offset = ask("at=0&max=0")
    began, first = time.monotonic(), offset
    while not stop.is_set():
        offset, _ = ask(f"from={offset}&timeout=1&max={8 << 20}")
        count.value = offset - first
        ahead_s = (offset - first) / rate - (time.monotonic() - began)
        time.sleep(max(PAUSE_S, ahead_s))


@contextmanager
def reader(broker: Postbus, queue: str, rate: int) -> Iterator[Synchronized[int]]:
    stop, count = _SPAWN.Event(), _SPAWN.Value("q", 0)
    given = (broker.port, (broker.user, broker.password), queue, rate, stop, count)
    process = _SPAWN.Process(target=read_feed, args=given, daemon=True)
    process.start()
    try:
        yield count
        if process.exitcode is not None:
            raise RuntimeError("the reader ended before the run did")
    finally:
        stop.set()
        process.join(10)
        if process.is_alive():
            process.terminate()


def measure(given: argparse.Namespace, folder: Path) -> int:
    facts = begun(folder)
    case = Case("feed", "feed", given.count, given.window, size=given.size)
    generator = Generator(None, at_once=False, limit_s=300)
    results: dict[str, list[Run]] = {READ: [], UNREAD: []}
    events: list[int] = []
    with Postbus(folder / "feed", [case.queue]) as broker:
        facts["broker"] = broker.full_name
        count = max(int(given.count * WARM_UP_SHARE), 1_000)
        generator.run(broker, replace(case, count=count))
        for index, name in alternating((READ, UNREAD), given.rounds):
            wait_until_quiet(QUIET_SHARE, given.quiet)
            if name == READ:
                with reader(broker, case.queue, given.rate) as seen:
                    time.sleep(1)  # until it has found the end
                    run = generator.run(broker, case)
                    events.append(seen.value)
            else:
                run = generator.run(broker, case)
            results[name].append(run)
            say(
                f"round {index}  {name:6} {run.rate:8.0f}/s"
                f"  broker {run.cpu_us_per_message:5.0f} µs"
                f"  settled in {run.send_settle_p50_ms} ms, p99 {run.send_settle_p99_ms} ms"
            )
        facts["logged"] = broker.complaints()
    facts["events"] = events
    facts["runs"] = {name: [asdict(run) for run in runs] for name, runs in results.items()}
    titles = (
        ("messages per second", "rate", 0),
        ("CPU µs of the broker for a message", "cpu_us_per_message", 0),
        ("send settled, p50 ms", "send_settle_p50_ms", 1),
        ("send settled, p99 ms", "send_settle_p99_ms", 1),
        ("end to end, p99 ms", "e2e_p99_ms", 1),
    )
    lines = comparison(titles, results[READ], results[UNREAD])
    heads = [f"{given.size} B, window {given.window}", "feed read", "not read", "ratio"]
    say(f"\n{markdown(heads, lines)}\n\nevents read in each round: {events}\n")
    write_json(given.output, facts)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.feed", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=60_000, help="messages in a run")
    parser.add_argument("--size", type=int, default=1_024, help="bytes of a body")
    parser.add_argument("--window", type=int, default=500, help="unsettled sends")
    parser.add_argument("--rate", type=int, default=20_000, help="events read in a second")
    parser.add_argument("--quiet", type=float, default=5, help="s to wait for a quiet machine")
    add_places(parser, "bench-feed.json")
    given = parser.parse_args()
    if not 1 <= given.rounds <= 100 or not 1_000 <= given.count <= 1_000_000:
        parser.error("--rounds is from 1 to 100, --count from 1,000 to 1,000,000")
    return conduct(measure, given)


if __name__ == "__main__":
    sys.exit(main())
