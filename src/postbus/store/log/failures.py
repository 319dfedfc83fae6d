"""The meaning of errors of the log's files for the store.

After a failed write or sync nothing more is written: the kernel may hold the pages for clean, and
no second sync is believed. The store is stopped together with the file of its index.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from postbus.errors import OutcomeUnknown, StoreFailed, StoreFull
from postbus.store.log.files import NO_SPACE
from postbus.store.log.segment_writer import WriteFailed
from postbus.store.log.segments import NamesFailed
from postbus.store.sqlite.database import Database
from postbus.store.sqlite.reserve import Reserve

T = TypeVar("T")


class LogFailures:
    def __init__(self, database: Database, reserve: Reserve | None) -> None:
        self._database = database
        self._reserve = reserve

    def stop(self, error: Exception) -> StoreFailed:
        """Stop the store; returns what to raise, unless the call has done its work."""
        reason = f"the log failed and is stopped: {error}"
        self._database.stop(reason)
        return StoreFailed(reason)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A failed read stops the store, and so does damage."""
        try:
            with self._database.reading():
                yield
        except OSError as error:
            raise self.stop(error) from error

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A failed frame leaves the outcome of all frames under way unknown."""
        try:
            yield
        except WriteFailed as error:
            self.stop(error)
            raise OutcomeUnknown(f"the log may have the write, or not: {error}") from error

    def making_room(self, write: Callable[[], T]) -> T:
        """Run a call that may begin a segment. If it finds no room, give up some of the reserve and
        run it again."""
        while True:
            try:
                return write()
            except (NamesFailed, WriteFailed) as error:
                raise self.stop(error) from error
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise self.stop(error) from error
                if self._reserve is None or not self._reserve.give_up():
                    raise StoreFull(f"the log has no room: {error}") from error
