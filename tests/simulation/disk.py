"""The disk under a history: SQLite's file on a medium that forgets what was not synced.

The process can be killed, which leaves what it wrote, or the power can go, which leaves what was
synced and of the rest anything at all (`tests.contract.forgetting`). Either may happen between two
calls of the store, in the middle of one, and again while the store is opened afterwards. A sync can
fail: what was written is there for all to see, and whether it is on the disk nobody knows. And a
write can find no room.
"""

from __future__ import annotations

import copy
import errno
import random
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw

from postbus.errors import StoreFailed
from postbus.store.log.store import LogStore
from postbus.store.ports.namespace_data import FormatUnknown
from postbus.store.sqlite.store import SqliteStore
from tests.contract.disk import SYNC, WRITE, Operation, PowerCut
from tests.contract.forgetting import Change, ForgettingDisk, Medium, put
from tests.simulation.history import Violation
from tests.simulation.promises import STAYS
from tests.support.fault_files import ALLOCATE, FaultFiles, InlineWriter

FILE = "store.db"
CUT, KILL, STOP = "power cut", "killed", "stopped"
_ENDS = [CUT, CUT, CUT, KILL, KILL, STOP]
_IN_MEMORY = Path("/dev/shm")
"""Nothing of a history has to outlive it."""
_STARTS_MAX = 20


class _FailingDisk(ForgettingDisk):
    """Stops taking anything after some more changes; the last of them still got there."""

    left: int | None = None
    syncs_left: int | None = None
    """Syncs of the log until one fails."""
    full_for = 0
    """Writes that find no room."""

    def perform(self, operation: Operation, tear: Callable[[], None] | None = None) -> None:
        is_segment = operation.file.endswith(".pbl")
        is_log = is_segment or operation.file.endswith("-wal")
        if self.syncs_left is not None and is_log and operation.kind == SYNC:
            self.syncs_left -= 1
            if self.syncs_left < 0:
                if is_segment:
                    raise OSError(errno.EIO, "planted")
                raise apsw.exception_for(apsw.SQLITE_IOERR_FSYNC)
        if self.full_for and operation.kind == (ALLOCATE if is_segment else WRITE):
            self.full_for -= 1
            if is_segment:
                raise OSError(errno.ENOSPC, "planted")
            raise apsw.exception_for(apsw.SQLITE_FULL)
        super().perform(operation, tear)

    def record(self, change: Change) -> None:
        super().record(change)
        if self.left is not None:
            self.left -= 1
            if self.left <= 0:
                self.is_dead = True
                raise PowerCut


class SimDisk:
    """One store's file, through as many lives of its process as there are."""

    def __init__(self, chance: random.Random, syncs: bool = True) -> None:
        self._chance = chance
        self._syncs = syncs
        # Few pages, so that the log is moved into the file within a short history.
        self._wal_pages_max = chance.choice([1, 20, 1_000])
        self._home = Path(tempfile.mkdtemp(dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None))
        self._folder = self._home / "0"
        self._folder.mkdir()
        self._lives = 0
        self.was_full = False
        """May the broker still wait because of it, before it tries again?"""
        self._disk = _FailingDisk(syncs=syncs)
        self._store = self._open()

    @property
    def store(self) -> Any:
        return self._store

    def crash_soon(self) -> None:
        """Let the process end with one of the next changes it makes."""
        self._disk.left = self._chance.choice([1, 2, 3, 5, 8, 13, 30])

    def fail_a_sync(self) -> None:
        """Let one of the next syncs fail, and all behind it."""
        if self._disk.syncs_left is None:
            self._disk.syncs_left = self._chance.choice([0, 0, 1, 3])

    def fill(self) -> None:
        """Let some of the next writes find no room, in the middle of a commit or of a move of the
        log into the file."""
        self.was_full = True
        self._disk.full_for = self._chance.choice([1, 2, 5, 20])

    @property
    def sync_failed(self) -> bool:
        """Has one failed?"""
        return self._disk.syncs_left is not None and self._disk.syncs_left < 0

    def call_off(self) -> None:
        """Call off an end that has not come yet."""
        self._disk.left = None
        self._disk.full_for = 0
        if not self.sync_failed:
            self._disk.syncs_left = None

    def restart(self) -> str:
        """End the process, one way or another, and start it again; says which."""
        end = self._chance.choice([CUT, KILL] if self._disk.is_dead or self.sync_failed else _ENDS)
        ends = [end]
        if end == STOP:
            self.call_off()
            self._store.close()
        self._bring_back(end)
        for _ in range(_STARTS_MAX):
            try:
                if self._chance.random() < 0.15 and len(ends) < 4:
                    self.crash_soon()
                self._store = self._open()
                self.call_off()
                return ", then ".join(ends)
            except PowerCut:
                ends.append(self._chance.choice([CUT, KILL]))
                self._bring_back(ends[-1])
            except (apsw.Error, StoreFailed, FormatUnknown) as error:
                raise Violation(STAYS, None, f"after {ends} no start: {error!r}") from error
        raise AssertionError("the store never opens")

    def close(self) -> None:
        self._end()
        shutil.rmtree(self._home)

    def _open(self) -> Any:
        path = str(self._folder / FILE)
        return SqliteStore(path, vfs=self._disk.name, wal_pages_max=self._wal_pages_max)

    def _bring_back(self, end: str) -> None:
        """A new process, on what the old one has left behind."""
        medium = self._disk.medium
        if end == CUT:
            files = medium.survivors(self._chance)
            medium = Medium(files)
        else:
            files = medium.cached()
            medium = copy.deepcopy(medium)
        self._end()
        self._lives += 1
        self._folder = self._home / str(self._lives)
        put(files, self._folder)
        self._disk = _FailingDisk(medium, self._syncs)

    def _end(self) -> None:
        """The process is gone: SQLite gets no chance to tidy up as it closes."""
        self._disk.is_dead = True
        with suppress(PowerCut, apsw.Error):
            self._store.close()
        self._disk.unregister()
        shutil.rmtree(self._folder)


class LogDisk(SimDisk):
    """The same with a commit log, and its index in SQLite."""

    make_writer: type[InlineWriter] = InlineWriter

    def __init__(self, chance: random.Random, syncs: bool = True) -> None:
        self._segment_bytes = chance.choice([8_192, 16_384, 65_536])
        super().__init__(chance, syncs)

    def _open(self) -> Any:
        self._files = FaultFiles(self._folder, self._disk)
        return LogStore(
            self._folder,
            files=self._files,
            vfs=self._disk.name,
            wal_pages_max=self._wal_pages_max,
            segment_bytes=self._segment_bytes,
            make_writer=self.make_writer,
            spares_on_thread=False,
        )

    def _end(self) -> None:
        super()._end()
        self._files.close_left()
