"""When each of many queues next has something to do, without going through all of them."""

from heapq import heapify, heappop, heappush
from typing import Final

from postbus.model.times import NEVER, Instant

_OUTDATED_MAX: Final = 64


class Alarms:
    """A time for each owner, before which the owner has no work. Setting a time can only bring it
    forward: waking too early is harmless, being late is not."""

    __slots__ = ("_at", "_heap")

    def __init__(self) -> None:
        self._at: dict[int, Instant] = {}
        self._heap: list[tuple[Instant, int]] = []
        """With times that were brought forward since, which count no more."""

    def set(self, owner: int, at: Instant) -> None:
        if at >= self._at.get(owner, NEVER):
            return
        self._at[owner] = at
        heappush(self._heap, (at, owner))
        if len(self._heap) > 2 * len(self._at) + _OUTDATED_MAX:
            self._heap = [(at, owner) for owner, at in self._at.items()]
            heapify(self._heap)

    def first(self) -> Instant:
        """The earliest of all times; NEVER if no owner has a time."""
        heap = self._heap
        while heap and self._at.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else NEVER

    def due(self, now: Instant) -> list[int]:
        """The owners whose time has come. They have no time then, until it is set again."""
        found: list[int] = []
        while self.first() <= now:
            _, owner = heappop(self._heap)
            del self._at[owner]
            found.append(owner)
        return found

    def forget(self, owner: int) -> None:
        self._at.pop(owner, None)
