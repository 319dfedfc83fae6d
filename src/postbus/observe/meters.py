"""Plain integers that the hot path counts in.

A Prometheus counter costs a lock and a method call for each message; a field costs an addition. A
scrape reads the fields (`postbus.observe.metrics`), and its declarations explain each.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from postbus.observe.turns import TurnMeter

# Reasons that the broker itself gives (R-DLQ-05). An application may write any text as a reason;
# with such labels, a client could make series without end.
BROKER_REASONS: Final = frozenset(
    {
        "HeaderSizeExceeded",
        "TTLExpiredException",
        "Session ID is null",
        "MaxTransferHopCountExceeded",
        "MaxDeliveryCountExceeded",
    }
)
APPLICATION_REASON: Final = "application"

SECONDS_BOUNDS: Final[tuple[float, ...]] = (
    0.0005,
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    5.0,
)
COUNT_BOUNDS: Final[tuple[float, ...]] = (
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    50.0,
    100.0,
    200.0,
    500.0,
    1_000.0,
    5_000.0,
)


class EntityMeter:
    """The counts of one entity since the process started. Add to the fields directly."""

    __slots__ = (
        "abandons",
        "arrivals",
        "bytes_in",
        "bytes_out",
        "cancellations",
        "completions",
        "copies",
        "dead_letters",
        "deferrals",
        "deletions",
        "duplicates",
        "empty_receives",
        "expirations",
        "feed_bytes",
        "feed_reads",
        "forwards",
        "lock_losses",
        "lock_renewals",
        "peeks",
        "pings",
        "receives",
        "refusals",
        "requests",
        "resubmissions",
        "schedules",
        "sends",
        "session_accepts",
        "session_timeouts",
        "transactions_committed",
        "transactions_rolled_back",
    )

    def __init__(self) -> None:
        self.sends = 0
        self.receives = 0
        self.empty_receives = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.pings = 0
        self.requests = 0
        self.resubmissions = 0
        self.schedules = 0
        self.cancellations = 0
        self.peeks = 0
        self.completions = 0
        self.abandons = 0
        self.deferrals = 0
        self.deletions = 0
        self.duplicates = 0
        self.expirations = 0
        self.lock_losses = 0
        self.lock_renewals = 0
        self.copies = 0
        self.arrivals = 0
        self.forwards = 0
        self.feed_reads = 0
        self.feed_bytes = 0
        self.session_accepts = 0
        self.session_timeouts = 0
        self.transactions_committed = 0
        self.transactions_rolled_back = 0
        self.dead_letters: dict[str, int] = {}
        self.refusals: dict[str, int] = {}

    def dead_lettered(self, reason: str | None) -> None:
        label = reason if reason in BROKER_REASONS else APPLICATION_REASON
        self.dead_letters[label] = self.dead_letters.get(label, 0) + 1

    def refused(self, condition: str) -> None:
        """`condition` is one from postbus.errors, so there are few."""
        self.refusals[condition] = self.refusals.get(condition, 0) + 1


class HistogramMeter:
    """Counts of values by upper bound, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class StoreMeter:
    """Commits of one store."""

    __slots__ = (
        "bytes_written",
        "commit_records",
        "commit_seconds",
        "failures",
        "has_room",
        "turns",
    )

    def __init__(self, turns: TurnMeter | None = None) -> None:
        self.turns = turns or TurnMeter()
        self.commit_seconds = HistogramMeter(SECONDS_BOUNDS)
        self.commit_records = HistogramMeter(COUNT_BOUNDS)
        self.bytes_written = 0
        self.failures = 0
        self.has_room = True

    def committed(self, seconds: float, records: int, size: int) -> None:
        """Count a finished commit: its time and its contents."""
        self.commit_seconds.observe(seconds)
        self.commit_records.observe(records)
        self.bytes_written += size


class BudgetMeter:
    """Bytes of one kind that the broker holds for all connections together."""

    __slots__ = ("closings", "max_bytes", "name", "used_bytes")

    def __init__(self, name: str, max_bytes: int) -> None:
        self.name = name
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self.closings = 0


class ConnectionMeter:
    """The connections of the process, by protocol and by carrier."""

    __slots__ = (
        "accepted",
        "budgets",
        "carried",
        "certificate_until",
        "http_requests",
        "open",
        "refused",
    )

    def __init__(self) -> None:
        self.budgets: Sequence[BudgetMeter] = ()
        self.open = {"amqp": 0, "http": 0, "undecided": 0}
        self.accepted = {"amqp": 0, "http": 0}
        self.carried = {"tcp": 0, "tls": 0, "websocket": 0, "websocket_tls": 0}
        self.certificate_until: int | None = None
        """In seconds since the Unix epoch; None without TLS."""
        self.refused: dict[str, int] = {}
        self.http_requests = 0

    @property
    def open_count(self) -> int:
        return sum(self.open.values())

    def turned_away(self, reason: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1
