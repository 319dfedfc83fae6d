"""The catalog without a disk."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from postbus.errors import EntityAlreadyExists, EntityNotFound, QuotaExceeded
from postbus.model.times import Instant
from postbus.store.ports import journal
from postbus.store.ports.catalog import (
    EntityRecord,
    FragmentRecord,
    ReaderKey,
    SubscriptionRecord,
    key_of,
    to_json,
)


class MemoryCatalog:
    """A Catalog in dicts. See `postbus.store.ports.catalog` for what the methods promise."""

    def __init__(self, now: Instant) -> None:
        """`now` is the time the namespace was created."""
        self.namespace_created_at = now
        self.subscriptions = MemorySubscriptions()
        self.reader_offsets = MemoryReaderOffsets()
        self._entities: dict[str, EntityRecord] = {}
        self._dropped: list[FragmentRecord] = []
        self._next_fragment = 1
        self._deleted_prefixes: set[str] = set()
        self._values: dict[str, str] = {}

    def entities(self) -> list[EntityRecord]:
        return [_given(self._entities[key]) for key in sorted(self._entities)]

    def newest(self) -> Instant:
        changes = [record.updated_at for record in self._entities.values()]
        return max(self.namespace_created_at, *changes, self.subscriptions.newest())

    def create(
        self,
        name: str,
        kind: str,
        description: dict[str, Any],
        now: Instant,
        stores: Sequence[int],
    ) -> EntityRecord:
        key = key_of(name)
        if key in self._entities:
            raise EntityAlreadyExists(name)
        first = self._next_fragment
        most = journal.FRAGMENT_MAX
        if first + len(stores) - 1 > most:
            raise QuotaExceeded(f"The namespace has had {most} fragments, and none is used twice.")
        fragments = tuple(
            FragmentRecord(first + place, place, store) for place, store in enumerate(stores)
        )
        self._entities[key] = EntityRecord(name, kind, _copy(description), now, now, fragments)
        self._next_fragment = first + len(stores)
        self._deleted_prefixes.discard(key)
        return _given(self._entities[key])

    def update(self, name: str, description: dict[str, Any], now: Instant) -> EntityRecord:
        record = replace(self._find(name), description=_copy(description), updated_at=now)
        self._entities[key_of(name)] = record
        return _given(record)

    def delete(self, name: str) -> EntityRecord:
        record = self._find(name)
        key = key_of(name)
        del self._entities[key]
        self.subscriptions.drop_topic(key)
        self._dropped += record.fragments
        if self._is_folder(key):
            self._deleted_prefixes.add(key)
        self._deleted_prefixes = {each for each in self._deleted_prefixes if self._is_folder(each)}
        return _given(record)

    def dropped(self) -> list[FragmentRecord]:
        return sorted(self._dropped, key=lambda fragment: (fragment.index, fragment.id))

    def forget(self, fragment: int) -> None:
        self._dropped = [each for each in self._dropped if each.id != fragment]

    def deleted_prefixes(self) -> list[str]:
        return sorted(self._deleted_prefixes)

    def get(self, key: str) -> str | None:
        return self._values.get(key)

    def set(self, key: str, value: str) -> None:
        self._values[key] = value

    def close(self) -> None:
        """It holds nothing that must be given back."""

    def _find(self, name: str) -> EntityRecord:
        record = self._entities.get(key_of(name))
        if record is None:
            raise EntityNotFound(name)
        return record

    def _is_folder(self, key: str) -> bool:
        return any(each.startswith(f"{key}/") for each in self._entities)


class MemorySubscriptions:
    """A SubscriptionCatalog in dicts."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, SubscriptionRecord]] = {}
        self._rules: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
        self._next_owner: dict[str, int] = {}

    def of(self, topic: str) -> list[SubscriptionRecord]:
        kept = self._topics.get(key_of(topic), {})
        return [self._given(kept[key]) for key in sorted(kept)]

    def newest(self) -> Instant:
        """The latest change of a subscription that exists."""
        changes = (each.updated_at for kept in self._topics.values() for each in kept.values())
        return max(changes, default=0)

    def create(
        self,
        topic: str,
        name: str,
        description: dict[str, Any],
        rules: dict[str, dict[str, Any]],
        now: Instant,
    ) -> SubscriptionRecord:
        key, under = key_of(name), key_of(topic)
        if key in self._topics.get(under, {}):
            raise EntityAlreadyExists(f"{topic}|{name}")
        owner = self._next_owner.get(under, 1)
        record = SubscriptionRecord(under, owner, name, _copy(description), now, now, ())
        self._rules[under, owner] = {key_of(rule): _copy(each) for rule, each in rules.items()}
        self._topics.setdefault(under, {})[key] = record
        self._next_owner[under] = owner + 1
        return self._given(record)

    def update(
        self, topic: str, name: str, description: dict[str, Any], now: Instant
    ) -> SubscriptionRecord:
        record = replace(self._find(topic, name), description=_copy(description), updated_at=now)
        self._topics[key_of(topic)][key_of(name)] = record
        return self._given(record)

    def delete(self, topic: str, name: str) -> SubscriptionRecord:
        record = self._given(self._find(topic, name))
        del self._topics[key_of(topic)][key_of(name)]
        del self._rules[record.topic, record.owner]
        return record

    def put_rule(self, topic: str, owner: int, name: str, content: dict[str, Any]) -> None:
        self._rules.setdefault((key_of(topic), owner), {})[key_of(name)] = _copy(content)

    def delete_rule(self, topic: str, owner: int, name: str) -> None:
        self._rules.get((key_of(topic), owner), {}).pop(key_of(name), None)

    def drop_topic(self, key: str) -> None:
        """The topic is deleted, and with it all of its subscriptions."""
        self._topics.pop(key, None)
        self._next_owner.pop(key, None)
        self._rules = {place: each for place, each in self._rules.items() if place[0] != key}

    def _find(self, topic: str, name: str) -> SubscriptionRecord:
        record = self._topics.get(key_of(topic), {}).get(key_of(name))
        if record is None:
            raise EntityNotFound(f"{topic}/Subscriptions/{name}")
        return record

    def _given(self, record: SubscriptionRecord) -> SubscriptionRecord:
        kept = self._rules[record.topic, record.owner]
        rules = tuple(_copy(kept[key]) for key in sorted(kept))
        return replace(record, description=_copy(record.description), rules=rules)


class MemoryReaderOffsets:
    """ReaderOffsets in a dict."""

    def __init__(self) -> None:
        self._texts: dict[ReaderKey, str] = {}

    def all(self) -> dict[ReaderKey, str]:
        return dict(self._texts)

    def write(self, changed: Mapping[ReaderKey, str | None]) -> None:
        for key, text in changed.items():
            if text is None:
                self._texts.pop(key, None)
            else:
                self._texts[key] = text


def _given(record: EntityRecord) -> EntityRecord:
    return replace(record, description=_copy(record.description))


def _copy(description: dict[str, Any]) -> dict[str, Any]:
    """Through JSON, as a file would hold it: nobody else can change it, and nothing else fits."""
    copied: dict[str, Any] = json.loads(to_json(description))
    return copied
