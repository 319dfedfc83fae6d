"""The file work of the commit log: every read, write and sync of a segment goes through here.

A test puts a layer in its place that fails, tears writes, or forgets what was not synced
(`tests/support/fault_files.py`).
"""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
NOT_SUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
PIECES_MAX: Final = 1024
"""Pieces that the system takes in one call (IOV_MAX)."""


class Files(Protocol):
    """The files of one folder, by name; open files are descriptors. All calls raise OSError."""

    def names(self) -> list[str]: ...

    def create(self, name: str) -> int:
        """A new file, open for reading and writing. The name must be free."""

    def open(self, name: str) -> int: ...

    def close(self, file: int) -> None: ...

    def size(self, file: int) -> int: ...

    def allocate(self, file: int, size: int) -> None:
        """Set blocks aside, so that later writes up to `size` find room."""

    def truncate(self, file: int, size: int) -> None: ...

    def pwritev(self, file: int, pieces: Sequence[bytes | memoryview], position: int) -> int:
        """Write pieces one after another; returns how many bytes were written."""

    def pread(self, file: int, size: int, position: int) -> bytes: ...

    def preadv(self, file: int, buffer: memoryview, position: int) -> int: ...

    def fdatasync(self, file: int) -> None: ...

    def sync_names(self) -> None:
        """Have the disk keep the names in the folder as they are."""

    def rename(self, name: str, new_name: str) -> None: ...

    def unlink(self, name: str) -> None: ...


class DiskFiles:
    """The files of a real folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        return os.listdir(self._folder)

    def create(self, name: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return os.open(self._folder / name, flags, 0o600)

    def open(self, name: str) -> int:
        return os.open(self._folder / name, os.O_RDWR | os.O_CLOEXEC)

    def close(self, file: int) -> None:
        os.close(file)

    def size(self, file: int) -> int:
        return os.fstat(file).st_size

    def allocate(self, file: int, size: int) -> None:
        os.posix_fallocate(file, 0, size)

    def truncate(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def pwritev(self, file: int, pieces: Sequence[bytes | memoryview], position: int) -> int:
        return os.pwritev(file, pieces[:PIECES_MAX], position)

    def pread(self, file: int, size: int, position: int) -> bytes:
        return os.pread(file, size, position)

    def preadv(self, file: int, buffer: memoryview, position: int) -> int:
        return os.preadv(file, [buffer], position)

    def fdatasync(self, file: int) -> None:
        os.fdatasync(file)

    def sync_names(self) -> None:
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def rename(self, name: str, new_name: str) -> None:
        os.rename(self._folder / name, self._folder / new_name)

    def unlink(self, name: str) -> None:
        os.unlink(self._folder / name)


def write_all(files: Files, file: int, pieces: Sequence[bytes | memoryview], position: int) -> None:
    """Write all pieces, however few bytes the system takes at once."""
    left: Sequence[bytes | memoryview] = pieces
    while left:
        written = files.pwritev(file, left, position)
        position += written
        left = _behind(left, written)


def _behind(pieces: Sequence[bytes | memoryview], written: int) -> list[bytes | memoryview]:
    for index, piece in enumerate(pieces):
        if written < len(piece):
            return [memoryview(piece)[written:], *pieces[index + 1 :]]
        written -= len(piece)
    return []


def read_into(files: Files, file: int, buffer: memoryview, position: int) -> int:
    """Fill the buffer; returns how many bytes there were, fewer at the end of the file."""
    done = 0
    while done < len(buffer):
        count = files.preadv(file, buffer[done:], position + done)
        if not count:
            break
        done += count
    return done


def read_all(files: Files, file: int, size: int, position: int) -> bytes:
    """So many bytes, or fewer at the end of the file."""
    data = files.pread(file, size, position)
    while len(data) < size:
        more = files.pread(file, size - len(data), position + len(data))
        if not more:
            break
        data += more
    return data
