"""A disk that forgets what was not synced when the power goes, put under SQLite as a VFS.

The machine it stands for keeps no promise that it need not keep. What was written to a file since
its last sync is lost, or there in part, sector by sector in any selection, the last write torn at
any byte; one file may lose what another, written later, has kept. A new name, or one that was
taken away, is certain only after its folder was synced. SQLite syncs the folder with the first
sync of a log or journal that it made, and with a deletion that asks for it (`os_unix.c`). The
shared index of the log is memory and never there after a start.

Every change is written down, so that one run can be cut at each of its points: `Medium.apply`
takes the changes of a recording one by one, `Medium.survivors` says what a cut would leave.
"""

import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import apsw

from tests.contract.disk import (
    DELETE,
    SYNC,
    TRUNCATE,
    WRITE,
    Disk,
    DiskFile,
    Fault,
    no_fault,
)

CREATE = "create"
LINK = "link"
"""A file gets another name, as with a rename before the old name goes."""
NAMES = "names"
"""The folder is synced, and no file in it."""
SECTORS = (512, 4096)
_LOGS = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL


class Change(NamedTuple):
    kind: str
    name: str
    content: int
    """Which file it is: another one may have had the name before."""
    offset: int = 0
    """Where it was written, or the size it was cut to."""
    data: bytes = b""
    with_folder: bool = False
    """The names in the folder are synced too."""


class Content:
    """A file without its name: what is certain of it, and what came after."""

    __slots__ = ("durable", "pending")

    def __init__(self, durable: bytes = b"") -> None:
        self.durable = bytearray(durable)
        self.pending: list[Change] = []

    def sync(self) -> None:
        for change in self.pending:
            _perform(self.durable, change)
        self.pending = []

    def cached(self) -> bytes:
        """As everybody sees it while the power is on."""
        data = bytearray(self.durable)
        for change in self.pending:
            _perform(data, change)
        return bytes(data)

    def survivor(self, chance: random.Random) -> bytes:
        """One of the many forms in which it may come out of a power cut."""
        data = bytearray(self.durable)
        if not self.pending:
            return bytes(data)
        # Where a file grew and the data did not get there, there may be anything.
        hole = chance.choice((_zeros, chance.randbytes))
        match chance.randrange(5):
            case 0:
                kept: list[Change] = []
            case 1:
                kept = [*self.pending[:-1], *_torn(self.pending[-1], chance)]
            case 2:
                place = chance.randrange(len(self.pending))
                kept = [*self.pending[:place], *_torn(self.pending[place], chance)]
            case _:
                kept = list(_sectors(self.pending, chance))
        for change in kept:
            _perform(data, change, hole)
        return bytes(data)


class Medium:
    """All files of one folder. `files` are there from the start, and certain."""

    def __init__(self, files: Mapping[str, bytes] | None = None) -> None:
        self._contents = [Content(data) for data in (files or {}).values()]
        self._names = {name: content for content, name in enumerate(files or {})}
        self._durable_names = dict(self._names)

    def find(self, name: str) -> int | None:
        return self._names.get(name)

    @property
    def next_content(self) -> int:
        return len(self._contents)

    def apply(self, change: Change) -> None:
        match change.kind:
            case "create":
                self._contents.append(Content())
                self._names[change.name] = change.content
            case "link":
                self._names[change.name] = change.content
            case "delete":
                self._names.pop(change.name, None)
            case "names":
                pass
            case "sync":
                self._contents[change.content].sync()
            case _:
                self._contents[change.content].pending.append(change)
        if change.with_folder:
            self._durable_names = dict(self._names)

    def fail_to_sync(self) -> None:
        """The kernel holds for clean what it did not get to the disk: the next sync succeeds, and
        does nothing about it."""
        for content in self._contents:
            content.pending = []

    def cached(self) -> dict[str, bytes]:
        """What a process finds that starts while the power is still on."""
        return {name: self._contents[number].cached() for name, number in self._names.items()}

    def survivors(self, chance: random.Random) -> dict[str, bytes]:
        """What is there when the power comes back."""
        found: dict[str, bytes] = {}
        for name in sorted(self._names.keys() | self._durable_names.keys()):
            before, now = self._durable_names.get(name), self._names.get(name)
            content = chance.choice((before, now))
            if content is not None:
                found[name] = self._contents[content].survivor(chance)
        return found


class ForgettingDisk(Disk):
    """Writes through to real files, and keeps account of what of it would survive.

    With `syncs=False` it is a disk that says yes to a sync and does nothing: the lie that a
    test of syncing has to find out.
    """

    def __init__(
        self, medium: Medium | None = None, syncs: bool = True, fault: Fault = no_fault
    ) -> None:
        super().__init__(fault)
        self.medium = Medium() if medium is None else medium
        self.changes: list[Change] = []
        self._syncs = syncs

    def record(self, change: Change) -> None:
        if change.with_folder and not self._syncs:
            change = change._replace(with_folder=False)
        if change.kind == SYNC and not self._syncs:
            return
        self.medium.apply(change)
        self.changes.append(change)

    def xOpen(  # noqa: N802
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> DiskFile:
        if name is None:
            return super().xOpen(name, flags)
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        opened = ForgettingFile(self, name, flags)
        base = os.path.basename(path)
        if self.medium.find(base) is None:
            self.record(Change(CREATE, base, self.medium.next_content))
        content = self.medium.find(base)
        assert content is not None
        opened.begin(base, content, syncs_folder=bool(flags[0] & _LOGS))
        return opened

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(filename, syncdir)
        name = os.path.basename(filename)
        if self.medium.find(name) is not None:
            self.record(Change(DELETE, name, -1, with_folder=bool(syncdir)))


class ForgettingFile(DiskFile):
    _disk: ForgettingDisk

    def begin(self, name: str, content: int, syncs_folder: bool) -> None:
        self._base, self._content, self._syncs_folder = name, content, syncs_folder

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        super().xWrite(data, offset)
        self._disk.record(Change(WRITE, self._base, self._content, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        super().xTruncate(newsize)
        self._disk.record(Change(TRUNCATE, self._base, self._content, newsize))

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        change = Change(SYNC, self._base, self._content, with_folder=self._syncs_folder)
        self._disk.record(change)
        self._syncs_folder = False


@contextmanager
def forgetting_disk(medium: Medium | None = None, syncs: bool = True) -> Iterator[ForgettingDisk]:
    made = ForgettingDisk(medium, syncs)
    try:
        yield made
    finally:
        made.unregister()


def put(files: Mapping[str, bytes], folder: Path) -> None:
    """A new folder with these files and no others."""
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)


def _zeros(count: int) -> bytes:
    return bytes(count)


def _perform(data: bytearray, change: Change, hole: object = _zeros) -> None:
    assert callable(hole)
    if change.kind == TRUNCATE:
        if change.offset <= len(data):
            del data[change.offset :]
        else:
            data += bytes(change.offset - len(data))
        return
    if change.offset > len(data):
        data += hole(change.offset - len(data))
    data[change.offset : change.offset + len(change.data)] = change.data


def _torn(change: Change, chance: random.Random) -> list[Change]:
    if change.kind == TRUNCATE:
        return chance.choice(([], [change]))
    end = chance.randint(0, len(change.data))
    return [change._replace(data=change.data[:end])] if end else []


def _sectors(changes: list[Change], chance: random.Random) -> Iterator[Change]:
    """Some of what was written, by sectors; a later one may be there and an earlier one not."""
    size = chance.choice(SECTORS)
    share = chance.choice((0.1, 0.5, 0.9))
    for change in changes:
        if change.kind == TRUNCATE:
            if chance.random() < share:
                yield change
            continue
        start, end = change.offset, change.offset + len(change.data)
        while start < end:
            stop = min(end, (start // size + 1) * size)
            if chance.random() < share:
                piece = change.data[start - change.offset : stop - change.offset]
                yield change._replace(offset=start, data=piece)
            start = stop
