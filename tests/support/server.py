"""A Postbus process of its own, started as a user starts it and stopped in every way it can end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

SMALL_LIMITS = Path(__file__).with_name("small_limits.py")
COMMAND = Path(sys.executable).with_name("postbus")
_CONNECTION_STRING = re.compile(r"Endpoint=sb://localhost:(\d+);\S+")
_READY_WITHIN_S = 30.0
_STOP_WITHIN_S = 20.0


class ServerDied(AssertionError):
    """The process ended, or never said that it is ready."""


class Server:
    """`postbus serve` on a data folder: start, stop, kill and start again on the same port."""

    def __init__(self, data: Path, *arguments: str) -> None:
        self.data = data
        self.log = data.with_name(f"{data.name}.log")
        self.port = 0
        self.connection_string = ""
        self.starts: list[float] = []
        self._arguments = arguments
        self._process: subprocess.Popen[str] | None = None
        self._said: list[str] = []
        self._ready = threading.Event()

    def start(self) -> Server:
        """Return when the process has printed its ready line; later starts keep the port."""
        assert self._process is None, "already running"
        self._ready.clear()
        self._said.clear()
        began = time.monotonic()
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                self._command(), stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1
            )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        while not self._ready.wait(0.02):
            if self._process.poll() is not None:
                raise ServerDied(self._report(f"ended with {self._process.returncode}"))
            if time.monotonic() - began > _READY_WITHIN_S:
                self.kill()
                raise ServerDied(self._report(f"not ready within {_READY_WITHIN_S} s"))
        self.starts.append(time.monotonic() - began)
        return self

    def _command(self) -> list[str]:
        return [
            *(str(COMMAND), "serve", "--port", str(self.port), "--admin-port", "0"),
            # Hundreds of folders are kept for a while after the tests.
            *("--data", str(self.data), "--disk-reserve-mb", "1"),
            *self._arguments,
        ]

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._said.append(line.rstrip("\n"))
                found = _CONNECTION_STRING.search(line)
                if found and "ready" in line:
                    self.port = int(found[1])
                    self.connection_string = found[0]
                    self._ready.set()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def stop(self) -> int:
        """End the process as an operator does, and return its exit status."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """End the process as a power cut does: it gets no chance to write anything."""
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self, within_s: float = _STOP_WITHIN_S) -> int:
        assert self._process is not None
        try:
            status = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            self._process = None
            raise ServerDied(self._report(f"still running {within_s} s after the signal")) from None
        self._process = None
        return status

    def discard(self) -> None:
        """For fixtures: whatever state the process is in, it is gone afterwards."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _report(self, what: str) -> str:
        logged = (
            self.log.read_text(errors="replace").splitlines()[-30:] if self.log.exists() else []
        )
        return "\n".join([f"postbus serve {what}", *self._said[-10:], *logged])

    @property
    def http(self) -> str:
        return f"http://localhost:{self.port}"


class SmallServer(Server):
    """The same with limits that a short test meets many times."""

    def _command(self) -> list[str]:
        return [sys.executable, str(SMALL_LIMITS), *super()._command()[1:]]
