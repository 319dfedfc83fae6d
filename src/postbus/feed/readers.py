"""How far the readers of change feeds have come: told by them, kept over a restart, bounded.

Nothing depends on it. A reader knows its own position. This is for people who want to see that a
reader keeps up, and that nothing is trimmed before it was read.
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from postbus.errors import EntityNotFound, QuotaExceeded, StoreUnavailable
from postbus.model.times import Instant
from postbus.namespace.entities import QueueEntity, TopicEntity
from postbus.namespace.namespace import Namespace
from postbus.runtime.store_thread import StoreThread
from postbus.runtime.upkeep import RetainedEntity
from postbus.store.ports.catalog import ReaderKey, ReaderOffsets

KEPT_MS: Final = 7 * 86_400_000
"""A reader that was not heard of for so long is forgotten."""
SILENT_MS: Final = 3_600_000
"""A reader that was silent for so long makes room for a new reader, if room is needed."""
READERS_MAX: Final = 1_000
"""Of all entities: each has a series in the metrics."""
PER_ENTITY_MAX: Final = 64


class Progress(NamedTuple):
    """The report of a reader about itself."""

    offsets: dict[int, int]
    """By fragment, the next offset that it has not dealt with."""
    query: str | None
    """The query that runs there, in its own words."""
    batch: int | None
    updated: Instant


class FeedReaders:
    """All readers of a namespace's feeds."""

    def __init__(
        self,
        namespace: Namespace,
        marks: ReaderOffsets,
        thread: StoreThread,
        clock: Callable[[], Instant],
    ) -> None:
        """`thread` is that of the catalog, which the marks are in."""
        self._namespace = namespace
        self._marks = marks
        self._thread = thread
        self._clock = clock
        self._known: dict[int, dict[str, Progress]] = {}
        """By the entity's first fragment, and by name."""
        self._changed: dict[ReaderKey, str | None] = {}
        """Changes that are not durable yet."""
        self._saving = asyncio.Lock()

    def now(self) -> Instant:
        return self._clock()

    async def open(self) -> None:
        """Load the known readers, once the namespace is open."""
        for key, text in (await self._thread.run(self._marks.all)).items():
            self._known.setdefault(key.fragment, {})[key.name] = _from_text(text)
        self._forget_old()
        # On a full disk the old readers are removed with the next report: no start fails for it.
        with suppress(StoreUnavailable):
            await self._save()

    def of(self, entity: QueueEntity | TopicEntity) -> dict[str, Progress]:
        """Those of an entity, by name."""
        known = self._known.get(_key_of(entity))
        if known is None:
            return {}
        oldest = self._clock() - KEPT_MS
        return {name: one for name, one in sorted(known.items()) if one.updated >= oldest}

    def has_any(self, entity: RetainedEntity) -> bool:
        oldest = self._clock() - KEPT_MS
        return any(one.updated >= oldest for one in self._known.get(_key_of(entity), {}).values())

    async def put(self, entity: QueueEntity | TopicEntity, name: str, told: Progress) -> None:
        """Note how far a reader has come. Durable when this comes back."""
        fragment_id = _key_of(entity)
        if name not in self._known.get(fragment_id, {}):
            self._forget_old()
            full = f"The namespace has {READERS_MAX} readers of feeds already."
            self._make_room(list(self._known), READERS_MAX, full)
            full = f"The feed of '{entity.name}' has {PER_ENTITY_MAX} readers."
            self._make_room([fragment_id], PER_ENTITY_MAX, full)
        self._known.setdefault(fragment_id, {})[name] = told
        self._changed[ReaderKey(fragment_id, name)] = _to_text(told)
        await self._save()

    async def remove(self, entity: QueueEntity | TopicEntity, name: str) -> None:
        fragment_id = _key_of(entity)
        if name not in self._known.get(fragment_id, {}):
            raise EntityNotFound(f"{entity.name}/$feed/readers/{name}")
        self._drop(fragment_id, name)
        await self._save()

    def lags(self, entity: QueueEntity | TopicEntity) -> dict[str, int]:
        """How many records each is behind, as far as that is known without reading."""
        heads = {
            fragment.index: fragment.head
            for fragment in entity.fragments
            if fragment.head is not None
        }
        return {
            name: sum(
                max(0, heads[index] - offset)
                for index, offset in progress.offsets.items()
                if index in heads
            )
            for name, progress in self.of(entity).items()
            if heads
        }

    def _make_room(self, fragment_ids: list[int], count_max: int, full: str) -> None:
        """Make room for another reader of these entities. A query that begins anew is a new reader,
        and its former reader falls silent."""
        readers = [
            (progress.updated, fragment_id, name)
            for fragment_id in fragment_ids
            for name, progress in self._known.get(fragment_id, {}).items()
        ]
        if len(readers) < count_max:
            return
        updated, fragment_id, name = min(readers)
        if updated > self._clock() - SILENT_MS:
            raise QuotaExceeded(full)
        self._drop(fragment_id, name)

    def _forget_old(self) -> None:
        """Drop readers that were silent for long, and readers of entities that are gone."""
        oldest = self._clock() - KEPT_MS
        fragment_ids = {_key_of(entity) for entity in self._namespace.entities()}
        for fragment_id, known in list(self._known.items()):
            for name, progress in list(known.items()):
                if fragment_id not in fragment_ids or progress.updated < oldest:
                    self._drop(fragment_id, name)

    def _drop(self, fragment_id: int, name: str) -> None:
        del self._known[fragment_id][name]
        if not self._known[fragment_id]:
            del self._known[fragment_id]
        self._changed[ReaderKey(fragment_id, name)] = None

    async def _save(self) -> None:
        """Write our changes, together with the changes that others have made meanwhile."""
        async with self._saving:
            changed, self._changed = self._changed, {}
            if not changed:
                return  # the caller before us has written it
            try:
                await self._thread.run(partial(self._marks.write, changed))
            except BaseException:
                # The callers behind us try again; newer changes stay.
                self._changed = {**changed, **self._changed}
                raise


def _key_of(entity: RetainedEntity) -> int:
    """Readers are kept under the id of the entity's first fragment. No id is used twice, so a new
    entity of an old name has no readers."""
    return entity.fragments[0].id


def _to_text(progress: Progress) -> str:
    return json.dumps(progress._asdict(), separators=(",", ":"))


def _from_text(text: str) -> Progress:
    values = json.loads(text)
    offsets = {int(index): int(offset) for index, offset in values["offsets"].items()}
    return Progress(offsets, values["query"], values["batch"], values["updated"])
