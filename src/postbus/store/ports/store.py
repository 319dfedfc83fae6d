"""A store: one place that keeps fragments, their journals and their index together.

Calls are synchronous. Each store has a thread of its own (`postbus.runtime.store_thread`), and
what is called there happens in order. All fragments of a store share its commits.
"""

from typing import Protocol

from postbus.store.ports.index import Index
from postbus.store.ports.journal import Journal


class Store(Journal, Protocol):
    """Journals, the index beside them, and the room that both have."""

    @property
    def index(self) -> Index: ...

    @property
    def has_room(self) -> bool:
        """Is there room for new messages? If not, only a reserve is left: it is for writes that
        make room, as settlements, checkpoints, trims and drops do. For any thread."""

    @property
    def is_spent(self) -> bool:
        """Is nothing left of the reserve either? Then only requests of clients are tried: an engine
        whose write fails has to be loaded again. For any thread."""

    def look_for_room(self) -> bool:
        """Look how much room there is, and give up of the reserve or fill it. Returns has_room. A
        store without a reserve of its own always has room."""

    def probe(self, now: int) -> None:
        """Write and read back a small durable value, for the health check; raises like commit."""

    def close(self) -> None: ...
