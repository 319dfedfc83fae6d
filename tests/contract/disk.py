"""A disk that fails on demand, put under SQLite as a VFS.

Everything that changes a file passes `Disk.perform`, where a fault may be raised instead. Reads
pass `Disk.read_fault`. Nothing is really synced: the machine does not go down. The disk that
forgets what was not synced is a kind of this one, in `forgetting`.
"""

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from weakref import WeakValueDictionary

import apsw

WRITE, SYNC, TRUNCATE, DELETE = "write", "sync", "truncate", "delete"

_names = itertools.count()
BY_NAME: "WeakValueDictionary[str, Disk]" = WeakValueDictionary()
"""For a store that also has files beside those of SQLite."""


class Operation(NamedTuple):
    kind: str
    file: str


class PowerCut(Exception):
    """The machine is gone; nothing reaches the disk from here on."""


Fault = Callable[[Operation], None]
"""Looks at each operation before it happens; raises what should happen instead."""


class Disk(apsw.VFS):
    def __init__(self, fault: Fault, tears_writes: bool = False) -> None:
        self.name = f"disk-{next(_names)}"
        super().__init__(self.name, "")
        BY_NAME[self.name] = self
        self._fault = fault
        self._tears_writes = tears_writes
        self.read_fault: Callable[[], None] = _no_fault
        self.last_errno = errno.EIO
        self.performed: list[Operation] = []
        self.is_dead = False

    def perform(self, operation: Operation, tear: Callable[[], None] | None = None) -> None:
        if self.is_dead:
            raise PowerCut
        try:
            self._fault(operation)
        except PowerCut:
            self.is_dead = True
            if self._tears_writes and tear is not None:
                tear()
            raise
        self.performed.append(operation)

    def xOpen(  # noqa: N802
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> "DiskFile":
        return DiskFile(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        self.perform(Operation(DELETE, os.path.basename(filename)))
        super().xDelete(filename, syncdir)

    def xGetLastError(self) -> tuple[int, str | None]:  # noqa: N802
        return self.last_errno, None


class DiskFile(apsw.VFSFile):
    def __init__(self, disk: Disk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__("", name, flags)
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._disk = disk
        self._name = os.path.basename(path or "temporary")

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        self._disk.read_fault()
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        half = data[: len(data) // 2]
        self._disk.perform(
            Operation(WRITE, self._name), lambda: super(DiskFile, self).xWrite(half, offset)
        )
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.perform(Operation(SYNC, self._name))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._disk.perform(Operation(TRUNCATE, self._name))
        super().xTruncate(newsize)


@contextmanager
def disk(fault: Fault, tears_writes: bool = False) -> Iterator[Disk]:
    made = Disk(fault, tears_writes)
    try:
        yield made
    finally:
        made.unregister()


def _no_fault() -> None:
    """All is well."""


def no_fault(_operation: Operation) -> None:
    """All is well."""


def at(count: int, error: Callable[[], Exception], kinds: frozenset[str]) -> Fault:
    """Fail once, at the operation of these kinds that has `count` others before it."""
    left = count

    def fault(operation: Operation) -> None:
        nonlocal left
        if operation.kind not in kinds:
            return
        left -= 1
        if left == -1:
            raise error()

    return fault


def sqlite_error(code: int) -> Callable[[], Exception]:
    return lambda: apsw.exception_for(code)
