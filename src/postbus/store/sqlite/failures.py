"""The meaning of each error of SQLite for the store that uses the file."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import apsw

from postbus.errors import OutcomeUnknown, StoreFailed, StoreFull, StoreUnavailable
from postbus.store.sqlite.damage import Damaged

_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_GROWTH: Final = frozenset({apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_SHMSIZE})
"""Errors of a full disk that is not reported as full: a quota, and the log's index."""
_WAIT: Final = (apsw.BusyError, apsw.LockedError)
_BROKEN: Final = (
    apsw.IOError,
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.CantOpenError,
    apsw.ReadOnlyError,
    apsw.ProtocolError,
    apsw.PermissionsError,
)


class Failures:
    """Of one file. The first failure that leaves the file in doubt stops it for good."""

    __slots__ = ("_name", "reason")

    def __init__(self, name: str) -> None:
        self._name = name
        self.reason: str | None = None
        """Why the file is stopped; None while it works."""

    def refuse(self) -> None:
        """Raise StoreFailed if the file is stopped."""
        if self.reason is not None:
            raise StoreFailed(self.reason)

    @contextmanager
    def translated(
        self, connection: apsw.Connection | None, commits: bool = False
    ) -> Iterator[None]:
        """Raise the store's error for SQLite's.

        While the log is written and synced (`commits`), an error leaves the outcome unknown. Only
        a write that found no room is certain to be absent at the next start.
        """
        try:
            yield
        except apsw.FullError as error:
            raise StoreFull(f"{self._name} has no room: {error}") from error
        except _WAIT as error:
            raise StoreUnavailable(f"{self._name} takes no writes now: {error}") from error
        except Damaged as error:
            self.reason = f"{self._name} is damaged and is stopped: {error}"
            raise StoreFailed(self.reason) from error
        except _BROKEN as error:
            if connection is not None and _is_no_space(error, connection):
                if commits and _code(error) == apsw.SQLITE_IOERR_SHMSIZE:
                    # The index of the log has no room; the log itself has the commit by then.
                    raise OutcomeUnknown(f"{self._name} may not keep it: {error}") from error
                raise StoreFull(f"{self._name} has no room: {error}") from error
            # Never retry on this file: after a failed sync the kernel may hold the pages for clean.
            # The next sync then succeeds although they never reached the disk.
            self.reason = f"{self._name} failed and is stopped: {error}"
            if commits:
                raise OutcomeUnknown(f"{self._name} may have the write, or not: {error}") from error
            raise StoreFailed(self.reason) from error


def _is_no_space(error: apsw.Error, connection: apsw.Connection) -> bool:
    return _code(error) in _GROWTH and connection.system_errno in _NO_SPACE


def _code(error: apsw.Error) -> int | None:
    return getattr(error, "extendedresult", None)
