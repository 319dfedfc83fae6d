"""Dead letters sent again or thrown away for whoever manages an entity (R-DLQ-08).

A request names up to a thousand of them. They are dealt with a slice at a time, each slice one
commit, so that neither the memory they take nor the time that others wait grows with the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from postbus.broker.engine import Engine
from postbus.broker.pages import Need, Pages
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
from postbus.broker.subqueue import DEAD_LETTER, TRANSFER_DEAD_LETTER
from postbus.errors import (
    EntityNotFound,
    InvalidArgument,
    InvalidOperation,
    OutcomeUnknown,
    ServiceBusError,
)
from postbus.messages.envelope import DECODED, UNITS_OF_TOIL
from postbus.model.address import Address, SubQueue
from postbus.model.plain_message import Edits
from postbus.model.times import Instant
from postbus.namespace.entities import Entity, QueueEntity, ReceivableEntity, TopicEntity
from postbus.namespace.namespace import Namespace
from postbus.namespace.revision import Revision
from postbus.runtime.requests import Call

_SUBQUEUES: Final = {
    SubQueue.DEAD_LETTER: DEAD_LETTER,
    SubQueue.TRANSFER_DEAD_LETTER: TRANSFER_DEAD_LETTER,
}

DECODED_MAX: Final = 65_536
"""Of `DecodeMeter.units`, for a slice: the letter that goes beyond it may take 20 ms."""
TOIL_MAX: Final = 16_384
"""Of `SharedState.toil`, for a slice: what subscriptions make of messages that are sent again."""

Results = list[Result] | Need


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
        target_of = self._target(entity, source, to, subqueue)
        size_max = self._namespace.settings.property_size_max_bytes
        repairs = [Repair(number, Revision(edits, size_max)) for number, edits in asked]

        def call(part: Sequence[Repair], engine: Engine, now: Instant, pages: Pages) -> Results:
            queue, fragment = engine.at(subqueue), engine.shared
            before = DECODED.units

            def enough() -> bool:
                return DECODED.units - before > DECODED_MAX or fragment.toil > TOIL_MAX

            made = resubmit(queue, subqueue, part, target_of(engine), now, pages, enough)
            fragment.toil += (DECODED.units - before) // UNITS_OF_TOIL
            return made

        return await self._in_slices(entity, repairs, call, grows=True)

    async def discard(self, source: Address, numbers: Sequence[int]) -> list[tuple[str, str]]:
        """Remove dead letters for good. Returns the outcome of each."""
        entity, subqueue = self._find(source)

        def call(part: Sequence[int], engine: Engine, now: Instant, pages: Pages) -> Results:
            return discard(engine.at(subqueue), subqueue, part, pages)

        return await self._in_slices(entity, numbers, call)

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

    def _target(
        self, entity: Entity, source: Address, to: Address | None, subqueue: int
    ) -> Callable[[Engine], ResubmitTarget]:
        """What makes the target, within the engine that the dead letters are in."""
        if to is None:
            if source.subqueue is SubQueue.TRANSFER_DEAD_LETTER:
                raise InvalidArgument(
                    f"The messages in '{source.path}' were sent to other entities: say 'to' which "
                    "one they shall go."
                )
            return lambda engine: Back(engine.at(subqueue), engine.own)
        target = self._namespace.at(to)
        if target is None:
            raise self._unknown(to)
        if (
            target is entity
            and isinstance(entity, ReceivableEntity)
            and to.subqueue is SubQueue.MAIN
        ):
            return lambda engine: Back(engine.at(subqueue), engine.own)
        if not isinstance(target, QueueEntity | TopicEntity) or to.subqueue is not SubQueue.MAIN:
            raise InvalidOperation(f"Messages cannot be sent to '{to.path}'.")
        if target.fragment is entity.fragment:
            return Published
        return partial(
            Posted,
            destination=target.fragment.id,
            kind="Topic" if isinstance(target, TopicEntity) else "Queue",
            name=target.path,
            policy=target.policy(),
        )

    def _unknown(self, address: Address) -> EntityNotFound:
        return EntityNotFound(address.written)

    # -- the engine ----------------------------------------------------------------------------

    async def _in_slices(
        self,
        entity: Entity,
        asked: Sequence[Any],
        call: Callable[[Sequence[Any], Engine, Instant, Pages], Results],
        grows: bool = False,
    ) -> list[tuple[str, str]]:
        results: list[Result] = []
        count = AT_ONCE
        while len(results) < len(asked):
            part = asked[len(results) : len(results) + count]
            try:
                done = await self._ask(entity, partial(call, part), grows)
                results += done
                # Where a turn had no time for all, not all are read for the next one.
                count = min(2 * len(done), AT_ONCE)
            except ServiceBusError as error:
                if not results or isinstance(error, OutcomeUnknown):
                    raise
                # What came before it is done. Asking again for all of them does no harm.
                left = len(asked) - len(results)
                results += [Result(Outcome.REFUSED, str(error))] * left
        return [(result.outcome.value, result.detail) for result in results]

    async def _ask(
        self, entity: Entity, call: Callable[[Engine, Instant, Pages], Results], grows: bool
    ) -> list[Result]:
        future: asyncio.Future[list[Result]] = asyncio.get_running_loop().create_future()

        def done(result: list[Result]) -> None:
            if not future.done():
                future.set_result(result)

        def failed(error: ServiceBusError) -> None:
            if not future.done():
                future.set_exception(error)

        entity.touch(self._clock())
        runtime = self._namespace.runtime(entity.fragment)
        # Not exclusive: what is told of each was put into words when it was decided.
        runtime.submit(Call(entity.fragment, call, done, failed, exclusive=False, grows=grows))
        return await future
