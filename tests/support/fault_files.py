"""The file layer of a commit log on a disk that fails on demand, or forgets what was not synced.

It shares a disk with the SQLite file of the index (`tests.contract.disk`), so faults are counted
through both. On a `ForgettingDisk` every change is written down in the order in which it happened.
A rename is the new name and then the end of the old name: the power may be cut between them, and
either may be lost without the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from postbus.store.log.files import DiskFiles, Files, write_all
from postbus.store.log.segment_writer import WriteFailed
from tests.contract.disk import DELETE, SYNC, TRUNCATE, WRITE, Disk, Operation
from tests.contract.forgetting import CREATE, LINK, NAMES, Change, ForgettingDisk

ALLOCATE, RENAME = "allocate", "rename"
FOLDER = "folder.pbl"


class FaultFiles(DiskFiles):
    """Real files. Nothing is really synced: the machine does not go down."""

    def __init__(self, folder: Path, disk: Disk, written_at_once: int = 1 << 40) -> None:
        super().__init__(folder)
        self._disk = disk
        self._written_at_once = written_at_once
        """A write takes no more bytes than this, and says so."""
        self._open: dict[int, tuple[str, int]] = {}

    def create(self, name: str) -> int:
        self._disk.perform(Operation(CREATE, name))
        file = super().create(name)
        if isinstance(self._disk, ForgettingDisk):
            self._record(Change(CREATE, name, self._disk.medium.next_content))
        self._open[file] = name, self._content(name)
        return file

    def open(self, name: str) -> int:
        file = super().open(name)
        self._open[file] = name, self._content(name)
        return file

    def close(self, file: int) -> None:
        del self._open[file]
        super().close(file)

    def close_left(self) -> None:
        """The process is gone, and with it the descriptors that a cut kept it from closing."""
        for file in list(self._open):
            self.close(file)

    def allocate(self, file: int, size: int) -> None:
        name, content = self._open[file]
        self._disk.perform(Operation(ALLOCATE, name))
        if size > self.size(file):
            super().allocate(file, size)
            self._record(Change(TRUNCATE, name, content, size))

    def truncate(self, file: int, size: int) -> None:
        name, content = self._open[file]
        self._disk.perform(Operation(TRUNCATE, name))
        super().truncate(file, size)
        self._record(Change(TRUNCATE, name, content, size))

    def pwritev(self, file: int, pieces: Sequence[bytes | memoryview], position: int) -> int:
        name, content = self._open[file]
        data = b"".join(pieces)[: self._written_at_once]

        def tear() -> None:
            DiskFiles.pwritev(self, file, [data[: len(data) // 2]], position)

        self._disk.perform(Operation(WRITE, name), tear)
        super().pwritev(file, [data], position)
        self._record(Change(WRITE, name, content, position, data))
        return len(data)

    def fdatasync(self, file: int) -> None:
        name, content = self._open[file]
        self._disk.perform(Operation(SYNC, name))
        self._record(Change(SYNC, name, content))

    def sync_names(self) -> None:
        self._disk.perform(Operation(SYNC, FOLDER))
        self._record(Change(NAMES, "", -1, with_folder=True))

    def rename(self, name: str, new_name: str) -> None:
        self._disk.perform(Operation(RENAME, name))
        content = self._content(name)
        super().rename(name, new_name)
        self._record(Change(LINK, new_name, content))
        self._record(Change(DELETE, name, -1))

    def unlink(self, name: str) -> None:
        self._disk.perform(Operation(DELETE, name))
        super().unlink(name)
        self._record(Change(DELETE, name, -1))

    def _record(self, change: Change) -> None:
        if isinstance(self._disk, ForgettingDisk):
            self._disk.record(change)

    def _content(self, name: str) -> int:
        if isinstance(self._disk, ForgettingDisk):
            found = self._disk.medium.find(name)
            assert found is not None
            return found
        return -1


class InlineWriter:
    """A SegmentWriter without a thread: it writes when somebody waits, all that was submitted at
    once, so that each run has the same operations in the same order."""

    def __init__(self, files: Files, durable: int) -> None:
        self._files = files
        self._queue: list[tuple[int, int, int, Sequence[bytes | memoryview]]] = []
        self.durable = durable
        self._failure: WriteFailed | None = None

    def submit(
        self, sequence: int, file: int, position: int, pieces: Sequence[bytes | memoryview]
    ) -> None:
        self._queue.append((sequence, file, position, pieces))

    def fileno(self) -> int:
        raise NotImplementedError

    def collect(self) -> int:
        if self._failure is not None:
            raise self._failure
        return self.durable

    def wait(self, sequence: int) -> None:
        frames, self._queue = self._queue, []
        if self._failure is None and frames:
            step = "write"
            try:
                for _, file, position, pieces in frames:
                    write_all(self._files, file, pieces, position)
                step = "sync"
                for file in dict.fromkeys(file for _, file, _, _ in frames):
                    self._files.fdatasync(file)
                self.durable = frames[-1][0]
            except OSError as error:
                self._failure = WriteFailed(step, error.errno or 0)
        if self.durable < sequence and self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """It has nothing of its own."""
