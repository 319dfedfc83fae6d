"""Postbus beside RabbitMQ on the same work, in alternating rounds: `make bench`.

Where RabbitMQ is not installed, Postbus is measured alone. Nothing here says what is fast enough:
the numbers are printed and written to a file, with how far apart the rounds were.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.brokers import Broker, Postbus
from bench.processes import machine, usage_of, wait_until_quiet
from bench.program import add_places, conduct, say
from bench.rabbitmq import RabbitMQ, scripts
from bench.report import Results, disturbed, tables, write
from bench.work import QUIET_SHARE, Case, Generator, RunFailed, cases

WARM_UP_COUNT = 2_000
_COMPLAINTS_SHOWN = 8


class Measurement:
    """Brokers that run, the work they are given, and what it gave so far."""

    def __init__(self, brokers: list[Broker], generator: Generator, work: list[Case]) -> None:
        self.brokers = brokers
        self.work = work
        self.results: Results = {(broker.name, case): [] for case in work for broker in brokers}
        self.failures: list[str] = []
        self.rounds_done = 0
        self._generator = generator

    def warm_up(self) -> None:
        """One run that does not count: code is loaded, files are made."""
        for broker in self.brokers:
            for case in (self.work[0], self.work[-1]):
                count = min(case.count, WARM_UP_COUNT)
                self._generator.run(broker, replace(case, count=count))

    def rounds(self, number: int, deadline: float, quiet_s: float) -> None:
        """Every case by every broker in each round; who goes first changes by the round.

        Before each case others get up to `quiet_s` to finish what they do. It is measured even if
        they do not: what is left out may depend on the machine, never on the outcome.
        """
        for index in range(number):
            order = self.brokers if index % 2 == 0 else self.brokers[::-1]
            for case in self.work:
                if quiet_s:
                    wait_until_quiet(QUIET_SHARE, quiet_s)
                for broker in order:
                    if time.monotonic() > deadline:
                        say("The time is up: the rest is left out.")
                        return
                    self._once(index, broker, case)
            self.rounds_done += 1

    def _once(self, index: int, broker: Broker, case: Case) -> None:
        runs = self.results[broker.name, case]
        if runs and runs[-1] is None:
            # What a failed run left in the queue would make this another piece of work.
            runs.append(None)
            return
        try:
            run = self._generator.run(broker, case)
        except RunFailed as error:
            broker.check()
            self.failures.append(f"{broker.name}, {case.title}, round {index + 1}: {error}")
            say(self.failures[-1])
            runs.append(None)
            return
        runs.append(run)
        say(
            f"round {index + 1}  {case.title:32}  {broker.name:8} {run.rate:8.0f}/s"
            f"  broker {run.broker_share:4.0%}  generator {run.generator_share:4.0%}"
            f"  elsewhere {run.elsewhere_share:4.0%}"
        )


def measure(given: argparse.Namespace, folder: Path) -> int:
    """Start, measure, report, stop."""
    work = [case for case in cases(given.scale) if given.only in case.title]
    if not work:
        say(f"No work is called {given.only!r}.")
        return 2
    generator = Generator(given.neutral, given.settle == "at-once", given.limit)
    facts: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine(folder),
        "generator": generator.name,
    }
    queues = [case.queue for case in work]
    brokers: list[Broker] = [Postbus(folder / "postbus", queues)]
    found = None if given.alone else scripts()
    if found:
        brokers.append(RabbitMQ(folder / "rabbitmq", queues, found))
    elif not given.alone:
        say("rabbitmq-server is not installed: Postbus is measured alone.")
    with ExitStack() as running:
        for broker in brokers:
            running.enter_context(broker)
        facts["brokers"] = {broker.name: _facts(broker, generator) for broker in brokers}
        measurement = Measurement(brokers, generator, work)
        measurement.warm_up()
        measurement.rounds(given.rounds, time.monotonic() + given.total, given.quiet)
    for broker in brokers:
        facts["brokers"][broker.name]["stop_s"] = round(broker.stop_s, 2)
        facts["brokers"][broker.name]["logged"] = _logged(broker)
    facts["rounds"] = measurement.rounds_done
    facts["failures"] = measurement.failures
    facts["disturbed"], facts["runs"] = disturbed(measurement.results)
    write(given.output, facts, measurement.results)
    _tell(facts, measurement, given.output)
    return 1 if measurement.failures else 0


def _facts(broker: Broker, generator: Generator) -> dict[str, Any]:
    return {
        "full_name": broker.full_name,
        "settlement": generator.settlement(broker),
        "start_s": round(broker.start_s, 2),
        "idle_mb": round(usage_of(broker.pid).resident_mb, 1),
    }


def _logged(broker: Broker) -> list[str]:
    """What a broker complained of; lines that differ only in their numbers are one complaint."""
    kinds = Counter(re.sub(r"\d[\d.:+-]*", "#", line) for line in broker.complaints())
    return [f"{times} times: {line}" for line, times in kinds.most_common()]


def _tell(facts: dict[str, Any], measurement: Measurement, output: Path) -> None:
    names = [broker.name for broker in measurement.brokers]
    say(f"\n{facts['date']}, {', '.join(f'{k}: {v}' for k, v in facts['machine'].items())}")
    say(f"Load by {facts['generator']}; {facts['rounds']} rounds; median (least..most).")
    for name in names:
        told = facts["brokers"][name]
        say(f"{name}: {told['full_name']}; received messages are {told['settlement']}.")
        say(
            f"{name}: start {told['start_s']} s, stop {told['stop_s']} s, idle {told['idle_mb']} MB"
        )
    say("\n" + tables(measurement.results, names) + "\n")
    say(
        f"{facts['disturbed']} of {facts['runs']} runs were disturbed: more than"
        f" {QUIET_SHARE:.0%} of a core was busy with something else."
    )
    if facts["disturbed"]:
        say("These numbers are no basis for a claim: measure again on a quiet machine.")
    for name in names:
        logged = facts["brokers"][name]["logged"]
        say(f"{name} logged {len(logged)} kinds of warnings and errors.")
        for line in logged[:_COMPLAINTS_SHOWN]:
            say(f"  {line[:200]}")
    say(f"All numbers: {output}")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the message counts")
    parser.add_argument("--only", default="", help="work whose title holds this: '1024 B'")
    parser.add_argument("--neutral", type=Path, help="a built copy of the neutral generator")
    parser.add_argument(
        "--settle",
        choices=("confirmed", "at-once"),
        default="confirmed",
        help="at-once, with the neutral generator: receivers settle with every broker without "
        "waiting, which is all that one of them knows",
    )
    parser.add_argument(
        "--quiet", type=float, default=5, help="seconds to wait for a quiet machine, at most"
    )
    parser.add_argument("--alone", action="store_true", help="Postbus without the peer")
    parser.add_argument("--limit", type=float, default=60, help="seconds for one run, at most")
    parser.add_argument("--total", type=float, default=900, help="seconds for all rounds, at most")
    add_places(parser, "bench.json")
    return parser


def main() -> int:
    parser = arguments()
    given = parser.parse_args()
    if not 1 <= given.rounds <= 100 or not 0.001 <= given.scale <= 100:
        parser.error("--rounds is from 1 to 100, --scale from 0.001 to 100")
    if given.neutral and not os.access(given.neutral, os.X_OK):
        parser.error(f"--neutral: {given.neutral} cannot be run")
    if given.settle == "at-once" and not given.neutral:
        parser.error("--settle at-once is for --neutral")
    return conduct(measure, given)


if __name__ == "__main__":
    sys.exit(main())
