"""A command run as a person runs it: on a terminal, so that it shows how far it has come."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Sequence
from pathlib import Path

_LINES, _COLUMNS = 40, 200
_READ_BYTES = 65_536
_BAR = re.compile(rb"(?<!\d)(\d+)/(\d+)(?=\D)")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
_SESSION = 3
"""Of the fields of /proc/PID/stat behind the name."""


class OnTerminal:
    """A command in a session of its own, to be killed with all that it has started."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self.began = time.monotonic()
        self.ended: float | None = None
        self.bars: list[tuple[float, int, int]] = []
        """What the progress bar said: seconds since the start, done, of how many."""
        self._said = bytearray()
        self._looked = 0
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, _COLUMNS, 0, 0))
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env={**environment, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, args=(ours,), daemon=True)
        self._reader.start()

    def _read(self, terminal: int) -> None:
        # Linux says EIO where nobody has the other side open any more.
        with contextlib.suppress(OSError):
            while data := os.read(terminal, _READ_BYTES):
                self._said += data
                # From the last one on: what is read may end within a number.
                for found in _BAR.finditer(self._said, self._looked):
                    self._looked = found.end()
                    bar = int(found[1]), int(found[2])
                    if not self.bars or self.bars[-1][1:] != bar:
                        self.bars.append((self.seconds, *bar))
        os.close(terminal)

    @property
    def seconds(self) -> float:
        """How long it runs, or ran."""
        return (self.ended or time.monotonic()) - self.began

    @property
    def done(self) -> int:
        """How far the bar says that it has come."""
        return self.bars[-1][1] if self.bars else 0

    @property
    def rate(self) -> float:
        """What was done per second while the bar moved."""
        moving = [bar for bar in self.bars if bar[1]]
        if len(moving) < 2:
            return 0.0
        (began, first, _), (ended, last, _) = moving[0], moving[-1]
        return (last - first) / (ended - began)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def text(self) -> str:
        """All that was shown, without colours and movements."""
        return _CONTROL.sub("\n", self._said.decode(errors="replace"))

    def tail(self) -> str:
        return "\n".join([line for line in self.text.splitlines() if line.strip()][-30:])

    def kill(self) -> int:
        """End the command and all of its session at once; says how many processes that were.

        Not a process group: Spark's Python workers make one of their own.
        """
        killed = set()
        while members := _members(self._process.pid):
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed.update(members)
            self._process.poll()
            time.sleep(0.01)
        self._end()
        return len(killed)

    def wait(self, within_s: float) -> int:
        """Its exit status, when it has ended by itself."""
        try:
            status = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running after {within_s} s\n{self.tail()}") from None
        self._end()
        return status

    def _end(self) -> None:
        self._process.wait()
        self.ended = self.ended or time.monotonic()
        self._reader.join(10)


def _members(session: int) -> list[int]:
    """The processes of a session that are not dead yet."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[_SESSION]) == session and fields[0] not in "ZX":
            members.append(int(entry.name))
    return members
