"""The result of `postbus.store.opening`: the catalog and the stores of a namespace, opened."""

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from postbus.model.times import Instant
from postbus.store.ports.catalog import Catalog
from postbus.store.ports.store import Store


class DataInUse(Exception):
    """Another process has the data open."""


class DataDamaged(Exception):
    """Some part of the data is missing, or belongs to another namespace. Going on would hide the
    loss, or give the messages of the other namespace to clients of this one."""


class FormatUnknown(Exception):
    """The data is not ours. Or a newer Postbus wrote it, or a version that is too old."""


class BackupFailed(Exception):
    """The copy could not be finished; its beginning has been removed."""


class Upgraded(NamedTuple):
    """A file that was of an older format until just now."""

    file: str
    was: int
    is_now: int


class Backup(Protocol):
    """A copy of data in use. It gets its name when it is whole.

    The caller goes through the `steps` of each store on that store's thread, and calls `finish` on
    the thread of the catalog. Other calls may come between two steps.

    The catalog comes last. An entity leaves the catalog before its store begins to drop it, so a
    half-dropped fragment in the copy is listed as dropped by the copied catalog, or unknown to it.
    The other way round the copy could promise a queue whose messages are half gone. An entity that
    was created in between has no fragment in the copied store: it opens as an empty one.
    """

    def steps(self, number: int) -> Generator[None, None, None]:
        """Copy one store, a slice between two yields."""

    def finish(self, beside: Sequence[str] = ()) -> None:
        """Copy the catalog, and the files and folders of these names beside it, if they exist."""

    def abandon(self) -> None:
        """Remove the unfinished copy."""


class NamespaceData(Protocol):
    """All that a namespace keeps. Its stores and its catalog are used on threads of their own."""

    @property
    def catalog(self) -> Catalog: ...

    @property
    def stores(self) -> Sequence[Store]:
        """By their numbers, at least one. `FragmentRecord.store` is an index into it."""

    @property
    def folder(self) -> Path | None:
        """Where the control socket lies; None for data that no other process can reach."""

    @property
    def upgraded(self) -> Sequence[Upgraded]:
        """The parts that were upgraded when the data was opened."""

    @property
    def is_outdated(self) -> bool:
        """Is some file of an older format? Then the data may only be copied."""

    def newest(self) -> Instant:
        """The latest time of anything in it: the clock must not go back behind it."""

    def begin_backup(self, target: Path) -> Backup:
        """Raises BackupFailed, or NotSupported if other tools copy data of this kind."""

    def close(self) -> None: ...
