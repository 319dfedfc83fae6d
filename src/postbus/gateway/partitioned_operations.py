"""Operations that a request over several fragments needs besides the usual ones."""

from __future__ import annotations

from contextlib import suppress

from postbus.broker import browse
from postbus.broker.engine import Engine
from postbus.broker.index_pages import Need, Pages
from postbus.errors import MessageLockLost
from postbus.model.times import Instant


class CheckScheduled:
    """Look whether messages are scheduled, before messages of several fragments are cancelled."""

    __slots__ = ("numbers", "subqueue")

    def __init__(self, subqueue: int, numbers: list[int]) -> None:
        self.subqueue = subqueue
        self.numbers = numbers

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> Need | None:
        found = browse.find_scheduled(engine.at(self.subqueue), self.numbers, pages)
        return found if isinstance(found, Need) else None


class Release:
    """Give locked messages back, as they were before. A lock that is gone is no matter."""

    __slots__ = ("subqueue", "tokens")

    def __init__(self, subqueue: int, tokens: list[bytes]) -> None:
        self.subqueue = subqueue
        self.tokens = tokens

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> None:
        queue = engine.at(self.subqueue)
        for token in self.tokens:
            with suppress(MessageLockLost):
                queue.release(token, now)
