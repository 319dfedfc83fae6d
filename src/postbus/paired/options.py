"""How a paired client behaves: its options with their bounds (R-PAIR-01)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from postbus.client.backlog_names import is_name

FAILOVER_MAX_S: Final = 3_600.0
PING_MIN_S: Final = 1.0
PING_MAX_S: Final = 1_800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAvailability:
    """Options of a paired client. Times are in seconds."""

    backlog_queue_count: int = 10
    """Backlog queues in the secondary namespace, at least 1."""
    failover_interval: float = 60.0
    """From the first failure of an entity to its failover, if no send succeeds; 0 to 3,600."""
    ping_primary_interval: float = 60.0
    """Between pings of an entity that has failed over; 1 to 1,800. A backlog queue that failed
    rests as long."""
    enable_syphon: bool = False
    """Whether this process moves messages from the backlog queues back to the primary."""
    primary_name: str | None = None
    """The first part of the names of the backlog queues. By default it is the first label of the
    primary's host name; `localhost` and addresses have none."""
    send_timeout: float = 60.0
    """The longest that a send takes, where the call gives no timeout of its own."""
    count_server_busy: bool = False
    """Whether an answer that the server is busy counts as a failure."""

    def __post_init__(self) -> None:
        count = self.backlog_queue_count
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError("backlog_queue_count must be a whole number of at least 1")
        if not 0 <= self.failover_interval <= FAILOVER_MAX_S:
            raise ValueError(f"failover_interval must be from 0 to {FAILOVER_MAX_S:.0f} seconds")
        if not PING_MIN_S <= self.ping_primary_interval <= PING_MAX_S:
            raise ValueError(
                f"ping_primary_interval must be from {PING_MIN_S:.0f} to {PING_MAX_S:.0f} seconds"
            )
        if not self.send_timeout > 0:
            raise ValueError("send_timeout must be greater than 0")
        if self.primary_name is not None and not is_name(self.primary_name):
            raise ValueError(f"primary_name is no part of a queue's name: {self.primary_name!r}")
