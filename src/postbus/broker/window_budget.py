"""The memory of all windows and deltas together: one budget of bytes for the whole broker.

A window may always hold a small minimum. Beyond that it takes free room. If there is none, windows
without a receiver give theirs back first, down to their minimum. A window with less than its share
then gets room from the largest window. So a busy subqueue cannot starve another.

Three quarters are for windows, one for deltas. Time plays no part: a window is idle if others were
received from many times, and it was not.
"""

from abc import abstractmethod
from typing import Final

MESSAGE_BYTES: Final = 640
"""Memory of a message without its body: fields, id, and its places in window and delta."""
CHANGE_BYTES: Final = 384
"""Memory of a change in a delta. A removal takes less, a message that is in no window takes more.
"""
IDLE_TAKES: Final = 4_096
"""A window is idle if so many messages were taken from others since one was taken from it."""
DEFAULT_BYTES: Final = 128 << 20


class BudgetHolder:
    """A window, as the budget sees it."""

    __slots__ = ("is_listed", "taken_at")

    def __init__(self) -> None:
        self.taken_at = 0
        """The budget's count of takes when a message was last taken from this window."""
        self.is_listed = False
        """Does it hold more than the minimum?"""

    @property
    @abstractmethod
    def held(self) -> int:
        """Bytes that it holds of the budget."""

    @abstractmethod
    def shrink(self, target: int) -> None:
        """Give back memory beyond `target` bytes, but keep the minimum."""


class WindowBudget:
    """Counts the bytes of all windows, and decides who may hold more."""

    __slots__ = (
        "_changes_max",
        "_listed",
        "body_bytes_min",
        "bytes_max",
        "changes",
        "least",
        "messages_min",
        "takes",
        "used",
    )

    def __init__(
        self,
        bytes_max: int = DEFAULT_BYTES,
        messages_min: int = 64,
        body_bytes_min: int = 64 << 10,
    ) -> None:
        self._changes_max = bytes_max // 4
        self.bytes_max = bytes_max - self._changes_max
        """Bytes for windows."""
        self.messages_min = messages_min
        """Messages that a window may hold in any case, and bytes of their bodies."""
        self.body_bytes_min = body_bytes_min
        self.least = messages_min * MESSAGE_BYTES + body_bytes_min
        self.used = 0
        self.changes = 0
        """Changes in all deltas."""
        self.takes = 0
        """Messages that were taken from windows."""
        self._listed: dict[BudgetHolder, None] = {}
        """Windows that hold more than the minimum."""

    @property
    def is_short_for_changes(self) -> bool:
        """Should deltas be written to the index early?"""
        return self.changes * CHANGE_BYTES > self._changes_max

    def has_room(self, size: int) -> bool:
        """Is so much free, without taking it from a window?"""
        return self.used + size <= self.bytes_max

    def room(self, window: BudgetHolder) -> int:
        """Bytes that a window may hold more: free bytes, or what is missing to its share."""
        return max(self.bytes_max - self.used, self._share(window) - window.held, 0)

    def admits(self, window: BudgetHolder, size: int) -> bool:
        """May a window hold so much more? Other windows may have to give back memory for it."""
        if self.used + size <= self.bytes_max:
            return True
        if size > self.bytes_max:
            return False
        self._take_from_idle(window, size)
        share = self._share(window)
        while self.used + size > self.bytes_max and window.held + size <= share:
            if not self._take_from_largest(window, share):
                break
        return self.used + size <= self.bytes_max

    def grew(self, window: BudgetHolder) -> None:
        """A window holds more than the minimum now."""
        window.is_listed = True
        self._listed[window] = None

    def shrank(self, window: BudgetHolder) -> None:
        """A window holds the minimum or less, or is gone."""
        window.is_listed = False
        self._listed.pop(window, None)

    def _share(self, window: BudgetHolder) -> int:
        """A little less than an equal part, so that each time a good piece becomes free."""
        claims = len(self._listed) if window.is_listed else len(self._listed) + 1
        return self.bytes_max // claims * 7 // 8

    def _take_from_idle(self, window: BudgetHolder, size: int) -> None:
        """Free a good piece at once, because looking for it takes long."""
        goal = self.bytes_max - max(size, self.bytes_max // 16)
        for each in list(self._listed):
            if self.used <= goal:
                return
            if each is not window and each.taken_at + IDLE_TAKES < self.takes:
                each.shrink(0)

    def _take_from_largest(self, window: BudgetHolder, share: int) -> bool:
        others = [each for each in self._listed if each is not window and each.held > share]
        if not others:
            return False
        largest = max(others, key=_held)
        before = self.used
        largest.shrink(share)
        return self.used < before


def _held(window: BudgetHolder) -> int:
    return window.held
