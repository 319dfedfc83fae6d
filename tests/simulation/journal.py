"""The real store, with a copy of all that was ever written to it, for the checkers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from postbus.store.batch import StoredBatch
from postbus.store.ports.journal import Lease, Part
from postbus.store.ports.store import Store
from tests.simulation.history import STAYS, Violation
from tests.simulation.inventory import FRAGMENT
from tests.simulation.model import Model


class Journal:
    """Passes every call on; what a commit made durable, the model learns from its bytes."""

    def __init__(self, store: Store, model: Model) -> None:
        self.store: Any = store
        self._model = model
        self.batches: list[StoredBatch] = []
        self._standing = Lease(FRAGMENT, 0, 0, 0, b"")
        self._under_way: Sequence[Part] = ()
        self._latest = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def commit(self, parts: Sequence[Part]) -> frozenset[int]:
        self._under_way = parts
        passed: frozenset[int] = self.store.commit(parts)
        self._under_way = ()
        for part in parts:
            if part.lease.fragment not in passed:
                raise Violation("nobody is fenced", None, f"epoch {part.lease.epoch}")
            self._take(part)
        return passed

    def _take(self, part: Part) -> None:
        if part.at < self._latest:
            raise Violation("time never goes back", None, f"{part.at} after {self._latest}")
        self._latest = part.at
        if part.batch:
            self.batches.append(StoredBatch(part.base, part.batch))
            self._model.committed(part.batch)
        self._standing = self._after(part)
        self._model.history.note(
            part.at,
            None,
            f"committed {part.count} records at {part.base}, index {self._standing.checkpoint}",
        )

    def _after(self, part: Part) -> Lease:
        checkpoint, state = self._standing.checkpoint, self._standing.state
        if part.checkpoint is not None:
            checkpoint, state = part.checkpoint.offset, part.checkpoint.state
        return Lease(FRAGMENT, 0, part.base + part.count, checkpoint, state)

    def reopened(self, store: Store) -> None:
        """All that was committed is there, and what was under way is there wholly or not."""
        self.store = store
        found = store.acquire(FRAGMENT, "inspector", 0)._replace(epoch=0)
        parts, self._under_way = self._under_way, ()
        for part in parts:
            there = found == self._after(part)
            self._model.history.note(
                part.at, None, f"a commit was cut short: {'there' if there else 'not there'}"
            )
            if there:
                self._take(part)
        if found != self._standing:
            raise Violation(STAYS, None, f"found {found}, must be {self._standing}")
        start = found.checkpoint
        stored = [each for each in store.read(FRAGMENT, start, 1 << 30) if each.base >= start]
        if stored != [each for each in self.batches if each.base >= start]:
            raise Violation(STAYS, None, f"other batches after {start} than were written")

    @property
    def stands(self) -> Lease:
        """Where the fragment stands, without taking it over."""
        return self._standing
