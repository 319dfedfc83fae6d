"""The thread that writes the frames of the commit log and makes them durable.

There are two of them with one contract (`tests/contract/segment_writer`). The native thread, in
`_segment_writer.c`, never needs the interpreter's lock. The Python thread is its twin where no C
compiler was at hand, and in simulations, which run its rounds themselves.
docs/internals/segment-writer.md has the rules.
"""

import errno
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

try:
    from postbus.store.log._segment_writer import NativeSegmentWriter
except ImportError:
    NATIVE = False
else:
    NATIVE = True

FRAMES_MAX: Final = 1_024
"""Frames that may wait to become durable."""
BYTES_MAX: Final = 64 << 20
"""Their bytes. A frame that finds nothing waiting is taken, however long it is."""
WRITE: Final = "write"
SYNC: Final = "sync"

_IOV_MAX: Final = os.sysconf("SC_IOV_MAX")


class WriteFailed(Exception):
    """A write or a sync failed, and nothing was written after it.

    Frames that were not durable by then may be in the file, whole, in part, or not at all.
    """

    def __init__(self, step: str, errno: int) -> None:
        super().__init__(step, errno)
        self.step = step
        """WRITE or SYNC."""
        self.errno = errno

    def __str__(self) -> str:
        return f"the {self.step} of the log failed: {os.strerror(self.errno)}"


class SegmentWriter(Protocol):
    """Writes frames into open segment files and makes them durable, in the order of submission, on
    a thread of its own.

    One thread submits; any thread may collect and wait. A file stays open until its frames are
    durable. A process that was forked off is refused with RuntimeError.
    """

    @property
    def durable(self) -> int:
        """The highest sequence that is durable, together with all before it. Never raises."""

    def submit(
        self, sequence: int, file: int, position: int, pieces: Sequence[bytes | memoryview]
    ) -> None:
        """Queue a frame: its pieces one after another at `position` of the open file descriptor.

        Returns at once and keeps the pieces alive until they are written. The first sequence is
        the `durable` of the start plus one, and each frame has the next one.

        Raises BlockingIOError when too much is queued, ValueError for another sequence or after
        `close`, and WriteFailed. A frame that is refused leaves no trace.
        """

    def fileno(self) -> int:
        """Readable while there is news (eventfd)."""

    def collect(self) -> int:
        """The highest sequence that is durable, together with all before it. Clears the readiness.

        Raises WriteFailed from the first failed write or sync on.
        """

    def wait(self, sequence: int) -> None:
        """Block until `sequence` is durable, without the interpreter's lock.

        Raises WriteFailed, and ValueError for a sequence that was never submitted.
        """

    def close(self) -> None:
        """Write what is queued, then end the thread. Says nothing of a failure: ask `collect`."""


class Files(Protocol):
    """The two calls of the operating system that a writer makes. Both raise OSError."""

    def pwritev(self, file: int, pieces: Sequence[memoryview], position: int) -> int:
        """Write at the position; returns how many bytes were written, which may be fewer."""

    def fdatasync(self, file: int) -> None: ...


class SystemFiles:
    """The files of the operating system."""

    def pwritev(self, file: int, pieces: Sequence[memoryview], position: int) -> int:
        return os.pwritev(file, pieces, position)

    def fdatasync(self, file: int) -> None:
        os.fdatasync(file)


class _Frame(NamedTuple):
    sequence: int
    file: int
    position: int
    pieces: list[memoryview]
    size: int


class PythonSegmentWriter:
    """The SegmentWriter in Python. Without `threaded` its owner calls `step` for each round."""

    def __init__(
        self,
        files: Files,
        *,
        durable: int = 0,
        frames_max: int = FRAMES_MAX,
        bytes_max: int = BYTES_MAX,
        threaded: bool = True,
    ) -> None:
        self._files = files
        self._frames_max, self._bytes_max = frames_max, bytes_max
        self._process = os.getpid()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._changed = threading.Condition()
        self._queue: list[_Frame] = []
        self._frames = self._bytes = 0
        self._submitted = self._durable = durable
        self._failure: tuple[str, int] | None = None
        self._closing = False
        self._thread: threading.Thread | None = None
        if threaded:
            self._thread = threading.Thread(target=self._work, name="postbus-log", daemon=True)
            self._thread.start()

    @property
    def durable(self) -> int:
        return self._durable

    def submit(
        self, sequence: int, file: int, position: int, pieces: Sequence[bytes | memoryview]
    ) -> None:
        self._check_process()
        if position < 0:
            raise ValueError(f"a frame at position {position}")
        views = [_bytes_of(piece) for piece in pieces]
        frame = _Frame(sequence, file, position, views, sum(map(len, views)))
        with self._changed:
            self._check_failure()
            if self._closing:
                raise ValueError("the segment writer is closed")
            if sequence != self._submitted + 1:
                raise ValueError(f"frame {sequence} does not follow frame {self._submitted}")
            if self._frames and (
                self._frames >= self._frames_max or self._bytes + frame.size > self._bytes_max
            ):
                raise BlockingIOError(errno.EAGAIN, "too many frames wait to be written")
            self._queue.append(frame)
            self._submitted = sequence
            self._frames += 1
            self._bytes += frame.size
            self._changed.notify_all()

    def fileno(self) -> int:
        self._check_process()
        if self._event < 0:
            raise ValueError("the segment writer is closed")
        return self._event

    def collect(self) -> int:
        self._check_process()
        # Cleared first: news from here on makes it readable again.
        if self._event >= 0:
            with suppress(BlockingIOError):
                os.eventfd_read(self._event)
        with self._changed:
            self._check_failure()
            return self._durable

    def wait(self, sequence: int) -> None:
        self._check_process()
        with self._changed:
            self._check_failure()
            if sequence > self._submitted:
                raise ValueError(f"frame {sequence} was never submitted")
        while self._thread is None and self._durable < sequence and self.step():
            pass
        with self._changed:
            self._changed.wait_for(lambda: self._failure or self._durable >= sequence)
            self._check_failure()

    def close(self) -> None:
        self._check_process()
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        while self.step():
            pass
        os.close(self._event)
        self._event = -1

    def step(self) -> bool:
        """One round: write everything queued, sync each file once, publish. False when there is
        nothing to do."""
        with self._changed:
            frames, self._queue = self._queue, []
        if not frames or self._failure is not None:
            return False
        last, count, size = frames[-1].sequence, len(frames), sum(frame.size for frame in frames)
        failure = None
        try:
            failure = self._perform(frames)
        except BaseException:
            # Nobody knows what was written; whoever waits must not wait for ever.
            failure = (WRITE, errno.EIO)
            raise
        finally:
            frames.clear()  # first: a caller that hears of them finds their pieces let go
            with self._changed:
                if failure is None:
                    self._durable = last
                    self._frames -= count
                    self._bytes -= size
                else:
                    self._failure = failure
                    self._queue.clear()
                self._changed.notify_all()
            os.eventfd_write(self._event, 1)
        return True

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    return
            if not self.step():
                return

    def _perform(self, frames: list[_Frame]) -> tuple[str, int] | None:
        """Write and sync. Returns the step that failed and its errno."""
        try:
            run: list[memoryview] = []
            file = start = end = -1
            for frame in frames:
                if frame.file != file or frame.position != end:
                    self._write(file, run, start)
                    run, file, start = [], frame.file, frame.position
                run += frame.pieces
                end = frame.position + frame.size
            self._write(file, run, start)
        except OSError as error:
            return WRITE, error.errno or errno.EIO
        try:
            for file in dict.fromkeys(frame.file for frame in frames):
                self._files.fdatasync(file)
        except OSError as error:
            return SYNC, error.errno or errno.EIO
        return None

    def _write(self, file: int, pieces: list[memoryview], position: int) -> None:
        left = [piece for piece in pieces if piece][::-1]
        while left:
            written = self._files.pwritev(file, left[: -_IOV_MAX - 1 : -1], position)
            if not written:
                raise OSError(errno.EIO, "nothing was written")
            position += written
            while left and written >= len(left[-1]):
                written -= len(left.pop())
            if written:
                left[-1] = left[-1][written:]

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError("the segment writer belongs to the process that made it")

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise WriteFailed(*self._failure)


def _bytes_of(piece: bytes | memoryview) -> memoryview:
    """A view of our own: the memory stays although the caller releases his."""
    view = memoryview(piece)
    if not view.c_contiguous:
        raise BufferError("a piece is one block of memory")
    return view.cast("B")


def choose_writer(
    durable: int = 0, *, frames_max: int = FRAMES_MAX, bytes_max: int = BYTES_MAX
) -> SegmentWriter:
    """The native thread where it was built, else the Python thread. `durable` is the last sequence
    that is in the log already."""
    if NATIVE:
        return NativeSegmentWriter(durable=durable, frames_max=frames_max, bytes_max=bytes_max)
    return PythonSegmentWriter(
        SystemFiles(), durable=durable, frames_max=frames_max, bytes_max=bytes_max
    )
