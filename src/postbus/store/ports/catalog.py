"""The port of the catalog: entities, subscriptions and rules, and small values of the namespace.

The catalog is written seldom, on a thread of its own, and lies apart from the stores: it works
while a store does not. So it also keeps the offsets of change feed readers. They are a few values a
second at the most, and must not wait for commits, nor commits for them.

Every change is durable when its call returns, and is made wholly or not at all. Names compare
without regard to case (`key_of`). Descriptions are JSON objects: a caller may change its own dict
afterwards. A call raises StoreUnavailable, StoreFull or StoreFailed as a commit does.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from postbus.model.times import Instant


@dataclass(frozen=True, slots=True)
class FragmentRecord:
    id: int
    """Never used twice: a new entity of an old name has new fragments."""
    index: int
    """Its place among the fragments of the entity."""
    store: int
    """The number of the store it lives in; decided when the entity is created."""


@dataclass(frozen=True, slots=True)
class EntityRecord:
    name: str
    """As it was given at creation; names compare without regard to case."""
    kind: str
    description: dict[str, Any]
    created_at: Instant
    updated_at: Instant
    fragments: tuple[FragmentRecord, ...]


@dataclass(frozen=True, slots=True)
class SubscriptionRecord:
    topic: str
    """The name of the topic as it compares."""
    owner: int
    """Its number in the fragments of its topic, which marks its messages there. A number is never
    used twice: messages of a deleted subscription may be left under it."""
    name: str
    description: dict[str, Any]
    created_at: Instant
    updated_at: Instant
    rules: tuple[dict[str, Any], ...]
    """By name."""


class ReaderKey(NamedTuple):
    """A reader of a change feed. The fragment is the first of the entity, and not its name: a new
    entity of an old name has new offsets."""

    fragment: int
    name: str


def key_of(name: str) -> str:
    """A name as it compares."""
    return name.casefold()


def to_json(description: Mapping[str, Any]) -> str:
    """The text that a catalog keeps of a description. ValueError when JSON cannot hold it."""
    return json.dumps(description, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


class SubscriptionCatalog(Protocol):
    """The subscriptions of topics, and their rules."""

    def of(self, topic: str) -> list[SubscriptionRecord]:
        """All subscriptions of a topic, by name."""

    def create(
        self,
        topic: str,
        name: str,
        description: dict[str, Any],
        rules: dict[str, dict[str, Any]],
        now: Instant,
    ) -> SubscriptionRecord:
        """Add a subscription with its first rules, by name. EntityAlreadyExists."""

    def update(
        self, topic: str, name: str, description: dict[str, Any], now: Instant
    ) -> SubscriptionRecord:
        """Replace the description. EntityNotFound."""

    def delete(self, topic: str, name: str) -> SubscriptionRecord:
        """Remove the subscription and its rules; returns its record. EntityNotFound."""

    def put_rule(self, topic: str, owner: int, name: str, content: dict[str, Any]) -> None:
        """Add a rule, or replace the rule of this name."""

    def delete_rule(self, topic: str, owner: int, name: str) -> None:
        """Remove a rule. A rule that does not exist is ignored."""


class ReaderOffsets(Protocol):
    """How far readers of change feeds have come, by their own word: texts by fragment and name."""

    def all(self) -> dict[ReaderKey, str]: ...

    def write(self, changed: Mapping[ReaderKey, str | None]) -> None:
        """Set these, at once; None removes a reader."""


class Catalog(Protocol):
    """The entities of a namespace, and the store of each of their fragments."""

    @property
    def namespace_created_at(self) -> Instant: ...

    @property
    def subscriptions(self) -> SubscriptionCatalog: ...

    @property
    def reader_offsets(self) -> ReaderOffsets: ...

    def entities(self) -> list[EntityRecord]:
        """All entities, by name."""

    def create(
        self,
        name: str,
        kind: str,
        description: dict[str, Any],
        now: Instant,
        stores: Sequence[int],
    ) -> EntityRecord:
        """Add an entity with one new fragment in each of `stores`. Raises EntityAlreadyExists, and
        QuotaExceeded when all ids of fragments have been used."""

    def update(self, name: str, description: dict[str, Any], now: Instant) -> EntityRecord:
        """Replace the description. EntityNotFound."""

    def delete(self, name: str) -> EntityRecord:
        """Remove the entity and its subscriptions; returns its record. EntityNotFound. From now on
        its fragments are listed as dropped."""

    def dropped(self) -> list[FragmentRecord]:
        """Fragments of deleted entities that their stores may still hold."""

    def forget(self, fragment: int) -> None:
        """The store holds nothing of this dropped fragment any more. A fragment in use stays."""

    def deleted_prefixes(self) -> list[str]:
        """Names of deleted entities while other entities lie below them, as `a` above `a/b`; as
        they compare. A token that was made for the entity must not open the folder."""

    def newest(self) -> Instant:
        """The latest change of an entity that exists; the namespace's own creation at least."""

    def get(self, key: str) -> str | None:
        """A small value kept with the namespace."""

    def set(self, key: str, value: str) -> None: ...

    def close(self) -> None: ...
