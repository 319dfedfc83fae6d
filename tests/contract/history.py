"""A scripted life of a store that touches everything it writes, one durable call at a time."""

import copy
from collections.abc import Callable

from postbus.model.index_rows import Row
from postbus.store.memory.store import MemoryStore
from postbus.store.ports.store import Store
from tests.contract.fragments import T0, Dump, Writer, change, dump

FRAGMENTS = (1, 2)
LANES = ((0, 0), (0, 1), (1, 0))
EVER = 1 << 60


class Life:
    """The steps in order. Each makes at most one durable change, and can be tried again."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.writers: dict[int, Writer] = {}
        self.rows: dict[str, Row] = {}

    def steps(self) -> list[Callable[[], None]]:
        return [
            lambda: self._acquire(1),
            lambda: self._acquire(2),
            lambda: self._send("a", "b", "c"),
            self._send_to_both,
            lambda: self._send("large", size=40_000),
            self._first_checkpoint,
            self._batch_with_checkpoint,
            *[lambda name=f"fill {i}": self._send(name, size=9_000) for i in range(4)],
            self._second_checkpoint,
            self._trim,
            self._copy_forward,
            self._third_checkpoint,
            self._trim,
            lambda: self.store.probe(T0),
            self._checkpoint_of_the_other,
            self.drop_the_other,
            lambda: self.store.release(self.writers[1].lease),
            lambda: self._acquire(1),
            lambda: self._send("last"),
        ]

    def _acquire(self, fragment: int) -> None:
        self.writers[fragment] = Writer(self.store, fragment)

    def _send(self, *names: str, size: int = 10) -> None:
        bodies = [name.encode().ljust(size, b".") for name in names]
        rows = self.writers[1].send(*bodies)
        self.rows.update(zip(names, rows, strict=True))

    def _send_to_both(self) -> None:
        one, two = self.writers[1], self.writers[2]
        part_one, [row] = one.part(b"d")
        part_two = two.part(b"x", b"y", b"z")[0]
        assert self.store.commit([part_one, part_two]) == {1, 2}
        one.head += 1
        two.head += 3
        self.rows["d"] = row

    def _first_checkpoint(self) -> None:
        names = ("a", "b", "c", "d", "large")
        self.writers[1].checkpoint([self.rows[name] for name in names], state=b"five")

    def _batch_with_checkpoint(self) -> None:
        writer, rows = self.writers[1], self.rows
        moved = rows["b"]._replace(lane=1, wake_at=T0 + 5)
        dead = rows["c"]._replace(subqueue=1, data=b"why")
        checkpoint = change(writer.head, [moved, dead], [rows["a"], rows["b"], rows["c"]], b"moved")
        writer.send(b"with checkpoint", checkpoint=checkpoint)

    def _second_checkpoint(self) -> None:
        self.writers[1].checkpoint([], [self.rows["large"]], b"large gone")

    def _trim(self) -> None:
        self.store.trim(1, EVER, 0, 1_000)

    def _copy_forward(self) -> None:
        if "pinned" not in self.rows:  # a second search would offer the next one
            [self.rows["pinned"]] = self.store.load_pinned(1, self.store.tail(1), 1.0, 1)
        pinned = self.rows["pinned"]
        [row] = self.writers[1].send(b"body copied")
        self.rows["copy"] = row._replace(
            subqueue=pinned.subqueue, lane=pinned.lane, number=pinned.number
        )

    def _third_checkpoint(self) -> None:
        self.writers[1].checkpoint([self.rows["copy"]], [], b"copied")

    def _checkpoint_of_the_other(self) -> None:
        writer = self.writers[2]
        rows = [Row(0, 0, i, T0, 0, 60, 1, b"%d" % i) for i in range(30)]
        writer.checkpoint(rows, state=b"thirty")

    def drop_the_other(self) -> None:
        """The one step in several slices, each of them durable: the catalog has it go on."""
        while not self.store.drop(2, 13):
            pass


def seen(store: Store) -> list[Dump]:
    """All of it, without touching it: what is only known by taking a fragment over is left out."""
    return [
        Dump(
            0,
            0,
            b"",
            store.tail(fragment),
            store.read(fragment, 0, EVER),
            [row for lane in LANES for row in store.index.load_lane(fragment, *lane, 0, 1_000)],
        )
        for fragment in FRAGMENTS
    ]


def as_seen(dump: Dump) -> Dump:
    return dump._replace(head=0, checkpoint=0, state=b"")


def taken_over(store: Store) -> list[Dump]:
    return [dump(store, fragment, LANES) for fragment in FRAGMENTS]


def expected() -> list[list[Dump]]:
    """How things stand before the first step and after each, by the store without a disk."""
    store = MemoryStore()
    states = [taken_over(copy.deepcopy(store))]
    for step in Life(store).steps():
        step()
        states.append(taken_over(copy.deepcopy(store)))
    return states
