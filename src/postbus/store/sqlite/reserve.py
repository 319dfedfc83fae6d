"""Disk space set aside for writes that make room when the disk is full.

A settlement, a trim and a deletion are writes, too. On a disk without a free block none of them
would get through, and nobody could remove the data that fills it. So a file of a certain size lies
beside the stores. It is given up in steps, when a write finds no room or little room is left. It is
made whole again once there is room for it. New messages are taken only while it is whole.
"""

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final

STEPS: Final = 4
"""The reserve is given up in so many steps; one step is kept free for writes that are under way."""
CAPACITY_SHARE: Final = 8
"""On a small disk the reserve is at most 1/CAPACITY_SHARE of it."""
LOOK_BYTES: Final = 1 << 20
"""After this many bytes the free room is measured again."""
_BLOCK: Final = 4096
_CHUNK: Final = 1 << 20
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Reserve:
    """The reserve of a data folder; its stores and its catalog have threads of their own."""

    def __init__(self, path: str | Path, size: int, free: Callable[[], int] | None = None) -> None:
        """`free` says how many bytes the disk has left."""
        self._path = Path(path)
        self._free = free or self._free_on_disk
        self._step = max(_BLOCK, size // STEPS // _BLOCK * _BLOCK)
        self._size = self._step * STEPS
        self._lock = Lock()
        self._written = 0
        self._pledged: dict[str, int] = {}
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        found = os.fstat(self._file)
        # A copied folder may have holes in the file, which would give no room back.
        is_there = found.st_blocks * 512 >= found.st_size
        self._held = min(found.st_size, self._size) if is_there else 0
        os.ftruncate(self._file, self._held)  # it may have been larger by an earlier setting
        self.has_room = True
        """Is there room for new messages?"""
        self.look()

    @property
    def held(self) -> int:
        """Bytes that are left of the reserve."""
        return self._held

    @property
    def step(self) -> int:
        return self._step

    def pledge(self, name: str, size: int) -> None:
        """A log has this many bytes that may have to be added to its file."""
        self._pledged[name] = size

    def wrote(self, size: int) -> bool:
        """So much was added to a store: is it time to look again?"""
        self._written += size
        return self._written >= LOOK_BYTES or not self.has_room

    @property
    def is_pledged(self) -> bool:
        """Would there be room if the logs were moved into their files?"""
        pledged = sum(self._pledged.values())
        return pledged >= self._step and self._free() - pledged < 2 * self._step

    @property
    def is_spent(self) -> bool:
        """Others took it, too: a write of any size is likely to fail."""
        return not self._held and self._free() < self._step

    def has_room_for(self, size: int) -> bool:
        """Would there be room for new messages after so many bytes were taken at once?"""
        return self.has_room and self._free() - sum(self._pledged.values()) >= size + 2 * self._step

    def look(self) -> bool:
        """Give some of the reserve up, or make it whole again, as far as there is room. True if
        there is room for new messages, too."""
        with self._lock:
            self._written = 0
            pledged = sum(self._pledged.values())
            free = self._free()
            if free < self._step:
                self._give_up()
            elif self._held < self._size:
                # Two steps stay free beside it, or it would be given up again at once.
                self._take(min(self._size - self._held, free - pledged - 2 * self._step))
                free = self._free()
            free -= pledged
            wanted = self._step if self.has_room else 2 * self._step
            self.has_room = self._held >= self._size and free >= wanted
            return self.has_room

    def ease(self) -> None:
        """Before a write: give some of the reserve up if little room is left. Never take room back
        here: a write that is tried again would lose the room it was given, without end."""
        with self._lock:
            if self._free() < self._step:
                self._give_up()

    def give_up(self) -> bool:
        """A write found no room: let it have some. False where nothing is left to give."""
        with self._lock:
            self.has_room = False
            return self._give_up()

    def close(self) -> None:
        os.close(self._file)

    def _give_up(self) -> bool:
        if not self._held:
            return False
        try:
            os.ftruncate(self._file, max(0, self._held - self._step))
            self._held = max(0, self._held - self._step)
            os.fsync(self._file)  # some file systems free the blocks with the next sync only
        except OSError:
            return False
        return True

    def _take(self, size: int) -> None:
        size = size // _BLOCK * _BLOCK
        if size <= 0:
            return
        try:
            self._allocate(size)
            self._held += size
        except OSError:  # somebody else was faster
            with suppress(OSError):
                os.ftruncate(self._file, self._held)

    def _allocate(self, size: int) -> None:
        """Really: a file of holes would give nothing back."""
        try:
            os.posix_fallocate(self._file, self._held, size)
        except OSError as error:
            if error.errno in _NO_SPACE:
                raise
            # Not every file system can do it, and not every C library makes up for that.
            end = self._held + size
            for place in range(self._held, end, _CHUNK):
                os.pwrite(self._file, bytes(min(_CHUNK, end - place)), place)

    def _free_on_disk(self) -> int:
        try:
            found = os.statvfs(self._path.parent)
        except OSError:
            return 2 * self._step  # not known: all stays as it is
        return found.f_bavail * found.f_frsize


def fitting(folder: Path, size: int) -> int:
    """The size of the reserve for a folder: as wanted, or a share of a small disk. 0 if the file
    system does not tell its size: it would not tell either when it is full."""
    found = os.statvfs(folder)
    return min(size, found.f_blocks * found.f_frsize // CAPACITY_SHARE)
