"""The real store, with a copy of all that was ever written to it, for models and checkers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from postbus.broker import records
from postbus.broker.records import Record
from postbus.errors import OutcomeUnknown, StoreFailed
from postbus.store import batch
from postbus.store.batch import StoredBatch
from postbus.store.log.store import LogStore
from postbus.store.ports.journal import Lease, Part
from postbus.store.ports.store import Store
from tests.simulation.history import Violation
from tests.simulation.promises import FENCED, STAYS, TIME

Written = list[tuple[Record, bytes]]
"""The records of one batch, each decoded and in its bytes."""
_EVERYTHING = 1 << 30


class RecordedStore:
    """Passes every call on, and says what each commit made durable."""

    def __init__(
        self,
        store: Store,
        is_deleted: Callable[[int], bool],
        committed: Callable[[Part, Written], None],
        note: Callable[[str], None],
    ) -> None:
        self.store: Any = store
        self._is_deleted = is_deleted
        """Was the entity of this fragment deleted? Then its data need not be there."""
        self._committed = committed
        self._note = note
        self.batches: dict[int, list[StoredBatch]] = {}
        self.standing_of: dict[int, Lease] = {}
        """Where each fragment stands, without taking it over."""
        self._under_way: Sequence[Part] = ()
        self._latest = 0
        self._checkpoints: set[tuple[int, int, bytes]] = set()
        """All that were ever written."""
        self._index_may_lag = isinstance(store, LogStore)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def commit(self, parts: Sequence[Part]) -> frozenset[int]:
        self._under_way = parts
        try:
            passed: frozenset[int] = self.store.commit(parts)
        except OutcomeUnknown:
            if self._index_may_lag:
                self._look_at_records()
            raise
        self._under_way = ()
        for part in parts:
            if part.lease.fragment not in passed and not self._is_deleted(part.lease.fragment):
                raise Violation(FENCED, None, f"epoch {part.lease.epoch}")
            self._record(part)
        return passed

    def _look_at_records(self) -> None:
        """A log that has no room for a checkpoint has the records, and goes on with them."""
        try:
            heads = {p.lease.fragment: self._found(p.lease.fragment).head for p in self._under_way}
        except StoreFailed:  # a failed sync: only the next start can tell
            return
        parts, self._under_way = self._under_way, ()
        for part in parts:
            if heads[part.lease.fragment] != part.base + part.count:
                raise Violation(STAYS, None, "the records are not there, nor is the store stopped")
            self._record(part._replace(checkpoint=None))

    def _record(self, part: Part) -> None:
        if part.at < self._latest:
            raise Violation(TIME, None, f"{part.at} after {self._latest}")
        self._latest = part.at
        fragment_id = part.lease.fragment
        standing = self.standing_of[fragment_id] = self._after(part)
        self._checkpoints.add(_checkpoint_of(standing))
        self._note(
            f"committed {part.count} records of {fragment_id} at {part.base}, "
            f"index {standing.checkpoint}"
        )
        if part.batch:
            self.batches.setdefault(fragment_id, []).append(StoredBatch(part.base, part.batch))
            self._committed(part, [(records.decode(d), d) for _, d in batch.records(part.batch)])

    def _after(self, part: Part) -> Lease:
        fragment_id = part.lease.fragment
        before = self.standing_of.get(fragment_id, Lease(fragment_id, 0, 0, 0, b""))
        checkpoint, state = before.checkpoint, before.state
        if part.checkpoint is not None:
            checkpoint, state = part.checkpoint.offset, part.checkpoint.state
        return Lease(fragment_id, 0, part.base + part.count, checkpoint, state)

    # -- after a start ---------------------------------------------------------------------------

    def reopened(self, store: Store) -> None:
        """All that was committed is there; of a commit that was cut short all parts or none."""
        self.store = store
        parts, self._under_way = self._under_way, ()
        if self._index_may_lag:
            for part in parts:
                self._checkpoints.add(_checkpoint_of(self._after(part)))
            # A checkpoint alone may be there or not, whatever became of the others.
            parts = [part for part in parts if part.batch]
            there = [
                self._found(part.lease.fragment).head == part.base + part.count for part in parts
            ]
        else:
            there = [self._found(part.lease.fragment) == self._after(part) for part in parts]
        if parts:
            self._note(f"a commit was cut short: {'there' if all(there) else 'not there'}")
            if any(there) != all(there):
                raise Violation(STAYS, None, "half of a commit")
        if all(there):
            for part in parts:
                self._record(part)
        for fragment_id, standing in self.standing_of.items():
            if not self._is_deleted(fragment_id):
                if self._index_may_lag:
                    self.standing_of[fragment_id] = self._fallen_back(fragment_id, standing)
                self._check_stays(fragment_id, self.standing_of[fragment_id])

    def _fallen_back(self, fragment_id: int, standing: Lease) -> Lease:
        """A checkpoint of a log may be lost: then the fragment stands at an earlier one."""
        found = self._found(fragment_id)
        known = _checkpoint_of(found)
        if known in self._checkpoints or known == (fragment_id, 0, b""):
            return standing._replace(checkpoint=found.checkpoint, state=found.state)
        return standing

    def _found(self, fragment_id: int) -> Lease:
        standing = self.store.position(fragment_id)
        if standing is None:
            return Lease(fragment_id, 0, 0, 0, b"")
        return Lease(fragment_id, 0, standing.head, standing.checkpoint, standing.state)

    def _check_stays(self, fragment_id: int, standing: Lease) -> None:
        found, start = self._found(fragment_id), standing.checkpoint
        if found != standing:
            raise Violation(STAYS, None, f"found {found}, must be {standing}")
        stored = self.store.read(fragment_id, start, _EVERYTHING)
        written = self.batches.get(fragment_id, [])
        if [b for b in stored if b.base >= start] != [b for b in written if b.base >= start]:
            raise Violation(STAYS, None, f"other batches after {start} than were written")


def _checkpoint_of(standing: Lease) -> tuple[int, int, bytes]:
    return standing.fragment, standing.checkpoint, standing.state
