"""The engines of a namespace's entities: what they are asked, and what is known without them."""

from __future__ import annotations

from typing import TypeVar

from postbus.model.description import QueueCounts
from postbus.namespace.entity import Entity
from postbus.runtime.engine_cache import counts_of
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.operations import Count, SetPolicy, ask
from postbus.runtime.requests import Operation
from postbus.runtime.runtime import Runtime

T = TypeVar("T")


class Engines:
    """Every fragment of the namespace, by way of the runtime of its store."""

    def __init__(self, runtimes: list[Runtime]) -> None:
        self._runtimes = runtimes

    async def ask(self, fragment: LoadedFragment, operation: Operation[T]) -> T:
        """Ask something of an engine, and wait for the answer."""
        return await ask(self._runtimes[fragment.store], fragment, operation)

    def survey(self, fragments: list[LoadedFragment]) -> None:
        """Learn of fragments what must be known without loading them."""
        for store, runtime in enumerate(self._runtimes):
            runtime.survey([fragment for fragment in fragments if fragment.store == store])

    async def apply(self, entity: Entity) -> None:
        """Let the engines have the new policy; links and locks end by that (R-SETTLE-10).

        Only for a description that changed: Go's own tests update a queue to what it is and go on
        with the locks they have.
        """
        for fragment in entity.fragments:
            await self.set_policy(entity, fragment)
        entity.detach_updated()

    async def set_policy(self, entity: Entity, fragment: LoadedFragment) -> None:
        await self.ask(fragment, SetPolicy(entity.owner, entity.policy()))

    def known_counts(self, entity: Entity) -> QueueCounts | None:
        """Counts without asking an engine. None while the counts of a fragment are not known: its
        engine was never in memory, or is being loaded."""
        found = []
        for fragment in entity.fragments:
            counts = _known_counts(fragment, entity.owner)
            if counts is None:
                return None
            found.append(counts)
        return _total(found)

    async def counts(self, entity: Entity) -> QueueCounts:
        count = Count(entity.owner)
        found = []
        for fragment in entity.fragments:
            # Or a list of all entities would load every engine.
            resting = fragment.engine is None
            known = _known_counts(fragment, entity.owner) if resting else None
            found.append(await self.ask(fragment, count) if known is None else known)
        return _total(found)


def _known_counts(fragment: LoadedFragment, owner: int) -> QueueCounts | None:
    if fragment.engine is not None:
        return counts_of(fragment.engine.ledger, owner)
    return None if fragment.counts is None else fragment.counts.get(owner, QueueCounts())


def _total(counts: list[QueueCounts]) -> QueueCounts:
    return QueueCounts(*map(sum, zip(*counts, strict=True)))
