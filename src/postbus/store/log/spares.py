"""Segments made ready ahead of time: allocated, filled with zeroes and synced.

A write into blocks that the file has already is synced without its metadata: at 64 KB a message it
takes two thirds of the time of a growing file. So the next segment is made while the current one
fills, on a thread of its own. A segment that is not needed any more becomes a spare as it is: its
old frames fail the checksums of its next use.

    new-*.pbl     in the making
    spare-*.pbl   ready

The next start removes both.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Final

from postbus.store.log.files import NOT_SUPPORTED, Files, write_all

SPARES_MAX: Final = 2
"""More are removed: what is written now is let go at the same pace."""
ZEROES_BYTES: Final = 1 << 20
SUFFIX: Final = ".pbl"
_NEW: Final = "new-"
_SPARE: Final = "spare-"


class Spares:
    """The spare segments of a log. `prepare` is for any thread, the rest for the log's own."""

    def __init__(
        self,
        files: Files,
        segment_bytes: int,
        small_bytes: int,
        has_room_for: Callable[[int], bool],
    ) -> None:
        """`has_room_for` says if the disk can spare so many bytes; if not, segments are small."""
        self._files = files
        self._segment_bytes = segment_bytes
        self._small_bytes = small_bytes
        self._has_room_for = has_room_for
        self._lock = threading.Lock()
        self._ready: list[str] = []
        self._names = 0
        self.can_allocate = True
        """False where the file system sets nothing aside: then segments grow as they are written,
        and there are no spares."""
        # A power cut may leave a file with both names of a rename: then a spare is a segment, too.
        for name in files.names():
            if name.startswith((_NEW, _SPARE)):
                files.unlink(name)

    @property
    def count(self) -> int:
        return len(self._ready)

    def prepare(self) -> None:
        """Make a spare if there is none. A disk without room, or a fault, leaves it at that: the
        next segment is then made when it is needed."""
        if self._ready or not self.can_allocate or not self._has_room_for(self._segment_bytes):
            return
        name = self._new_name(_NEW)
        try:
            file = self._files.create(name)
            try:
                self._allocate(file, self._segment_bytes)
                if self.can_allocate:
                    self._fill(file)
                    self._files.fdatasync(file)
            finally:
                self._files.close(file)
            if self.can_allocate:
                ready = self._new_name(_SPARE)
                self._files.rename(name, ready)
                with self._lock:
                    self._ready.append(ready)
            else:
                self._files.unlink(name)
        except OSError:
            self._discard(name)

    def take(self, size: int) -> tuple[str, int, int]:
        """A file for a segment of at least this size, under a name of its own: the name, the
        descriptor, and the size it may have. OSError when there is no room."""
        with self._lock:
            if self._ready and size <= self._segment_bytes:
                name = self._ready.pop(0)
                return name, self._files.open(name), self._segment_bytes
        whole = max(size, self._segment_bytes)
        name = self._new_name(_NEW)
        file = self._files.create(name)
        try:
            if not self._has_room_for(whole):
                whole = max(size, self._small_bytes)
            self._allocate(file, whole)
        except OSError:
            self._files.close(file)
            self._discard(name)
            raise
        return name, file, whole

    def give_back(self, name: str, file: int) -> None:
        """A file from `take` that did not become a segment."""
        self._files.close(file)
        self._discard(name)

    def reuse(self, name: str) -> None:
        """The segment of this name is not needed any more. Its name is gone for good when this
        returns, so that its next use cannot be mistaken for it."""
        ready = self._new_name(_SPARE)
        self._files.rename(name, ready)
        self._files.sync_names()
        self._add(ready)

    def _add(self, name: str) -> None:
        file = self._files.open(name)
        size = self._files.size(file)
        self._files.close(file)
        if size < self._segment_bytes or len(self._ready) >= SPARES_MAX:
            self._files.unlink(name)
            return
        with self._lock:
            self._ready.append(name)

    def _allocate(self, file: int, size: int) -> None:
        if not self.can_allocate:
            return
        try:
            self._files.allocate(file, size)
        except OSError as error:
            if error.errno not in NOT_SUPPORTED:
                raise
            self.can_allocate = False

    def _fill(self, file: int) -> None:
        zeroes = bytes(ZEROES_BYTES)
        for position in range(0, self._segment_bytes, ZEROES_BYTES):
            piece = memoryview(zeroes)[: self._segment_bytes - position]
            write_all(self._files, file, [piece], position)

    def _new_name(self, prefix: str) -> str:
        with self._lock:
            self._names += 1
            return f"{prefix}{self._names}{SUFFIX}"

    def _discard(self, name: str) -> None:
        with suppress(OSError):  # the next start removes it
            self._files.unlink(name)


class SpareThread:
    """Prepares spares beside the thread of the log."""

    def __init__(self, spares: Spares) -> None:
        self._spares = spares
        self._wishes: SimpleQueue[bool] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="log-spares", daemon=True)
        self._thread.start()

    def want(self) -> None:
        self._wishes.put(True)

    def close(self) -> None:
        self._wishes.put(False)
        self._thread.join()

    def _run(self) -> None:
        while self._wishes.get():
            self._spares.prepare()
