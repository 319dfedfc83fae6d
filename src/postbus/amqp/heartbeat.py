"""When to show that we live, and when to believe that the peer does not (AMQP 2.4.5)."""


class Heartbeat:
    """The idle time-outs of one connection, in both directions."""

    __slots__ = ("_interval_ms", "_silence_max_ms", "heard_at", "sent_at")

    def __init__(self, idle_timeout_ms: int, now: int) -> None:
        self.heard_at = now
        self.sent_at = now
        # The peer was asked to write within the time-out; it is given as much again.
        self._silence_max_ms = 2 * idle_timeout_ms
        self._interval_ms = 0

    def promise(self, peer_idle_timeout_ms: int | None) -> None:
        """Write at least every half of what the peer asks for; nothing if it does not ask."""
        self._interval_ms = -(-(peer_idle_timeout_ms or 0) // 2)

    def is_due(self, now: int) -> bool:
        """Whether we have been silent for as long as we may."""
        return self._interval_ms > 0 and now - self.sent_at >= self._interval_ms

    def is_peer_silent(self, now: int) -> bool:
        """Whether the peer has been silent for longer than it may."""
        return self._silence_max_ms > 0 and now - self.heard_at >= self._silence_max_ms

    def deadlines(self) -> list[int]:
        """When is_due() and is_peer_silent() come true if nothing happens."""
        found = []
        if self._interval_ms > 0:
            found.append(self.sent_at + self._interval_ms)
        if self._silence_max_ms > 0:
            found.append(self.heard_at + self._silence_max_ms)
        return found
