"""A receive over HTTP from a partitioned entity: one message of any of its fragments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from postbus.errors import ServiceBusError
from postbus.http.long_poll import LongPoll
from postbus.runtime.fragment_receivers import FragmentReceivers
from postbus.runtime.requests import GiveBack
from postbus.runtime.runtime import Runtime

if TYPE_CHECKING:
    from postbus.namespace.entity import Entity
    from postbus.runtime.loaded_fragment import LoadedFragment


class PartitionedPoll(LongPoll):
    """One receiver of a subqueue in all fragments, for one message."""

    def __init__(
        self,
        entity: Entity,
        subqueue: int,
        runtimes: Sequence[Runtime],
        deletes: bool,
        start: int,
    ) -> None:
        super().__init__(entity.fragments[0], subqueue, runtimes[0], deletes)
        self._entity = entity
        self._runtimes = runtimes
        self._places = FragmentReceivers(self, entity.fragments, runtimes, subqueue, start)

    def _join(self) -> None:
        for fragment in self._entity.fragments:
            fragment.used = True
        self._places.open()
        self._places.wake()

    def _leave(self) -> None:
        if not self._left:
            self._left = True
            self._places.leave()

    def _end(self) -> None:
        self._leave()
        self._places.close()
        super()._end()

    def _give_back(self) -> None:
        outgoing, self._outgoing = self._outgoing, None
        if outgoing is not None:
            fragment = self._entity.fragment_of_number(outgoing.message.number)
            self._runtimes[fragment.index].submit(GiveBack(fragment, outgoing))

    # -- called by its places ------------------------------------------------------------------

    def satisfied(self) -> bool:
        return self._result.done()

    def returned(self, count: int, size: int) -> None:
        self._promised = count < 0

    def engine_lost(self, fragment: LoadedFragment, error: ServiceBusError) -> None:
        # Without its fragment the poll goes on with the others, unless its time is over.
        if fragment.gone is not None or (self._left and not self._promised):
            self._fail(error)
