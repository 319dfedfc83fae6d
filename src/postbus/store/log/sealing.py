"""The end of a segment: first it gets its directory, later it goes."""

from contextlib import suppress

from postbus.errors import OutcomeUnknown, StoreUnavailable
from postbus.store.log import index_file
from postbus.store.log.commit_log import CommitLog
from postbus.store.log.failures import LogFailures
from postbus.store.log.files import NO_SPACE
from postbus.store.log.segments import NamesFailed, Segments
from postbus.store.sqlite.database import Database


class Sealing:
    def __init__(
        self, database: Database, log: CommitLog, segments: Segments, failures: LogFailures
    ) -> None:
        self._database = database
        self._log = log
        self._segments = segments
        self._failures = failures
        self._is_refused = False

    def try_again(self) -> None:
        """There may be room by now."""
        self._is_refused = False

    def seal(self) -> None:
        """Write the directories of full segments. Without room it is done later: until then a start
        scans them. Raises nothing, for this follows a commit that is durable in any case; a failure
        refuses the next call."""
        if self._is_refused:
            return
        for segment in self._log.full_segments():
            try:
                end = self._log.write_directory(segment)
                with self._database.transaction(synced=False):
                    index_file.put_segment(
                        self._database, segment.number, segment.end, segment.end_sequence
                    )
            except OSError as error:
                if error.errno not in NO_SPACE:
                    self._failures.stop(error)
                self._is_refused = True
                return
            except (StoreUnavailable, OutcomeUnknown):
                self._is_refused = True
                return
            self._log.sealed(segment)
            self._segments.cut(segment.number, end)

    def recycle(self) -> None:
        """Let segments go in which nothing can be read. The index that says so must have been
        synced. Raises nothing; a failure refuses the next call."""
        gone: list[int] = []
        try:
            for number in self._log.recyclable():
                if self._segments.recycle(number):
                    gone.append(number)
        except NamesFailed as error:
            self._failures.stop(error)
            return
        if gone:
            with (
                suppress(StoreUnavailable, OutcomeUnknown),
                self._database.transaction(synced=False),
            ):
                index_file.remove_segments(self._database, gone)
