"""The real store, with a copy of all that was ever written to it, for the checkers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from postbus.store.base import Lease, MessageStore, Part, StoredBatch
from tests.simulation.history import Violation
from tests.simulation.inventory import FRAGMENT
from tests.simulation.model import Model


class Journal:
    """Passes every call on; what a commit made durable, the model learns from its bytes."""

    def __init__(self, store: MessageStore, model: Model) -> None:
        self.store: Any = store
        self._model = model
        self.batches: list[StoredBatch] = []
        self._standing = Lease(FRAGMENT, 0, 0, 0, b"")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def commit(self, parts: Sequence[Part]) -> frozenset[int]:
        passed: frozenset[int] = self.store.commit(parts)
        for part in parts:
            if part.lease.fragment not in passed:
                raise Violation("nobody is fenced", None, f"epoch {part.lease.epoch}")
            if part.batch:
                self.batches.append(StoredBatch(part.base, part.batch))
                self._model.committed(part.batch)
            head = part.base + part.count
            checkpoint, state = self._standing.checkpoint, self._standing.state
            if part.checkpoint is not None:
                checkpoint, state = part.checkpoint.offset, part.checkpoint.state
            self._standing = Lease(FRAGMENT, 0, head, checkpoint, state)
            self._model.history.note(
                part.at, None, f"committed {part.count} records at {part.base}, index {checkpoint}"
            )
        return passed

    @property
    def stands(self) -> Lease:
        """Where the fragment stands, without taking it over."""
        return self._standing
