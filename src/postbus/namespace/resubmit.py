"""Dead letters sent again or thrown away for whoever manages an entity (R-DLQ-08).

A request names up to a thousand of them. They are dealt with a slice at a time, each slice one
commit, so that neither the memory they take nor the time that others wait grows with the request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from postbus.broker.engine import Engine
from postbus.broker.index_pages import Need, Pages
from postbus.broker.policy import Policy
from postbus.broker.resubmission import (
    AT_ONCE,
    Back,
    Outcome,
    Posted,
    Published,
    Repair,
    ResubmitTarget,
    Result,
    discard,
    resubmit,
)
from postbus.broker.subqueue_numbers import DEAD_LETTER, TRANSFER_DEAD_LETTER
from postbus.errors import (
    EntityNotFound,
    InvalidArgument,
    InvalidOperation,
    NotSupported,
    OutcomeUnknown,
    ServiceBusError,
)
from postbus.messages.envelope import DECODED, UNITS_OF_TOIL
from postbus.model.address import Address, SubQueue
from postbus.model.plain_message import Edits
from postbus.model.times import Instant
from postbus.namespace.dead_letter_edits import Revision
from postbus.namespace.entities import QueueEntity, TopicEntity
from postbus.namespace.entity import Entity, ReceivableEntity
from postbus.namespace.namespace import Namespace
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.operations import ask
from postbus.runtime.requests import Operation

_SUBQUEUES: Final = {
    SubQueue.DEAD_LETTER: DEAD_LETTER,
    SubQueue.TRANSFER_DEAD_LETTER: TRANSFER_DEAD_LETTER,
}

DECODED_MAX: Final = 65_536
"""Of `DecodeMeter.units`, for a slice: the letter that goes beyond it may take 20 ms."""
TOIL_MAX: Final = 16_384
"""Of `SharedState.toil`, for a slice: what subscriptions make of messages that are sent again."""


class Resubmission:
    """The dead letters of a namespace."""

    def __init__(self, namespace: Namespace, clock: Callable[[], Instant]) -> None:
        self._namespace = namespace
        self._clock = clock

    async def resubmit(
        self, source: Address, to: Address | None, asked: Sequence[tuple[int, Edits]]
    ) -> list[tuple[str, str]]:
        """Send dead letters of `source` again: back to where they come from, or `to` another
        entity. Returns the outcome of each, and why it was refused."""
        entity, subqueue = self._find(source)
        _refuse_partitioned(entity)
        destination = self._destination(entity, source, to)
        size_max = self._namespace.settings.property_size_max_bytes
        repairs = [Repair(number, Revision(edits, size_max)) for number, edits in asked]

        def part_of(start: int, end: int) -> Resubmit:
            return Resubmit(subqueue, repairs[start:end], destination)

        numbers = [number for number, _ in asked]
        return await self._in_slices(entity, numbers, part_of, grows=True)

    async def discard(self, source: Address, numbers: Sequence[int]) -> list[tuple[str, str]]:
        """Remove dead letters for good. Returns the outcome of each."""
        entity, subqueue = self._find(source)

        def part_of(start: int, end: int) -> Discard:
            return Discard(subqueue, numbers[start:end])

        return await self._in_slices(entity, numbers, part_of)

    # -- where from, and where to --------------------------------------------------------------

    def _find(self, source: Address) -> tuple[Entity, int]:
        entity = self._namespace.at(source)
        if entity is None:
            raise self._unknown(source)
        kind = _SUBQUEUES.get(source.subqueue)
        if kind is None or not (
            isinstance(entity, ReceivableEntity) or kind == TRANSFER_DEAD_LETTER
        ):
            raise InvalidOperation(f"'{source.path}' is no dead-letter queue.")
        return entity, entity.subqueue(kind)

    def _destination(
        self, entity: Entity, source: Address, to: Address | None
    ) -> OwnEntity | OtherEntity:
        if to is None:
            if source.subqueue is SubQueue.TRANSFER_DEAD_LETTER:
                raise InvalidArgument(
                    f"The messages in '{source.path}' were sent to other entities: say 'to' which "
                    "one they shall go."
                )
            return OwnEntity.SOURCE
        target = self._namespace.at(to)
        if target is None:
            raise self._unknown(to)
        if (
            target is entity
            and isinstance(entity, ReceivableEntity)
            and to.subqueue is SubQueue.MAIN
        ):
            return OwnEntity.SOURCE
        if not isinstance(target, QueueEntity | TopicEntity) or to.subqueue is not SubQueue.MAIN:
            raise InvalidOperation(f"Messages cannot be sent to '{to.path}'.")
        if target is entity.top_level:
            return OwnEntity.TOPIC
        _refuse_partitioned(target)
        kind = "Topic" if isinstance(target, TopicEntity) else "Queue"
        return OtherEntity(target.only_fragment.id, kind, target.path, target.policy())

    def _unknown(self, address: Address) -> EntityNotFound:
        return EntityNotFound(address.written)

    # -- the engine ----------------------------------------------------------------------------

    async def _in_slices(
        self,
        entity: Entity,
        numbers: Sequence[int],
        part_of: Callable[[int, int], Operation[list[Result]]],
        grows: bool = False,
    ) -> list[tuple[str, str]]:
        results: list[Result] = []
        count = AT_ONCE
        while len(results) < len(numbers):
            start = len(results)
            fragment = entity.fragment_of_number(numbers[start])
            end = _end_of_slice(entity, fragment, numbers, start, count)
            entity.touch(self._clock())
            try:
                # Not exclusive: what is told of each was put into words when it was decided.
                done = await ask(
                    self._namespace.runtime(fragment),
                    fragment,
                    part_of(start, end),
                    exclusive=False,
                    grows=grows,
                )
                results += done
                # Where a turn had no time for all, not all are read for the next one.
                count = min(2 * len(done), AT_ONCE)
            except ServiceBusError as error:
                if not results or isinstance(error, OutcomeUnknown):
                    raise
                # What came before it is done. Asking again for all of them does no harm.
                results += [Result(Outcome.REFUSED, str(error))] * (len(numbers) - start)
        return [(result.outcome.value, result.detail) for result in results]


def _refuse_partitioned(entity: Entity) -> None:
    if entity.partitioned:
        raise NotSupported(
            f"The entity '{entity.path}' is partitioned: Postbus does not support sending dead "
            "letters again from or to partitioned entities yet."
        )


def _end_of_slice(
    entity: Entity, fragment: LoadedFragment, numbers: Sequence[int], start: int, count_max: int
) -> int:
    """A slice is of one fragment, and is worth a turn at the most."""
    end = start
    for number in numbers[start : start + count_max]:
        if entity.fragment_of_number(number) is not fragment:
            break
        end += 1
    return end


# -- what is asked of a fragment ---------------------------------------------------------------


class OwnEntity(Enum):
    """Dead letters go back into the fragment that they are in."""

    SOURCE = auto()
    """To the queue or subscription that they died in."""
    TOPIC = auto()
    """Through the topic: each subscription that wants one gets a copy."""


class OtherEntity(NamedTuple):
    """Dead letters go to the fragment of another queue or topic."""

    fragment: int
    kind: str
    name: str
    policy: Policy


class Resubmit:
    """Send dead letters again, each by itself. Returns what became of the first ones, as many as
    have bodies that fit into memory together."""

    __slots__ = ("destination", "repairs", "subqueue")

    def __init__(
        self, subqueue: int, repairs: Sequence[Repair], destination: OwnEntity | OtherEntity
    ) -> None:
        self.subqueue = subqueue
        self.repairs = repairs
        self.destination = destination

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> list[Result] | Need:
        queue, shared, target = engine.at(self.subqueue), engine.shared, self._target(engine)
        before = DECODED.units

        def enough() -> bool:
            return DECODED.units - before > DECODED_MAX or shared.toil > TOIL_MAX

        made = resubmit(queue, self.subqueue, self.repairs, target, now, pages, enough)
        shared.toil += (DECODED.units - before) // UNITS_OF_TOIL
        return made

    def _target(self, engine: Engine) -> ResubmitTarget:
        destination = self.destination
        if destination is OwnEntity.SOURCE:
            return Back(engine.at(self.subqueue), engine.own)
        if isinstance(destination, OtherEntity):
            return Posted(engine, *destination)
        return Published(engine)


class Discard:
    """Remove dead letters for good, each by itself. Returns what became of them."""

    __slots__ = ("numbers", "subqueue")

    def __init__(self, subqueue: int, numbers: Sequence[int]) -> None:
        self.subqueue = subqueue
        self.numbers = numbers

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> list[Result] | Need:
        return discard(engine.at(self.subqueue), self.subqueue, self.numbers, pages)
