"""Idle time-outs: when to send a heartbeat, and when to give up on the peer (AMQP 2.4.5)."""


class Heartbeat:
    """The idle time-outs of one connection, in both directions."""

    __slots__ = ("_interval_ms", "_silence_max_ms", "heard_at", "sent_at")

    def __init__(self, idle_timeout_ms: int, now: int) -> None:
        self.heard_at = now
        self.sent_at = now
        # The peer was asked to write within the time-out. It gets twice as long.
        self._silence_max_ms = 2 * idle_timeout_ms
        self._interval_ms = 0

    def promise(self, peer_idle_timeout_ms: int | None) -> None:
        """Write at least twice in each idle time-out of the peer; never if it has none."""
        self._interval_ms = -(-(peer_idle_timeout_ms or 0) // 2)

    def is_due(self, now: int) -> bool:
        """Whether a heartbeat is due."""
        return self._interval_ms > 0 and now - self.sent_at >= self._interval_ms

    def is_peer_silent(self, now: int) -> bool:
        """Whether the peer has been silent for too long."""
        return self._silence_max_ms > 0 and now - self.heard_at >= self._silence_max_ms

    def deadlines(self) -> list[int]:
        """Return when is_due() and is_peer_silent() become true if nothing happens."""
        found = []
        if self._interval_ms > 0:
            found.append(self.sent_at + self._interval_ms)
        if self._silence_max_ms > 0:
            found.append(self.heard_at + self._silence_max_ms)
        return found
