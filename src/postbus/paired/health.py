"""The health of the entities that a paired client sends to: a machine without I/O.

Each path is in one of four states. Time is an argument, in seconds of any clock that never goes
back. `TRANSITIONS` has every state with every event; nothing else changes a state.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple


class PathState(Enum):
    """What is thought of an entity of the primary namespace."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    """A send has failed, and none has succeeded since. Sends still go to the primary."""
    FAILED_OVER = "failed over"
    """Sends go to a backlog queue. Pings ask for the entity."""
    BROKEN = "broken"
    """A ping was refused for good: sends are refused with its error, and pings go on."""


class PathEvent(Enum):
    SENT = "sent"
    """The primary accepted a message."""
    FAILED = "failed"
    """A send failed in a way that counts."""
    INTERVAL_ENDED = "interval ended"
    """The failover interval is over, and no send has succeeded in it."""
    PINGED = "pinged"
    PING_FAILED = "ping failed"
    PING_REFUSED = "ping refused"
    """The entity does not exist, or the key does not open it."""
    MARKED_HEALTHY = "marked healthy"
    """The application ends a failover by hand."""


_HEALTHY, _SUSPECT = PathState.HEALTHY, PathState.SUSPECT
_FAILED_OVER, _BROKEN = PathState.FAILED_OVER, PathState.BROKEN

# A late answer of the primary does not end a failover: only a ping or the application does. An
# answer to a ping of an earlier failover is as good as any.
TRANSITIONS: Final[dict[PathEvent, dict[PathState, PathState]]] = {
    PathEvent.SENT: {
        _HEALTHY: _HEALTHY,
        _SUSPECT: _HEALTHY,
        _FAILED_OVER: _FAILED_OVER,
        _BROKEN: _BROKEN,
    },
    PathEvent.FAILED: {
        _HEALTHY: _SUSPECT,
        _SUSPECT: _SUSPECT,
        _FAILED_OVER: _FAILED_OVER,
        _BROKEN: _BROKEN,
    },
    PathEvent.INTERVAL_ENDED: {
        _HEALTHY: _HEALTHY,
        _SUSPECT: _FAILED_OVER,
        _FAILED_OVER: _FAILED_OVER,
        _BROKEN: _BROKEN,
    },
    PathEvent.PINGED: {
        _HEALTHY: _HEALTHY,
        _SUSPECT: _HEALTHY,
        _FAILED_OVER: _HEALTHY,
        _BROKEN: _HEALTHY,
    },
    PathEvent.PING_FAILED: {
        _HEALTHY: _HEALTHY,
        _SUSPECT: _SUSPECT,
        _FAILED_OVER: _FAILED_OVER,
        _BROKEN: _BROKEN,
    },
    PathEvent.PING_REFUSED: {
        _HEALTHY: _HEALTHY,
        _SUSPECT: _SUSPECT,
        _FAILED_OVER: _BROKEN,
        _BROKEN: _BROKEN,
    },
    PathEvent.MARKED_HEALTHY: {
        _HEALTHY: _HEALTHY,
        _SUSPECT: _HEALTHY,
        _FAILED_OVER: _HEALTHY,
        _BROKEN: _HEALTHY,
    },
}
_ANSWERS: Final = {PathEvent.PINGED, PathEvent.PING_FAILED, PathEvent.PING_REFUSED}
PINGED_STATES: Final = {_FAILED_OVER, _BROKEN}


class Transition(NamedTuple):
    """A path has another state."""

    path: str
    former: PathState
    state: PathState
    at: float
    error: BaseException | None


class PathHealth:
    """The health of one entity."""

    __slots__ = (
        "_changed",
        "_due",
        "_failover_s",
        "_ping_s",
        "diverted",
        "diverted_at",
        "error",
        "failovers",
        "path",
        "pinging",
        "pings",
        "since",
        "state",
    )

    def __init__(
        self,
        path: str,
        failover_s: float,
        ping_s: float,
        now: float,
        changed: Callable[[Transition], None],
    ) -> None:
        self.path = path
        self._failover_s = failover_s
        self._ping_s = ping_s
        self._changed = changed
        self._due: float | None = None
        """The end of the failover interval, or the time of the next ping."""
        self.state = _HEALTHY
        self.since = now
        self.error: BaseException | None = None
        """The failure behind the state, the first one or the refusal of the last ping."""
        self.failovers = 0
        self.pinging = False
        self.pings = 0
        self.diverted = 0
        """Messages that went to a backlog queue instead."""
        self.diverted_at: float | None = None

    @property
    def due(self) -> float | None:
        """When `advance` or `claim_ping` has something to do; None while nothing is due."""
        return None if self.pinging and self.state in PINGED_STATES else self._due

    def handle(self, event: PathEvent, now: float, error: BaseException | None = None) -> None:
        former = self.state
        state = TRANSITIONS[event][former]
        if event in _ANSWERS:
            self.pinging = False
            if state in PINGED_STATES:
                self._due = now + self._ping_s
        if event is PathEvent.PING_REFUSED and state is _BROKEN:
            self.error = error
        if state is former:
            return
        self.state, self.since = state, now
        if state is _HEALTHY:
            self._due, self.error = None, None
        elif state is _SUSPECT:
            self._due, self.error = now + self._failover_s, error
        else:
            self._due = now + self._ping_s
            self.failovers += state is _FAILED_OVER
        self._changed(Transition(self.path, former, state, now, self.error))

    def advance(self, now: float) -> PathState:
        """The state at this time: the failover interval may be over."""
        if self.state is _SUSPECT and self._due is not None and self._due <= now:
            self.handle(PathEvent.INTERVAL_ENDED, now)
        return self.state

    def claim_ping(self, now: float) -> bool:
        """Is a ping due? If so, it is under way from now on: there is one at a time."""
        if self.state not in PINGED_STATES or self.due is None or self.due > now:
            return False
        self.pinging = True
        self.pings += 1
        return True


class Health:
    """The paths of one client; their names are compared without case."""

    def __init__(
        self, failover_s: float, ping_s: float, changed: Callable[[Transition], None]
    ) -> None:
        self._failover_s = failover_s
        self._ping_s = ping_s
        self._changed = changed
        self.paths: dict[str, PathHealth] = {}

    def path(self, name: str, now: float) -> PathHealth:
        found = self.paths.get(name.lower())
        if found is None:
            found = PathHealth(name, self._failover_s, self._ping_s, now, self._changed)
            self.paths[name.lower()] = found
        return found

    def due_pings(self, now: float) -> list[PathHealth]:
        """End the intervals that are over, and claim the pings that are due."""
        for path in self.paths.values():
            path.advance(now)
        return [path for path in self.paths.values() if path.claim_ping(now)]

    def wake_at(self) -> float | None:
        """When `due_pings` has something to do next."""
        times = [path.due for path in self.paths.values() if path.due is not None]
        return min(times, default=None)
