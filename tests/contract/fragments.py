"""A fragment's writer, small enough to read a test by: it sends bodies and writes checkpoints."""

from collections.abc import Iterable
from typing import NamedTuple

from postbus.model.index_rows import Checkpoint, Row, RowKey
from postbus.store import batch
from postbus.store.batch import StoredBatch
from postbus.store.ports.journal import Lease, Part
from postbus.store.ports.store import Store

T0 = 1_700_000_000_000


class Dump(NamedTuple):
    """Everything a store would give back of one fragment."""

    head: int
    checkpoint: int
    state: bytes
    tail: int
    batches: list[StoredBatch]
    rows: list[Row]


class Writer:
    """Holds the lease of one fragment and keeps track of where it stands."""

    def __init__(self, store: Store, fragment: int = 1, seen_epoch: int = 0) -> None:
        self.store = store
        self.fragment = fragment
        self.lease = store.acquire(fragment, "broker-a", seen_epoch)
        self.head = self.lease.head

    def part(
        self, *bodies: bytes, at: int = T0, checkpoint: Checkpoint | None = None
    ) -> tuple[Part, list[Row]]:
        """What a commit of these bodies would write, and the rows that would point to them."""
        data = b""
        positions: list[int] = []
        if bodies:
            data, positions = batch.pack(self.fragment, self.lease.epoch, self.head, at, bodies)
        rows = [
            Row(0, 0, self.head + i, None, self.head, position, len(body), b"row of " + body[:20])
            for i, (position, body) in enumerate(zip(positions, bodies, strict=True))
        ]
        return Part(self.lease, self.head, len(bodies), at, data, checkpoint), rows

    def send(self, *bodies: bytes, at: int = T0, checkpoint: Checkpoint | None = None) -> list[Row]:
        part, rows = self.part(*bodies, at=at, checkpoint=checkpoint)
        assert self.store.commit([part]) == {self.fragment}
        self.head += len(bodies)
        return rows

    def checkpoint(
        self, rows: Iterable[Row] = (), removed: Iterable[Row] = (), state: bytes = b"state"
    ) -> None:
        """Bring the index to the head."""
        self.send(checkpoint=change(self.head, rows, removed, state))


def change(
    offset: int, rows: Iterable[Row] = (), removed: Iterable[Row] = (), state: bytes = b"state"
) -> Checkpoint:
    return Checkpoint(offset, list(rows), [key_of(row) for row in removed], state)


def key_of(row: Row) -> RowKey:
    return RowKey(row.subqueue, row.lane, row.number)


def body_of(store: Store, fragment: int, row: Row) -> bytes | None:
    return store.read_slice(fragment, row.base, row.position, row.length)


def dump(store: Store, fragment: int, lanes: Iterable[tuple[int, int]] = ((0, 0),)) -> Dump:
    """Takes the fragment over to see where it stands, so earlier leases are fenced."""
    lease: Lease = store.acquire(fragment, "inspector", 0)
    rows = [row for lane in lanes for row in store.index.load_lane(fragment, *lane, 0, 1_000_000)]
    return Dump(
        lease.head,
        lease.checkpoint,
        lease.state,
        store.tail(fragment),
        store.read(fragment, 0, 1 << 40),
        rows,
    )
