"""Memory that peers make the broker keep, over all connections.

Every buffer of a connection has a bound of its own, but thousands of full buffers were a gigabyte.
So each kind of memory that the broker keeps for peers has a budget for the whole process. Past the
budget, the broker first closes the connections that have kept the most for the longest.
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
"""An account is not worth keeping for fewer bytes than this."""
_FREED_PART: Final = 8
"""Relief frees this part of a budget, so that relief is seldom needed."""


class Account:
    """The bytes of one connection in one budget. The place refers to its account, never the
    reverse."""

    __slots__ = ("_budget", "since", "size")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.size = 0
        self.since: Instant = 0
        """When the account was last empty."""

    def hold(self, place: Place, size: int) -> None:
        """Set the size of the account. The budget may close the caller's connection before this
        returns."""
        if size != self.size:
            self._budget.move(place, self, size)


class Budget:
    """The bytes of one kind that all connections together may hold."""

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
        # Nothing tells the broker when a peer reads its data, so every account is measured again.
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
