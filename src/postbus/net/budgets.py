"""Memory that peers make the broker keep, over all connections.

Every buffer of a connection has a bound of its own; thousands of connections that fill theirs were
a gigabyte. So each kind of thing that is kept for a peer has a budget for the whole process, and
past it those are given up first who have kept the most for the longest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from postbus.errors import ServerBusy
from postbus.model.times import Instant
from postbus.observe.meters import BudgetMeter

if TYPE_CHECKING:
    from postbus.net.places import Place

HELD_MIN: Final = 4_096
"""Less than that on a connection is not worth an account."""
_FREED_PART: Final = 8
"""This part of a budget is free when it has been relieved, so that it seldom is."""


class Account:
    """What one connection has of one budget. It does not refer to its place, which refers to it."""

    __slots__ = ("_budget", "since", "size")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.size = 0
        self.since: Instant = 0
        """When it was last empty."""

    def hold(self, place: Place, size: int) -> None:
        """It is this much now. Whoever calls may be given up before this returns."""
        if size != self.size:
            self._budget.move(place, self, size)


class Budget:
    """Bytes of one kind that all connections together may have."""

    def __init__(self, meter: BudgetMeter, what: str, clock: Callable[[], Instant]) -> None:
        self.meter = meter
        self._what = what
        self._clock = clock
        self._accounts: dict[Place, Account] = {}
        self._relieving = False

    def move(self, place: Place, account: Account, size: int) -> None:
        meter = self.meter
        meter.used_bytes += size - account.size
        if not account.size:
            account.since = self._clock()
            self._accounts[place] = account
        elif not size:
            del self._accounts[place]
        account.size = size
        if meter.used_bytes > meter.max_bytes and not self._relieving:
            self._relieving = True
            try:
                self._relieve()
            finally:
                self._relieving = False

    def _relieve(self) -> None:
        # A peer takes what was written without anybody being told, so all are looked at again.
        for place in list(self._accounts):
            place.weigh()
        meter = self.meter
        enough = meter.max_bytes - meter.max_bytes // _FREED_PART
        if meter.used_bytes <= enough:
            return
        now = self._clock()
        by_weight = sorted(
            self._accounts.items(), key=lambda each: each[1].size * (now - each[1].since + 1)
        )
        while by_weight and meter.used_bytes > enough:
            place, account = by_weight.pop()
            meter.closings += 1
            error = ServerBusy(
                f"The connection held {account.size} bytes of {self._what}, and all connections "
                f"together may hold {meter.max_bytes}."
            )
            place.give_up(error, f"memory_{meter.name}")


class Bounds(NamedTuple):
    strangers_max_bytes: int
    unfinished_max_bytes: int
    replies_max_bytes: int


class Budgets:
    """The budgets of the process."""

    def __init__(self, bounds: Bounds, clock: Callable[[], Instant]) -> None:
        strangers = BudgetMeter("strangers", bounds.strangers_max_bytes)
        unfinished = BudgetMeter("unfinished", bounds.unfinished_max_bytes)
        replies = BudgetMeter("replies", bounds.replies_max_bytes)
        self.meters = (strangers, unfinished, replies)
        self.strangers = Budget(strangers, "memory without having logged in", clock)
        self.unfinished = Budget(unfinished, "messages and frames that are not whole", clock)
        self.replies = Budget(replies, "answers and messages that it does not take", clock)
