"""A disk of a certain size, put under SQLite as a VFS: what would take a file beyond it finds no
room. Files that are not SQLite's count too, as the reserve does, and the segments of a log."""

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import apsw

from postbus.store.log.files import DiskFiles
from postbus.store.sqlite.reserve import Reserve
from tests.contract.disk import Disk, DiskFile, no_fault


class QuotaDisk(Disk):
    """Everything in one folder, the index of the log aside: that is memory."""

    def __init__(self, folder: Path, size: int) -> None:
        super().__init__(no_fault)
        self._folder = folder
        self.size = size
        self.refused = 0
        """Writes that found no room."""

    def free(self) -> int:
        files = (each for each in self._folder.iterdir() if not each.name.endswith("-shm"))
        return max(0, self.size - sum(each.stat().st_size for each in files))

    def reserve(self, size: int) -> Reserve:
        return Reserve(self._folder / "reserve", size, self.free)

    def fill(self) -> None:
        """Somebody else takes what there is."""
        with (self._folder / "other").open("ab") as other:
            other.write(bytes(self.free()))

    def clean(self) -> None:
        """And gives it back."""
        (self._folder / "other").unlink(missing_ok=True)

    def xOpen(  # noqa: N802
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> DiskFile:
        return QuotaFile(self, name, flags)


class QuotaFile(DiskFile):
    _disk: QuotaDisk

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        grows = offset + len(data) - self.xFileSize()
        if grows > self._disk.free():
            self._disk.refused += 1
            raise apsw.exception_for(apsw.SQLITE_FULL)
        super().xWrite(data, offset)


class QuotaFiles(DiskFiles):
    """The segments of a log on such a disk."""

    def __init__(self, folder: Path, disk: QuotaDisk) -> None:
        super().__init__(folder)
        self._disk = disk

    def allocate(self, file: int, size: int) -> None:
        self._grow(size - self.size(file))
        super().allocate(file, size)

    def pwritev(self, file: int, pieces: Sequence[bytes | memoryview], position: int) -> int:
        self._grow(position + sum(map(len, pieces)) - self.size(file))
        return super().pwritev(file, pieces, position)

    def _grow(self, size: int) -> None:
        if size > self._disk.free():
            self._disk.refused += 1
            raise OSError(errno.ENOSPC, "planted")


@contextmanager
def quota_disk(folder: Path, size: int) -> Iterator[QuotaDisk]:
    made = QuotaDisk(folder, size)
    try:
        yield made
    finally:
        made.unregister()
