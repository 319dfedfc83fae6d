"""The segment files of a log: which there are, who reads them, and when they go."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from postbus.store.log.files import Files, read_all, read_into, write_all
from postbus.store.log.format import HEADER_BLOCK, SegmentHeader, pack_segment
from postbus.store.log.spares import SUFFIX, Spares

OPEN_MAX: Final = 64
"""Segments that are open at once to be read."""
CUT_SHARE: Final = 4
"""A sealed segment keeps up to 1/CUT_SHARE of it without use: then it is a spare as it is."""
PREFIX: Final = "log-"


class Segment:
    """One file of the log."""

    __slots__ = (
        *("capacity", "end", "end_sequence", "file", "header", "is_sealed", "is_written"),
        *("pinned_bytes", "references", "seed", "visible_bytes"),
    )

    def __init__(self, header: SegmentHeader, capacity: int) -> None:
        self.header = header
        self.seed = header.seed
        self.capacity = capacity
        """Bytes it has, or may grow to."""
        self.end = HEADER_BLOCK
        """Where the next frame begins; later, the directory."""
        self.end_sequence = header.first_sequence
        """The sequence after that of its last frame."""
        self.file: int | None = None
        self.references = 0
        """Reads that are under way."""
        self.is_written = False
        """May frames still be added, or be on their way to the disk?"""
        self.is_sealed = False
        self.visible_bytes = 0
        """Of batches that can be read."""
        self.pinned_bytes = 0
        """The part of it that only live bodies hold in place."""

    @property
    def number(self) -> int:
        return self.header.number


class Segments:
    def __init__(self, files: Files, store: bytes, spares: Spares) -> None:
        self._files = files
        self._store = store
        self._spares = spares
        self._lock = threading.Lock()
        self._open: dict[int, Segment] = {}
        """Those with a descriptor, the least recently used first."""
        self.by_number: dict[int, Segment] = {}

    def add(self, segment: Segment) -> None:
        self.by_number[segment.number] = segment

    def create(self, generation: int, first_sequence: int, size: int) -> Segment:
        """A new segment with room for so many bytes behind its header. Its header and its name are
        durable when this returns. OSError; NamesFailed when the names are in doubt."""
        number = max(self.by_number, default=0) + 1
        header = SegmentHeader(self._store, number, generation, first_sequence)
        name, file, capacity = self._spares.take(HEADER_BLOCK + size)
        try:
            write_all(self._files, file, [pack_segment(header)], 0)
            self._files.fdatasync(file)
        except OSError:
            self._spares.give_back(name, file)
            raise
        try:
            self._files.rename(name, name_of(number))
            self._files.sync_names()
        except OSError as error:
            self._files.close(file)
            raise NamesFailed(error) from error
        segment = Segment(header, capacity)
        segment.file, segment.is_written = file, True
        with self._lock:
            self.by_number[number] = segment
            self._open[number] = segment
        return segment

    def recycle(self, number: int) -> bool:
        """Let a segment go that nothing needs. False while a reader has it. NamesFailed when the
        name may come back."""
        segment = self.by_number[number]
        with self._lock:
            if segment.references:
                return False
            self._close(segment)
            del self.by_number[number]
        try:
            self._spares.reuse(name_of(number))
        except OSError as error:
            raise NamesFailed(error) from error
        return True

    @contextmanager
    def reading(self, number: int) -> Iterator[int]:
        """The descriptor of a segment, which stays until the read is over."""
        with self._lock:
            segment = self.by_number[number]
            segment.references += 1
            if segment.file is None:
                try:
                    segment.file = self._files.open(name_of(number))
                except OSError:
                    segment.references -= 1
                    raise
            self._open.pop(number, None)
            self._open[number] = segment
            if len(self._open) > OPEN_MAX:
                self._close_one()
            file = segment.file
        try:
            yield file
        finally:
            with self._lock:
                segment.references -= 1

    def hold(self, numbers: Iterable[int]) -> None:
        """Keep these segments until they are let go: somebody reads what was in them."""
        with self._lock:
            for number in numbers:
                self.by_number[number].references += 1

    def let_go(self, numbers: Iterable[int]) -> None:
        with self._lock:
            for number in numbers:
                self.by_number[number].references -= 1

    def read(self, number: int, position: int, size: int) -> bytes:
        """Fewer bytes at the end of the file."""
        with self.reading(number) as file:
            return read_all(self._files, file, size, position)

    def read_into(self, number: int, position: int, buffer: memoryview) -> int:
        with self.reading(number) as file:
            return read_into(self._files, file, buffer, position)

    def write(self, number: int, position: int, pieces: list[bytes]) -> None:
        """Write at once and sync, beside the thread that writes frames."""
        with self.reading(number) as file:
            write_all(self._files, file, pieces, position)
            self._files.fdatasync(file)

    def cut(self, number: int, size: int) -> None:
        """Give back what a segment has behind its directory, if that is much: it was sealed before
        it was full."""
        segment = self.by_number[number]
        if segment.capacity - size > segment.capacity // CUT_SHARE:
            with suppress(OSError), self.reading(number) as file:
                self._files.truncate(file, size)
                segment.capacity = size

    def close(self) -> None:
        for segment in list(self._open.values()):
            self._close(segment)

    def _close_one(self) -> None:
        for segment in self._open.values():
            if not segment.references and not segment.is_written:
                self._close(segment)
                return

    def _close(self, segment: Segment) -> None:
        self._open.pop(segment.number, None)
        if segment.file is not None:
            self._files.close(segment.file)
            segment.file = None


class NamesFailed(Exception):
    """The names in the folder are in doubt: a rename or its sync failed."""


def name_of(number: int) -> str:
    return f"{PREFIX}{number:010}{SUFFIX}"


def number_of(name: str) -> int | None:
    """None for a file that is no segment."""
    digits = name.removeprefix(PREFIX).removesuffix(SUFFIX)
    return int(digits) if digits.isdecimal() and name == name_of(int(digits)) else None
