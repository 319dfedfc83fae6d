"""What a peer has said that was not listened to yet, because a turn has no time for all of it.

Whatever comes meanwhile comes behind it, the end of the connection last: a peer's words keep their
order, however long one of them takes.
"""

from collections import deque
from typing import Protocol

from postbus.amqp.events import Event
from postbus.runtime.sliced_work import Step


class InputHandler(Protocol):
    """The server's end of a connection, which can do both for a turn's time."""

    @property
    def unheard(self) -> bool:
        """Are there bytes left of those that it was to listen to?"""

    def listen(self, data: bytes) -> None:
        """Listen to what is left, and to these bytes behind it."""

    def handle(self, events: list[Event]) -> None: ...


class InputQueue:
    """Empty for most of the time: a turn is long enough for what peers usually say."""

    __slots__ = ("_enrolled", "data", "ended", "events", "waiting", "work")

    def __init__(self) -> None:
        self.work: Step | None = None
        """The batch or request that is being read: all else came behind it."""
        self.events: deque[Event] = deque()
        self.data: deque[bytes] = deque()
        self.waiting = False
        """There is something, and what comes now has to wait."""
        self.ended = False
        """The connection is lost."""
        self._enrolled = False

    def begin(self) -> bool:
        """Have things wait; says whether somebody must be told to go on with them."""
        self.waiting = True
        first, self._enrolled = not self._enrolled, True
        return first

    def go_on(self, ear: InputHandler) -> bool:
        """Do the next piece; says whether there are more."""
        if self.work is not None:
            if not self.work():
                self.work = None
        else:
            self.waiting = False
            if self.events:
                events = list(self.events)
                self.events.clear()
                ear.handle(events)
            else:
                ear.listen(self.data.popleft() if self.data else b"")
        said = self.work is not None or bool(self.events) or bool(self.data)
        self.waiting = said or ear.unheard
        self._enrolled = self.waiting
        return self.waiting
