"""The work both brokers are given, and one run of it by either load generator."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.brokers import Broker
from bench.processes import Usage, machine_cpu_s, usage_of

CREDIT = 500
STALL_S = 15
# Of a core: what others may take before a run counts as disturbed.
QUIET_SHARE = 0.2


class RunFailed(Exception):
    """A generator did not do all of its work."""


@dataclass(frozen=True, slots=True)
class Case:
    """Messages sent, received and settled at the same time, through one queue."""

    size: int
    window: int
    connections: int
    count: int

    @property
    def queue(self) -> str:
        return f"bench-{self.size}-{self.window}-{self.connections}"

    @property
    def title(self) -> str:
        many = "connection" if self.connections == 1 else "connections"
        return f"{self.size} B, window {self.window} x {self.connections} {many}"


# Pipelined, pipelined over several connections, unpipelined in parallel, one after the other.
SHAPES = ((500, 1, 30_000), (125, 4, 30_000), (1, 20, 10_000), (1, 1, 1_500))
SIZES = (1_024, 256)


def cases(scale: float) -> list[Case]:
    """All of the work, with counts multiplied by `scale`."""
    return [
        Case(size, window, connections, max(int(count * scale), 2 * connections))
        for size in SIZES
        for window, connections, count in SHAPES
    ]


@dataclass(frozen=True, slots=True)
class Run:
    """What one run gave. Rates are of the slower direction; shares are of one core."""

    rate: float
    send_rate: float
    receive_rate: float
    send_settle_p50_ms: float | None
    send_settle_p99_ms: float | None
    receive_settle_p50_ms: float | None
    receive_settle_p99_ms: float | None
    e2e_p50_ms: float | None
    e2e_p99_ms: float | None
    cpu_us_per_message: float
    broker_share: float
    generator_share: float
    elsewhere_share: float
    resident_mb: float


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
        if self._neutral and (self._at_once or not broker.takes_settle_mode_second):
            return "accepted and settled at once, not confirmed"
        mode = "second" if broker.takes_settle_mode_second else "first"
        return f"accepted, settlement confirmed by the broker (receiver settle mode {mode})"

    def _command(self, broker: Broker, case: Case) -> list[str]:
        address = broker.address(case.queue)
        if self._neutral:
            second = [] if self._at_once or not broker.takes_settle_mode_second else ["-2"]
            return [
                *(str(self._neutral), "-m", "both", "-j", *second, "-a", address),
                *("-H", "127.0.0.1", "-p", str(broker.port)),
                *("-u", broker.user, "-P", broker.password),
                *("-n", str(case.count), "-s", str(case.size), "-w", str(case.window)),
                *("-C", str(CREDIT), "-c", str(case.connections), "-T", str(STALL_S)),
            ]
        return [
            *(sys.executable, "-m", "bench.load", "--mode", "both", "--address", address),
            *("--port", str(broker.port), "--user", broker.user, "--password", broker.password),
            *("--count", str(case.count), "--size", str(case.size)),
            *("--window", str(case.window), "--credit", str(CREDIT)),
            *("--connections", str(case.connections), "--stall", str(STALL_S)),
            *("--settle-mode", "second" if broker.takes_settle_mode_second else "first"),
            *("--limit", str(self._limit_s)),
        ]

    def run(self, broker: Broker, case: Case) -> Run:
        """Do a case once, with what it cost the broker."""
        before, busy, began = usage_of(broker.pid), machine_cpu_s(), time.monotonic()
        own = _children_cpu_s()
        try:
            said = subprocess.run(
                self._command(broker, case),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=self._limit_s + 10,
                check=False,
                cwd=Path(__file__).resolve().parents[1],
            )
        except subprocess.TimeoutExpired as error:
            raise RunFailed(f"not done within {error.timeout:g} s") from error
        after, busy = usage_of(broker.pid), machine_cpu_s() - busy
        wall_s, own = time.monotonic() - began, _children_cpu_s() - own
        send, receive = self._sides(said.stdout)
        if said.returncode != 0 or send.get("refused") or receive.get("refused"):
            raise RunFailed(" ".join((said.stderr + said.stdout).split())[:500])
        return _run(case, send, receive, before, after, busy, own, wall_s)

    def _sides(self, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the generator says of its senders and of its receivers."""
        try:
            lines = [json.loads(line) for line in text.splitlines()]
        except json.JSONDecodeError as error:
            raise RunFailed(f"the generator said {text[:200]!r}") from error
        if self._neutral:
            told = {line.get("op"): line for line in lines}
            return told.get("send", {}), told.get("recv", {})
        told = lines[0] if lines else {}
        return told.get("send", {}), told.get("receive", {})


def _run(
    case: Case,
    send: dict[str, Any],
    receive: dict[str, Any],
    before: Usage,
    after: Usage,
    busy_s: float,
    own_s: float,
    wall_s: float,
) -> Run:
    broker_s = after.cpu_s - before.cpu_s
    return Run(
        rate=min(send["rate"], receive["rate"]),
        send_rate=send["rate"],
        receive_rate=receive["rate"],
        send_settle_p50_ms=_measured(send["settle_p50_ms"]),
        send_settle_p99_ms=_measured(send["settle_p99_ms"]),
        receive_settle_p50_ms=_measured(receive["settle_p50_ms"]),
        receive_settle_p99_ms=_measured(receive["settle_p99_ms"]),
        e2e_p50_ms=_measured(receive["e2e_p50_ms"]),
        e2e_p99_ms=_measured(receive["e2e_p99_ms"]),
        cpu_us_per_message=1e6 * broker_s / case.count,
        broker_share=broker_s / wall_s,
        generator_share=own_s / wall_s,
        elsewhere_share=max(busy_s - broker_s - own_s, 0.0) / wall_s,
        resident_mb=after.resident_mb,
    )


def _measured(value: float | None) -> float | None:
    """The neutral generator says -1 where it has no samples."""
    return None if value is None or value < 0 else value


def _children_cpu_s() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime
