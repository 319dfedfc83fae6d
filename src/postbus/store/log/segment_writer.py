"""The thread that writes frames into segments and makes them durable."""

import os
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from postbus.store.log.files import Files, write_all


class WriteFailed(Exception):
    """A write or a sync failed: what was not durable before may be there, or not."""

    def __init__(self, step: str, errno: int) -> None:
        super().__init__(f"{step}: {os.strerror(errno)}")
        self.step = step
        self.errno = errno


class SegmentWriter(Protocol):
    """Writes frames into open segment files and makes them durable, in the order of submission, on
    a thread of its own."""

    def submit(
        self, sequence: int, file: int, position: int, pieces: Sequence[bytes | memoryview]
    ) -> None:
        """Queue a frame: its pieces one after another at `position` of the open file descriptor.
        Returns at once; keeps the pieces alive until written."""

    def fileno(self) -> int:
        """Readable while there is news (eventfd)."""

    def collect(self) -> int:
        """The highest sequence that is durable, together with all before it. Clears the readiness.
        Raises WriteFailed(step, errno) from the first failed write or sync on; nothing is written
        after that."""

    def wait(self, sequence: int) -> None:
        """Block until `sequence` is durable; raises WriteFailed. For a caller on the store's
        thread."""

    def close(self) -> None: ...


class PythonSegmentWriter:
    """A SegmentWriter on a Python thread."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._queue: deque[tuple[int, int, int, Sequence[bytes | memoryview]]] = deque()
        self._news = threading.Condition()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._durable = 0
        self._failure: WriteFailed | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="segment-writer", daemon=True)
        self._thread.start()

    def submit(
        self, sequence: int, file: int, position: int, pieces: Sequence[bytes | memoryview]
    ) -> None:
        with self._news:
            self._queue.append((sequence, file, position, pieces))
            self._news.notify_all()

    def fileno(self) -> int:
        return self._event

    def collect(self) -> int:
        with self._news:
            with suppress(BlockingIOError):
                os.eventfd_read(self._event)
            if self._failure is not None:
                raise self._failure
            return self._durable

    def wait(self, sequence: int) -> None:
        with self._news:
            while self._durable < sequence and self._failure is None:
                self._news.wait()
            if self._durable < sequence:
                assert self._failure is not None
                raise self._failure

    def step(self) -> None:
        """One round: write everything queued, sync each file once, publish."""
        with self._news:
            frames = list(self._queue)
            self._queue.clear()
        if not frames or self._failure is not None:
            return
        step = "write"
        try:
            for _, file, position, pieces in frames:
                write_all(self._files, file, pieces, position)
            step = "sync"
            for file in dict.fromkeys(file for _, file, _, _ in frames):
                self._files.fdatasync(file)
        except OSError as error:
            with self._news:
                self._failure = WriteFailed(step, error.errno or 0)
        with self._news:
            if self._failure is None:
                self._durable = frames[-1][0]
            os.eventfd_write(self._event, 1)
            self._news.notify_all()

    def close(self) -> None:
        with self._news:
            self._closing = True
            self._news.notify_all()
        self._thread.join()
        os.close(self._event)

    def _run(self) -> None:
        while True:
            with self._news:
                while not self._queue and not self._closing:
                    self._news.wait()
                if not self._queue:
                    return
            self.step()
