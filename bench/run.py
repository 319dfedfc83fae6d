"""Postbus beside Artemis and RabbitMQ on the same work, in alternating rounds: `make bench`.

A broker that is not installed is left out, by name and with the reason. Nothing here says what is
fast enough: the numbers are printed and written to a file, with how far apart the rounds were.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.artemis import Artemis
from bench.brokers import Broker, BrokerMissing, Compiled, Interpreted
from bench.processes import usage_of, wait_until_quiet
from bench.program import BUILD, begun, conduct, say
from bench.rabbitmq import RabbitMQ
from bench.record import KEPT, Record, file_name
from bench.report import Results
from bench.rows import ROWS, WARM_UP, NoSuchRow, chosen, scaled
from bench.work import QUIET_SHARE, Case, Generator, RunFailed

BROKERS = {
    "compiled": Compiled,
    "postbus": Interpreted,
    "artemis": Artemis,
    "rabbitmq": RabbitMQ,
}
_WARM_UP_STEP = 50_000
_WARM_UP_SCALE = 0.05


class Measurement:
    """Brokers that run, the work they are given, and what it gave so far."""

    def __init__(self, brokers: list[Broker], generator: Generator, work: list[Case]) -> None:
        self.brokers = brokers
        self.work = work
        self.results: Results = {
            (line, broker.name): {}
            for case in work
            for line, _ in case.lines.values()
            for broker in brokers
        }
        self.failures: list[str] = []
        self._generator = generator
        self._stuck: set[tuple[str, str]] = set()

    def warm_up(self) -> None:
        """Runs that do not count: code is loaded and compiled, files and queues are made."""
        for broker in self.brokers:
            left = broker.warm_up_count
            say(f"warming up {broker.name} with {left:,} messages and a little of each row")
            for done in range(0, left, _WARM_UP_STEP):
                count = min(left - done, _WARM_UP_STEP)
                self._generator.run(broker, replace(WARM_UP, count=count))
            for case in self.work:
                for mode in case.modes:
                    self._generator.run(broker, scaled(case, _WARM_UP_SCALE), mode)

    def rounds(
        self, number: int, deadline: float, quiet_s: float, after_each: Callable[[int], None]
    ) -> None:
        """Every case by every broker in each round; who goes first changes by the round.

        Before each case others get up to `quiet_s` to finish what they do. It is measured even if
        they do not: what is left out may depend on the machine, never on the outcome.
        """
        for index in range(1, number + 1):
            for case in self.work:
                if quiet_s:
                    wait_until_quiet(QUIET_SHARE, quiet_s)
                for broker in self.brokers if index % 2 else self.brokers[::-1]:
                    if time.monotonic() > deadline:
                        say("The time is up: the rest is left out.")
                        return
                    self._once(index, broker, case)
            after_each(index)

    def _once(self, index: int, broker: Broker, case: Case) -> None:
        if (broker.name, case.name) in self._stuck:
            return
        for mode, (line, title) in case.lines.items():
            try:
                run = self._generator.run(broker, case, mode)
            except RunFailed as error:
                broker.check()
                self.failures.append(f"{broker.name}, {title}, round {index}: {error}")
                say(self.failures[-1])
                # What is left in the queue would make the next run another piece of work.
                self._stuck.add((broker.name, case.name))
                return
            self.results[line, broker.name][index] = run
            say(
                f"round {index}  {title:34}  {broker.name:16} {run.rate:8.0f}/s"
                f"  {run.cpu_us_per_message:6.1f} µs  broker {run.broker_share:4.0%}"
                f"  generator {run.generator_share:4.0%}  elsewhere {run.elsewhere_share:4.0%}"
            )


def obtained(names: str, folder: Path, queues: list[str]) -> tuple[list[Broker], dict[str, str]]:
    """The brokers that are here, and for each that is not the reason."""
    brokers: list[Broker] = []
    missing = {}
    for name in names.split(","):
        kind = BROKERS[name]
        try:
            brokers.append(kind(folder / name, queues, kind.obtain()))
        except BrokerMissing as reason:
            missing[kind.name] = str(reason)
            say(f"{kind.name} is left out: {reason}")
    return brokers, missing


def measure(given: argparse.Namespace, folder: Path) -> int:
    """Start, measure, report, stop."""
    work = chosen(given.rows, given.scale)
    generator = Generator(given.neutral, given.settle == "at-once", given.limit)
    facts = begun(
        folder,
        generator=generator.name,
        scale=given.scale,
        rounds=0,
        lines=dict(line for case in work for line in case.lines.values()),
        brokers={},
    )
    output = given.output or (KEPT if given.keep else BUILD) / file_name(facts["date"])
    queues = [WARM_UP.name, *(queue for case in work for queue in case.queues)]
    brokers, facts["missing"] = obtained(given.brokers, folder, queues)
    with ExitStack() as running:
        for broker in brokers:
            running.enter_context(broker)
            facts["brokers"][broker.name] = _facts(broker, generator)
            say(f"{broker.name}: {facts['brokers'][broker.name]['full_name']}")
        measurement = Measurement(brokers, generator, work)
        facts["failures"] = measurement.failures
        record = Record(facts, measurement.results)

        def after_each(index: int) -> None:
            # What was measured is kept, even if the rest is interrupted.
            facts["rounds"] = index
            record.write(output)

        measurement.warm_up()
        deadline = time.monotonic() + given.total
        measurement.rounds(given.rounds, deadline, given.quiet, after_each)
    for broker in brokers:
        facts["brokers"][broker.name]["stop_s"] = round(broker.stop_s, 2)
        facts["brokers"][broker.name]["logged"] = _logged(broker)
    record.write(output)
    say("\n" + "\n".join(record.remarks) + f"\n\n{record.tables.summary()}\n")
    say(f"All numbers: {output}")
    return 1 if measurement.failures else 0


def _facts(broker: Broker, generator: Generator) -> dict[str, Any]:
    return {
        "full_name": broker.full_name,
        "settlement": generator.settlement(broker),
        "start_s": round(broker.start_s, 2),
        "stop_s": None,
        "idle_mb": round(usage_of(broker.pid).resident_mb, 1),
        "warm_up": broker.warm_up_count,
        "logged": [],
    }


def _logged(broker: Broker) -> list[str]:
    """What a broker complained of; lines that differ only in their numbers are one complaint."""
    kinds = Counter(re.sub(r"\d[\d.:+-]*", "#", line) for line in broker.complaints())
    return [f"{times} times: {line[:200]}" for line, times in kinds.most_common(8)]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    names = ",".join(case.name for case in ROWS)
    parser.add_argument("--rows", default="", help=f"of {names}; all if none is named")
    parser.add_argument("--brokers", default=",".join(BROKERS), help=f"of {','.join(BROKERS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the message counts")
    parser.add_argument("--neutral", type=Path, help="a built copy of the neutral generator")
    parser.add_argument(
        "--settle",
        choices=("confirmed", "at-once"),
        default="confirmed",
        help="at-once: receivers settle with every broker without waiting, which is all that one "
        "of them knows",
    )
    parser.add_argument(
        "--quiet", type=float, default=5, help="seconds to wait for a quiet machine, at most"
    )
    parser.add_argument("--limit", type=float, default=60, help="seconds for one run, at most")
    parser.add_argument("--total", type=float, default=3600, help="seconds for all rounds, at most")
    parser.add_argument("--keep", action="store_true", help="the file goes to bench/results")
    parser.add_argument("--folder", type=Path, default=BUILD, help="where data is kept")
    parser.add_argument("--output", type=Path, help="the file of this run")
    return parser


def main() -> int:
    parser = arguments()
    given = parser.parse_args()
    if not 1 <= given.rounds <= 100 or not 0.001 <= given.scale <= 100:
        parser.error("--rounds is from 1 to 100, --scale from 0.001 to 100")
    if given.neutral and not os.access(given.neutral, os.X_OK):
        parser.error(f"--neutral: {given.neutral} cannot be run")
    if not set(given.brokers.split(",")) <= set(BROKERS):
        parser.error(f"--brokers are of {', '.join(BROKERS)}")
    try:
        chosen(given.rows, given.scale)
    except NoSuchRow as error:
        parser.error(f"--rows: {error}")
    return conduct(measure, given)


if __name__ == "__main__":
    sys.exit(main())
