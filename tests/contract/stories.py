"""Lives of stores and catalogs, told together with how things stand after every answer.

Whatever is done to the one in a file is done to the one in memory right after, and once the first
has answered, the second shows what must be found from then on, whatever happens.
"""

import copy
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import ANY, patch

import apsw

from postbus.store.memory.catalog import MemoryCatalog
from postbus.store.memory.store import MemoryStore
from postbus.store.ports.catalog import Catalog
from postbus.store.ports.journal import Lease, Part, Trimmed
from postbus.store.ports.store import Store
from postbus.store.sqlite import folder as folders
from postbus.store.sqlite.catalog import SqliteCatalog
from postbus.store.sqlite.folder import DataFolder
from postbus.store.sqlite.store import SqliteStore
from tests.contract.fragments import T0, Dump, Writer, dump
from tests.contract.history import Life
from tests.contract.test_alike import Engine

FRAGMENTS = (1, 2)
LANES = tuple((subqueue, lane) for subqueue in (0, 1) for lane in (0, 1, 2))
WAL_PAGES = 20
"""Few, so that the log is moved into the file many times in a history."""
LATER = T0 + 1_000_000
"""When the power came back."""

Answered = Callable[[], None]
Found = Any


class Story(ABC):
    """`states[n]` is what must be found after n answers; each play tells it anew."""

    def __init__(self) -> None:
        self.states: list[Found] = []

    @abstractmethod
    def play(self, folder: Path, vfs: str, answered: Answered) -> None: ...

    @abstractmethod
    def look(self, folder: Path, vfs: str, shown: Answered = lambda: None) -> Found:
        """Start on what is in the folder, check that it is sound, and say what is there.

        Calls `shown` when all of it has been seen, before anything is closed."""


def standing(store: Store) -> list[tuple[int, Dump]]:
    """Each fragment with the epoch that the next holder gets. Takes them over."""
    dumps = [dump(store, fragment, LANES) for fragment in FRAGMENTS]
    epochs = [store.acquire(fragment, "inspector", 0).epoch for fragment in FRAGMENTS]
    return list(zip(epochs, dumps, strict=True))


def assert_sound(path: Path, vfs: str) -> None:
    with closing(apsw.Connection(str(path), vfs=vfs)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


class Shadow:
    """The store in memory. It goes on where the one in a file is opened anew."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.dropping: set[int] = set()
        """Half of such a fragment is gone, and it does not matter which half."""

    def standing(self) -> Found:
        found = standing(copy.deepcopy(self.store))
        places = zip(FRAGMENTS, found, strict=True)
        return [ANY if fragment in self.dropping else place for fragment, place in places]


class Twin:
    """A store in a file and one in memory that hears of everything the first has answered."""

    def __init__(self, file: SqliteStore, shadow: Shadow, answered: Answered) -> None:
        self.file = file
        self.shadow = shadow
        self.answered = answered

    def acquire(self, fragment: int, broker: str, seen_epoch: int) -> Lease:
        return self._both(lambda store: store.acquire(fragment, broker, seen_epoch))

    def commit(self, parts: Sequence[Part]) -> frozenset[int]:
        return self._both(lambda store: store.commit(parts))

    def trim(self, fragment: int, older_than: int, bytes_max: int, limit: int) -> Trimmed:
        return self._both(lambda store: store.trim(fragment, older_than, bytes_max, limit))

    def drop(self, fragment: int, limit: int) -> bool:
        done = self.file.drop(fragment, limit)
        self.shadow.dropping.add(fragment)
        if done:
            while not self.shadow.store.drop(fragment, limit):
                pass
            self.shadow.dropping.remove(fragment)
        self.answered()
        return done

    def release(self, lease: Lease) -> None:
        self._both(lambda store: store.release(lease))

    def probe(self, now: int) -> None:
        self._both(lambda store: store.probe(now))

    def load_pinned(self, *arguments: Any) -> Any:
        found = [store.load_pinned(*arguments) for store in (self.file, self.shadow.store)]
        assert found[0] == found[1]
        return found[0]

    def tail(self, fragment: int) -> int:
        return self.file.tail(fragment)

    def _both(self, call: Callable[[Store], Any]) -> Any:
        answer = call(self.file)
        assert call(self.shadow.store) == answer
        self.answered()
        return answer


class StoreStory(Story):
    """Anything that happens to one store. A planted fault is another `make`."""

    def __init__(self, make: Callable[..., SqliteStore] = SqliteStore) -> None:
        super().__init__()
        self._make = partial(make, wal_pages_max=WAL_PAGES)

    def play(self, folder: Path, vfs: str, answered: Answered) -> None:
        shadow = Shadow()
        self.states = [shadow.standing()]

        def both() -> None:
            self.states.append(shadow.standing())
            answered()

        def start() -> Twin:
            return Twin(self._make(str(folder / "store.db"), vfs=vfs), shadow, both)

        twin = start()
        both()
        self.live(twin, start).close()

    def live(self, twin: Twin, start: Callable[[], Twin]) -> SqliteStore:
        """The scripted life. Returns the store that is open at its end."""
        store: Any = twin
        for step in Life(store).steps():
            step()
        return twin.file

    def look(self, folder: Path, vfs: str, shown: Answered = lambda: None) -> Found:
        path = folder / "store.db"
        with closing(SqliteStore(str(path), vfs=vfs)) as store:
            found = standing(store)
            shown()
            assert_sound(path, vfs)
        return found


class RandomStoreStory(StoreStory):
    def __init__(self, seed: int, steps: int, **options: Any) -> None:
        super().__init__(**options)
        self._seed = seed
        self._steps = steps

    def live(self, twin: Twin, start: Callable[[], Twin]) -> SqliteStore:
        engine = Engine(self._seed)
        chance = engine.random
        writers = self._writers(twin)
        for _ in range(self._steps):
            match chance.randrange(10):
                case 0 | 1 | 2 | 3:
                    engine.send([writers[0]])
                case 4:
                    parts = [w.part(chance.randbytes(chance.randint(1, 9_000))) for w in writers]
                    twin.commit([part for part, _ in parts])
                    for writer in writers:
                        writer.head += 1
                case 5:
                    engine.settle()
                    head = writers[0].head
                    writers[0].send(checkpoint=engine.checkpoint(head))
                case 6:
                    head = writers[0].head
                    body = chance.randbytes(chance.randint(1, 40_000))
                    writers[0].send(body, checkpoint=engine.checkpoint(head))
                case 7:
                    room = chance.choice([0, 9_000, 1 << 40])
                    twin.trim(1, engine.now - 3_000, room, 10_000)
                case 8:
                    writers[1].checkpoint(state=chance.randbytes(50))
                    twin.probe(T0 + chance.randint(0, 99))
                case _:
                    if chance.random() < 0.5:
                        twin.release(writers[1].lease)
                    else:
                        twin.file.close()
                        twin = start()
                    writers = self._writers(twin)
        return twin.file

    def _writers(self, twin: Twin) -> list[Writer]:
        store: Any = twin
        return [Writer(store, fragment) for fragment in FRAGMENTS]


class CatalogStory(Story):
    def __init__(self, seed: int, steps: int) -> None:
        super().__init__()
        self._seed = seed
        self._steps = steps

    def play(self, folder: Path, vfs: str, answered: Answered) -> None:
        chance = random.Random(self._seed)
        self.states = [listing(MemoryCatalog(LATER))]
        file = SqliteCatalog(str(folder / "catalog.db"), T0, vfs=vfs)
        memory = MemoryCatalog(T0)
        self._tell(memory, answered)
        with closing(file):
            for step in range(self._steps):
                call = self._choose(chance, memory, step)
                assert call(file) == call(memory)
                self._tell(memory, answered)

    def _tell(self, memory: Catalog, answered: Answered) -> None:
        self.states.append(listing(memory))
        answered()

    def _choose(
        self, chance: random.Random, memory: Catalog, step: int
    ) -> Callable[[Catalog], object]:
        names = [entity.name for entity in memory.entities()]
        dropped = memory.dropped()
        description = {"text": "x" * chance.choice([1, 100, 20_000]), "step": step}
        now = T0 + step
        match chance.randrange(6):
            case 0 if names:
                name = chance.choice(names)
                return lambda catalog: catalog.update(name, description, now)
            case 1 if names:
                name = chance.choice(names)
                return lambda catalog: catalog.delete(name)
            case 2 if dropped:
                fragment = chance.choice(dropped).id
                return lambda catalog: catalog.forget(fragment)
            case 3:
                return lambda catalog: catalog.set("key", str(step))
        stores = list(range(chance.randint(1, 4)))
        return lambda catalog: catalog.create(f"Q{step}", "queue", description, now, stores)

    def look(self, folder: Path, vfs: str, shown: Answered = lambda: None) -> Found:
        path = folder / "catalog.db"
        with closing(SqliteCatalog(str(path), LATER, vfs=vfs)) as catalog:
            found = listing(catalog)
            shown()
            assert_sound(path, vfs)
        return found


def listing(catalog: Catalog) -> Found:
    return (
        catalog.namespace_created_at,
        catalog.entities(),
        catalog.dropped(),
        catalog.get("key"),
    )


class FolderStory(Story):
    """A whole data folder: what the catalog promises, the store must have."""

    def play(self, folder: Path, vfs: str, answered: Answered) -> None:
        catalog, shadow = MemoryCatalog(T0), Shadow()
        self.states = [(listing(MemoryCatalog(LATER)), shadow.standing())]

        def both() -> None:
            self.states.append((listing(catalog), shadow.standing()))
            answered()

        with open_folder(folder, T0, vfs) as opened:
            both()
            twin: Any = Twin(opened.stores[0], shadow, both)
            for name in ("one", "two"):
                for each in (catalog, opened.catalog):
                    [fragment] = each.create(name, "queue", {}, T0, [0]).fragments
                both()
                writer = Writer(twin, fragment.id)
                for size in (10, 9_000, 40_000):
                    rows = writer.send(bytes(size), b"a")
                writer.checkpoint(rows)
            for each in (catalog, opened.catalog):
                each.delete("two")
            both()
            while not twin.drop(2, 3):
                pass
            for each in (catalog, opened.catalog):
                each.forget(2)
            both()

    def look(self, folder: Path, vfs: str, shown: Answered = lambda: None) -> Found:
        with open_folder(folder, LATER, vfs) as opened:
            found = listing(opened.catalog), standing(opened.stores[0])
            shown()
            for name in ("catalog.db", "store-0.db"):
                assert_sound(folder / name, vfs)
        return found


def open_folder(path: Path, now: int, vfs: str) -> "closing[DataFolder]":
    store = partial(SqliteStore, vfs=vfs, wal_pages_max=WAL_PAGES)
    with patch.multiple(folders, SqliteStore=store, SqliteCatalog=partial(SqliteCatalog, vfs=vfs)):
        return closing(DataFolder(path, now))
