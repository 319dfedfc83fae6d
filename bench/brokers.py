"""The brokers that are measured: each started on an empty folder, on loopback only, and stopped.

A broker is a context: whatever happens inside, its processes are gone afterwards.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Self

START_WITHIN_S = 60.0
STOP_WITHIN_S = 30.0
SAID_WITHIN_S = 180.0
ROOT = Path(__file__).resolve().parents[1]
_COMPILED = ROOT / "build" / "compiled"
_COUNT_COMPILED = "from postbus.ops.doctor import compiled_modules as f; print(len(f()))"


class BrokerFailed(Exception):
    """A broker did not start, or ended on its own."""


class BrokerMissing(Exception):
    """A broker is not installed here; the text says what is missing."""


class Broker:
    """A process that serves queues at `port` to `user` with `password`."""

    name: str
    user: str
    password: str
    settlement = "second"
    """How its receivers settle: receiver settle mode `second` or `first`, each confirmed by the
    broker, or `at-once`, which nobody confirms."""
    without_second = ""
    """What it does in receiver settle mode second, where that is not to settle."""
    warm_up_count = 2_000
    """Messages after which its speed has stopped to rise."""

    @classmethod
    def obtain(cls) -> Path:
        """Where its programs are. BrokerMissing if they cannot be had."""
        raise NotImplementedError

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.log = folder / "output.log"
        self.port = free_port()
        self.start_s = 0.0
        self.stop_s = 0.0
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        began = time.monotonic()
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        self.start_s = time.monotonic() - began
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Of the process that does the work."""
        return self.processes[-1].pid

    @property
    def full_name(self) -> str:
        """What exactly was measured."""
        raise NotImplementedError

    def start(self) -> None:
        raise NotImplementedError

    def address(self, queue: str) -> str:
        raise NotImplementedError

    def complaints(self) -> list[str]:
        """Warnings and errors the broker logged."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise if the broker is not running any more."""
        if (status := self.processes[-1].poll()) is not None:
            raise BrokerFailed(f"{self.name} ended with {status}\n{self.last_words()}")

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-20:])

    def stop(self) -> None:
        """End the processes that were started, the latest first."""
        began = time.monotonic()
        while self.processes:
            process = self.processes.pop()
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(STOP_WITHIN_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self.stop_s = time.monotonic() - began

    def kill(self) -> None:
        """End the processes at once, with no chance to put anything in order (kill -9)."""
        while self.processes:
            process = self.processes.pop()
            process.kill()
            process.wait()

    def launch(self, command: Sequence[str], environment: dict[str, str] | None = None) -> None:
        """Start a process of this broker, out of reach of the terminal's Ctrl-C: it is stopped
        when the measurement is wound up, not before."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self.processes.append(process)

    def wait_until_served(self) -> None:
        """Return when the port takes connections."""
        deadline = time.monotonic() + START_WITHIN_S
        while time.monotonic() < deadline:
            self.check()
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise BrokerFailed(f"{self.name} not ready in {START_WITHIN_S} s\n{self.last_words()}")


class Postbus(Broker):
    """The code that this process runs too, unless `code` is another folder to import it from."""

    name = "Postbus"
    user = "RootManageSharedAccessKey"
    password = "SAS_KEY_VALUE"

    def __init__(
        self,
        folder: Path,
        queues: Sequence[str],
        flags: Sequence[str] = (),
        max_size_mb: int = 1_024,
        code: Path | None = None,
    ) -> None:
        super().__init__(folder)
        self._flags = flags
        self._config = folder / "postbus.toml"
        size = f"max_size_in_megabytes = {max_size_mb}\n"
        self._config.write_text("".join(f'[queues."{queue}"]\n{size}' for queue in queues))
        self._environment = dict(os.environ)
        if code is not None:
            self._environment["PYTHONPATH"] = str(code)

    @property
    def connection_string(self) -> str:
        return (
            f"Endpoint=sb://localhost:{self.port};SharedAccessKeyName={self.user};"
            f"SharedAccessKey={self.password};UseDevelopmentEmulator=true"
        )

    @property
    def full_name(self) -> str:
        count = int(said([sys.executable, "-c", _COUNT_COMPILED], self._environment))
        how = f"{count} modules compiled" if count else "not compiled"
        python = ".".join(map(str, sys.version_info[:3]))
        return f"Postbus {version('postbus')}{_commit()}, Python {python}, {how}, one process"

    def start(self) -> None:
        command = str(Path(sys.executable).with_name("postbus"))
        self.launch(
            [
                *(command, "serve", "--host", "127.0.0.1", "--port", str(self.port)),
                *("--admin-port", "0", "--data", str(self.folder / "data")),
                *("--config", str(self._config)),
                *self._flags,
            ],
            self._environment,
        )
        self.wait_until_served()

    def address(self, queue: str) -> str:
        return queue

    def complaints(self) -> list[str]:
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if re.search(r"\b(warning|error|critical)\b", line)]


class Interpreted(Postbus):
    """Postbus as `make serve` runs it after a plain installation."""

    def __init__(self, folder: Path, queues: Sequence[str], code: Path) -> None:
        super().__init__(folder, queues, code=code)

    @classmethod
    def obtain(cls) -> Path:
        return ROOT / "src"


class Compiled(Interpreted):
    """Postbus as `make serve` runs it after `make compile`."""

    name = "Postbus compiled"

    @classmethod
    def obtain(cls) -> Path:
        if not (_COMPILED / ".ready").exists():
            raise BrokerMissing("there is no build/compiled: make compile")
        return _COMPILED


class Stub(Broker):
    """The in-memory server of `bench.stub`."""

    name = "stub"
    user = Postbus.user
    password = Postbus.password

    @property
    def full_name(self) -> str:
        return "an in-memory stub: no locks, no disk, no checks"

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "bench.stub", "--port", str(self.port)]

    def start(self) -> None:
        self.launch(self.command)
        self.wait_until_served()

    def address(self, queue: str) -> str:
        return queue

    def complaints(self) -> list[str]:
        return self.log.read_text(errors="replace").splitlines()


class SyncingStub(Stub):
    """The same, but it syncs a block to disk before each answer."""

    name = "syncing stub"

    @property
    def full_name(self) -> str:
        return "the same stub, with a block of 4 KB synced before each answer"

    @property
    def command(self) -> list[str]:
        return [*super().command, "--journal", str(self.folder / "journal")]


def _commit() -> str:
    """The commit that is checked out, where this is a repository."""
    try:
        return f" ({said(['git', '-C', str(ROOT), 'describe', '--always', '--dirty']).strip()})"
    except BrokerFailed:
        return ""


def said(command: Sequence[str], environment: dict[str, str] | None = None) -> str:
    """What a command says when it is done; BrokerFailed if it fails or takes too long."""
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SAID_WITHIN_S,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        raise BrokerFailed(f"{' '.join(command)}\n{error.stdout}{error.stderr}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BrokerFailed(str(error)) from error
    return done.stdout or done.stderr


def free_port() -> int:
    """A port nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def inherited(*strange: str) -> dict[str, str]:
    """Our own environment without the variables that begin so: they would steer a peer."""
    return {name: value for name, value in os.environ.items() if not name.startswith(strange)}
