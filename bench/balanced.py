"""Send, receive and complete at full rate without end, with no more waiting than a bound.

A process sends no further ahead than `LEAD` messages beyond what it has completed, so what is in
the queue stays small however much faster sending is, and what the broker keeps is its own doing.
"""

from __future__ import annotations

import multiprocessing
import signal
from multiprocessing.connection import Connection as Pipe

from bench.client import LoadFailed, ReceivingWire, Samples, SendingWire, Work
from bench.loop import Loop
from bench.work import RunFailed

LEAD = 2_000
_FORK = multiprocessing.get_context("fork")
_NO_END = 1 << 40
_SAMPLES_KEPT = 10_000
_STOP_WITHIN_S = 5.0


class BalancedLoop(Loop):
    """The connections of one process."""

    def __init__(self, work: Work, name: str) -> None:
        self._sent = Samples()
        self._received = Samples()
        count = range(work.connections)
        self._senders = [SendingWire(work, f"{name}-send-{n}", 0, self._sent) for n in count]
        receivers = [
            ReceivingWire(work, f"{name}-receive-{n}", _NO_END, self._received) for n in count
        ]
        super().__init__([*self._senders, *receivers], work.stall_s)

    def run(self) -> None:
        """Work until the process is ended."""
        self.attach()
        for wire in self._wires:
            wire.start()
            self._write(wire)
        while True:
            room = LEAD - (self._sent.started - self._received.done)
            if room > 0:
                share = -(-room // len(self._senders))
                for sender in self._senders:
                    sender.quota = sender.started + share
                    sender.start()
                    self._write(sender)
            self._turn(1.0)
            for samples in (self._sent, self._received):
                if len(samples.settle_us) > _SAMPLES_KEPT:
                    del samples.settle_us[:], samples.e2e_us[:]


def _work(work: Work, name: str, pipe: Pipe) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        BalancedLoop(work, name).run()
    except (LoadFailed, OSError) as error:
        pipe.send(str(error) or type(error).__name__)
    except KeyboardInterrupt:
        return


class BalancedLoad:
    """Several such processes, from outside."""

    def __init__(self, work: Work, processes: int) -> None:
        self._processes = []
        self._pipe, theirs = _FORK.Pipe(duplex=False)
        for number in range(processes):
            arguments = (work, f"balanced-{number}", theirs)
            process = _FORK.Process(target=_work, args=arguments, daemon=True)
            process.start()
            self._processes.append(process)

    def check(self) -> None:
        """RunFailed if one of them could not go on."""
        if self._pipe.poll():
            raise RunFailed(f"the load: {self._pipe.recv()}")
        if not all(process.is_alive() for process in self._processes):
            raise RunFailed("a process of the load died")

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(_STOP_WITHIN_S)
            if process.is_alive():
                process.kill()
                process.join()
