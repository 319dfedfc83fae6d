"""The real store with a copy of all that was ever written to it, for several fragments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

from postbus.broker import records
from postbus.broker.records import Record
from postbus.store import batch
from postbus.store.batch import StoredBatch
from postbus.store.ports.journal import Lease, Part
from postbus.store.ports.store import Store
from tests.simulation.history import STAYS, History, Violation

Written = list[tuple[Record, bytes]]
"""The records of one batch, decoded and as they were."""


class Kept(ABC):
    """Passes every call on."""

    def __init__(self, store: Store, history: History, gone: Collection[int]) -> None:
        self.store: Any = store
        self._history = history
        self._gone = gone
        """Fragments that need not be there any more."""
        self.batches: dict[int, list[StoredBatch]] = {}
        self.stands: dict[int, Lease] = {}
        self._under_way: Sequence[Part] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    @abstractmethod
    def learn(self, part: Part, written: Written) -> None:
        """These records are durable."""

    def commit(self, parts: Sequence[Part]) -> frozenset[int]:
        self._under_way = parts
        passed: frozenset[int] = self.store.commit(parts)
        self._under_way = ()
        for part in parts:
            self._take(part)
        return passed

    def _take(self, part: Part) -> None:
        fragment = part.lease.fragment
        if part.batch:
            self.batches.setdefault(fragment, []).append(StoredBatch(part.base, part.batch))
            self.learn(part, [(records.decode(d), d) for _, d in batch.records(part.batch)])
        self.stands[fragment] = self._after(part)

    def _after(self, part: Part) -> Lease:
        fragment = part.lease.fragment
        before = self.stands.get(fragment, Lease(fragment, 0, 0, 0, b""))
        checkpoint, state = before.checkpoint, before.state
        if part.checkpoint is not None:
            checkpoint, state = part.checkpoint.offset, part.checkpoint.state
        return Lease(fragment, 0, part.base + part.count, checkpoint, state)

    def reopened(self, store: Store) -> None:
        """All that was committed is there, and what was under way is there wholly or not."""
        self.store = store
        parts, self._under_way = self._under_way, ()
        there = [self._found(part.lease.fragment) == self._after(part) for part in parts]
        if there and any(there) != all(there):
            raise Violation(STAYS, None, "half of a commit")
        if parts and all(there):
            for part in parts:
                self._take(part)
        for fragment, stands in self.stands.items():
            if fragment not in self._gone and self._found(fragment) != stands:
                raise Violation(STAYS, None, f"found {self._found(fragment)}, must be {stands}")

    def _found(self, fragment: int) -> Lease:
        standing = self.store.position(fragment)
        if standing is None:
            return Lease(fragment, 0, 0, 0, b"")
        return Lease(fragment, 0, standing.head, standing.checkpoint, standing.state)
