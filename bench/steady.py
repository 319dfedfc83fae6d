"""A well-behaved client at a steady, moderate rate: what its times are shows how others fare.

It runs in a process of its own and measures whenever it is asked to. It sends at fixed moments,
whether or not earlier messages have been answered, so a broker that stalls shows as late answers
and not as fewer questions.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from types import TracebackType
from typing import Self

from bench.client import LoadFailed, ReceivingWire, Samples, SendingWire, Work
from bench.loop import Loop
from bench.numbers import percentile
from bench.work import RunFailed

_FORK = multiprocessing.get_context("fork")
_NO_END = 1 << 40
_ANSWER_WITHIN_S = 60.0
_STOP_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Reading:
    """Times in ms; `rate` is what was received, `owed` what was sent and not yet received."""

    rate: float
    owed: int
    settle_p50_ms: float
    settle_p99_ms: float
    e2e_p50_ms: float
    e2e_p99_ms: float


class SteadyLoop(Loop):
    """All of the client's connections, and the moments at which it sends."""

    def __init__(self, work: Work, rate: float) -> None:
        self._sent = Samples()
        self._received = Samples()
        count = range(work.connections)
        self._senders = [
            SendingWire(work, f"steady-send-{number}", 0, self._sent) for number in count
        ]
        receivers = [
            ReceivingWire(work, f"steady-receive-{number}", _NO_END, self._received)
            for number in count
        ]
        super().__init__([*self._senders, *receivers], work.stall_s)
        self._period_s = 1 / rate
        self._due = 0.0
        self._turns = 0

    def begin(self) -> None:
        self.attach()
        for wire in self._wires:
            wire.start()
            self._write(wire)
        self._due = time.monotonic()

    def run(self, seconds: float) -> None:
        """Go on sending, and take what comes."""
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            while self._due <= now:
                sender = self._senders[self._turns % len(self._senders)]
                self._turns += 1
                self._due += self._period_s
                sender.quota += 1
                sender.start()
                self._write(sender)
            self._turn(max(min(self._due, end) - time.monotonic(), 0))

    def read(self, seconds: float) -> Reading:
        """Measure for that long, and forget what came before."""
        for samples in (self._sent, self._received):
            del samples.settle_us[:], samples.e2e_us[:]
        before = self._received.started
        self.run(seconds)
        settle, e2e = sorted(self._sent.settle_us), sorted(self._received.e2e_us)
        return Reading(
            (self._received.started - before) / seconds,
            self._turns - self._received.started,
            *(percentile(settle, share) or 0.0 for share in (0.5, 0.99)),
            *(percentile(e2e, share) or 0.0 for share in (0.5, 0.99)),
        )


def _serve(work: Work, rate: float, pipe: Pipe) -> None:
    """Send and receive until told 0; measure when told for how long."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        loop = SteadyLoop(work, rate)
        loop.begin()
        pipe.send(None)
        while True:
            # Between two measurements the load goes on, so that it is steady when one begins.
            while not pipe.poll():
                loop.run(0.05)
            seconds: float = pipe.recv()
            if not seconds:
                return loop.drop()
            pipe.send(loop.read(seconds))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return None
    except (LoadFailed, OSError) as error:
        pipe.send(str(error) or type(error).__name__)


class SteadyClient:
    """The process, from outside."""

    def __init__(self, work: Work, rate: float) -> None:
        self._pipe, theirs = _FORK.Pipe()
        self._process = _FORK.Process(target=_serve, args=(work, rate, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        self._hear(_ANSWER_WITHIN_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Not by closing the pipe: processes that were forked since hold its other end open.
        with suppress(BrokenPipeError):
            self._pipe.send(0.0)
        self._process.join(_STOP_WITHIN_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def begin_reading(self, seconds: float) -> None:
        self._pipe.send(seconds)

    def end_reading(self, within_s: float) -> Reading:
        told = self._hear(within_s)
        assert isinstance(told, Reading)
        return told

    def _hear(self, within_s: float) -> Reading | None:
        if not self._pipe.poll(within_s):
            raise RunFailed("the steady client does not answer")
        try:
            told: Reading | str | None = self._pipe.recv()
        except EOFError as error:
            raise RunFailed("the steady client died") from error
        if isinstance(told, str):
            raise RunFailed(f"the steady client: {told}")
        return told
