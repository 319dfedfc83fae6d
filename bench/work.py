"""A piece of work for a broker, and one run of it by either load generator."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.brokers import ROOT, Broker
from bench.processes import machine_cpu_s, usage_of

CREDIT = 500
STALL_S = 15
# Of a core: what others may take before a run counts as disturbed.
QUIET_SHARE = 0.2
BOTH = ("both",)
BACKLOG = ("send", "receive")
_STEP_NAMES = {"send": "send", "receive": "drain"}


class RunFailed(Exception):
    """A generator did not do all of its work."""


@dataclass(frozen=True, slots=True)
class Case:
    """Durable messages through one queue, or through a queue for each of many links.

    Window and credit are those of a link; connections and links are those of each direction.
    """

    name: str
    title: str
    count: int
    window: int
    connections: int = 1
    links: int = 1
    size: int = 1_024
    modes: tuple[str, ...] = BOTH
    """The steps: sent and received at the same time, or first all sent and then all received."""

    @property
    def queues(self) -> list[str]:
        if self.links == 1:
            return [self.name]
        return [f"{self.name}-{number}" for number in range(self.connections * self.links)]

    @property
    def queue(self) -> str:
        """The queue, or its name with `#` for the number of the link."""
        return self.name if self.links == 1 else f"{self.name}-#"

    @property
    def lines(self) -> dict[str, tuple[str, str]]:
        """Name and title of each line in a table, by the step that gives it."""
        if self.modes == BOTH:
            return {"both": (self.name, self.title)}
        names = {mode: _STEP_NAMES[mode] for mode in self.modes}
        return {mode: (name, f"{self.title}: {name}") for mode, name in names.items()}


@dataclass(frozen=True, slots=True)
class Run:
    """What one run gave. Rates are of the slower direction; shares are of one core."""

    rate: float
    cpu_us_per_message: float
    send_settle_p50_ms: float | None
    send_settle_p99_ms: float | None
    receive_settle_p50_ms: float | None
    receive_settle_p99_ms: float | None
    e2e_p50_ms: float | None
    e2e_p99_ms: float | None
    resident_mb: float
    broker_share: float
    generator_share: float
    elsewhere_share: float


class Generator:
    """A program that does a case against a broker and says how it went."""

    def __init__(self, neutral: Path | None, at_once: bool, limit_s: float) -> None:
        self._neutral = neutral
        self._at_once = at_once
        self._limit_s = limit_s

    @property
    def name(self) -> str:
        return "the neutral generator in C" if self._neutral else "the project's own generator"

    def settlement(self, broker: Broker) -> str:
        """How receivers settle with a broker, in words."""
        how = self._settlement(broker)
        said = "at once, unconfirmed" if how == "at-once" else f"mode {how}, confirmed"
        return f"{said}; {broker.without_second}" if broker.without_second else said

    def _settlement(self, broker: Broker) -> str:
        """The neutral generator waits for a confirmation in mode second only."""
        if self._at_once or (self._neutral and broker.settlement == "first"):
            return "at-once"
        return broker.settlement

    def _command(self, broker: Broker, case: Case, mode: str) -> list[str]:
        address, how = broker.address(case.queue), self._settlement(broker)
        if self._neutral:
            return [
                *(str(self._neutral), "-m", "recv" if mode == "receive" else mode, "-j"),
                *(["-2"] if how == "second" else []),
                *("-a", address, "-H", "127.0.0.1", "-p", str(broker.port)),
                *("-u", broker.user, "-P", broker.password),
                *("-n", str(case.count), "-s", str(case.size), "-w", str(case.window)),
                *("-C", str(CREDIT), "-c", str(case.connections), "-l", str(case.links)),
                *("-T", str(STALL_S)),
            ]
        return [
            *(sys.executable, "-m", "bench.load", "--mode", mode, "--address", address),
            *("--port", str(broker.port), "--user", broker.user, "--password", broker.password),
            *("--count", str(case.count), "--size", str(case.size)),
            *("--window", str(case.window), "--credit", str(CREDIT)),
            *("--connections", str(case.connections), "--links", str(case.links)),
            *("--stall", str(STALL_S), "--settle", how, "--limit", str(self._limit_s)),
        ]

    def run(self, broker: Broker, case: Case, mode: str = "both") -> Run:
        """Do a step of a case once, with what it cost the broker."""
        before, busy_s, began = usage_of(broker.pid), machine_cpu_s(), time.monotonic()
        own_s = _children_cpu_s()
        try:
            said = subprocess.run(
                self._command(broker, case, mode),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=self._limit_s + 10,
                check=False,
                cwd=ROOT,
            )
        except subprocess.TimeoutExpired as error:
            raise RunFailed(f"not done within {error.timeout:g} s") from error
        after, busy_s = usage_of(broker.pid), machine_cpu_s() - busy_s
        wall_s, own_s = time.monotonic() - began, _children_cpu_s() - own_s
        broker_s = after.cpu_s - before.cpu_s
        sides = self._sides(said.stdout)
        if said.returncode != 0 or not sides or any(side["refused"] for side in sides.values()):
            raise RunFailed(" ".join((said.stderr + said.stdout).split())[:500])
        send, receive = sides.get("send", {}), sides.get("receive", {})
        return Run(
            min(side["rate"] for side in sides.values()),
            1e6 * broker_s / case.count,
            _measured(send, "settle_p50_ms"),
            _measured(send, "settle_p99_ms"),
            _measured(receive, "settle_p50_ms"),
            _measured(receive, "settle_p99_ms"),
            # How long a message of a backlog waited says nothing about the broker.
            _measured(receive, "e2e_p50_ms") if mode == "both" else None,
            _measured(receive, "e2e_p99_ms") if mode == "both" else None,
            after.resident_mb,
            broker_s / wall_s,
            own_s / wall_s,
            max(busy_s - broker_s - own_s, 0.0) / wall_s,
        )

    def _sides(self, text: str) -> dict[str, dict[str, Any]]:
        """What the generator says of its senders and of its receivers."""
        try:
            lines = [json.loads(line) for line in text.splitlines()]
        except json.JSONDecodeError as error:
            raise RunFailed(f"the generator said {text[:200]!r}") from error
        if self._neutral:
            names = {"send": "send", "recv": "receive"}
            return {names[line["op"]]: line for line in lines}
        told = lines[0] if lines else {}
        return {side: told[side] for side in ("send", "receive") if side in told}


def _measured(side: dict[str, Any], number: str) -> float | None:
    """The neutral generator says -1 where it has no samples."""
    value: float | None = side.get(number)
    return None if value is None or value < 0 else value


def _children_cpu_s() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime
