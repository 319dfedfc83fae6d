"""How far an outbox has been emptied, while some of its destinations have no room.

Messages that were sent through an entity lie in one outbox, for all destinations. Messages for a
full destination stay, and the others pass them. The outbox remembers the messages it has passed, so
that no search goes over them again.
"""

from collections.abc import Collection, Sequence

from postbus.broker.destination import NOWHERE
from postbus.broker.message import Message


class Lag:
    """The messages for one destination that others have passed."""

    __slots__ = ("full", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        """No message for the destination has a lower number."""
        self.full = True
        """It had no room at the last attempt, so the next attempt sends a single message."""


class Outbox:
    """Where the next messages to leave an outbox are.

    None of this lasts: after a restart the search begins at the start of the outbox.
    """

    __slots__ = ("_others_next", "lags", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        """All messages with lower numbers are for destinations that lag behind."""
        self.lags: dict[int, Lag] = {}
        """By destination, in the order of their turns."""
        self._others_next = False

    def whose_turn(self, passed_over: Collection[int]) -> int | None:
        """The destination that is to catch up now; None for all that do not lag behind."""
        if self._others_next:
            return None
        return next((each for each in self.lags if each not in passed_over), None)

    def leaving(
        self, turn: int | None, messages: Sequence[Message], passed_over: Collection[int]
    ) -> list[Message]:
        """The messages of a page that may leave, all for the destination of the first of them."""
        if turn is not None:
            found = [each for each in messages if destination_of(each) == turn]
            return found[:1] if self.lags[turn].full else found
        for first in messages:
            destination = destination_of(first)
            if destination not in self.lags and destination not in passed_over:
                return [each for each in messages if destination_of(each) == destination]
        return []

    def looked_at(
        self, turn: int | None, messages: Sequence[Message], end: int | None, first: Message | None
    ) -> None:
        """A page was searched, up to the first message that is to leave, if there is one."""
        if first is not None:
            reached = first.number
        elif end is not None:
            reached = end + 1
        else:
            # Every later message has a higher number.
            reached = messages[-1].number + 1 if messages else self.start
        self._others_next = turn is not None
        if turn is None:
            self._passed(messages, reached)
            return
        lag = self.lags.pop(turn)
        if reached < self.start and (first is not None or end is not None):
            lag.number = reached
            self.lags[turn] = lag

    def _passed(self, messages: Sequence[Message], reached: int) -> None:
        for message in messages:
            destination = destination_of(message)
            if message.number < reached and destination not in self.lags:
                self.lags[destination] = Lag(message.number)
        self.start = max(self.start, reached)

    def held_up(self, destination: int, number: int) -> None:
        """The destination has no room for this message, and has all before it."""
        self.lags[destination] = Lag(number)

    def has_room(self, destination: int) -> None:
        """The destination has taken the messages it was sent."""
        lag = self.lags.get(destination)
        if lag is not None:
            lag.full = False


def destination_of(message: Message) -> int:
    return NOWHERE if message.trail is None else message.trail.destination
