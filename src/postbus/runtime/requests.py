"""What anybody may ask of a fragment: calls with an answer, and to be rid of locks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from postbus.broker.engine import Engine
from postbus.broker.pages import Need, Pages
from postbus.broker.subqueue import owner_of
from postbus.errors import ServiceBusError
from postbus.model.times import Instant
from postbus.runtime.fragment import LoadedFragment
from postbus.runtime.receivers import OutgoingMessage


class Lose:
    """A connection broke: its locks end as if they had run out (R-SETTLE-10)."""

    __slots__ = ("_tokens", "exclusive", "fragment", "pages", "size")

    grows: Final = False

    def __init__(self, fragment: LoadedFragment, tokens: list[tuple[int, bytes]]) -> None:
        self.fragment = fragment
        self.size = 0
        self.pages: Pages | None = None
        self.exclusive = False
        self._tokens = tokens

    def decide(self, engine: Engine, now: Instant) -> Need | None:
        for subqueue, token in self._tokens:
            queue = engine.queues.get(owner_of(subqueue))
            if queue is not None:
                queue.lose(token, now)
        return None

    def answer(self) -> None:
        pass

    def refuse(self, error: ServiceBusError) -> None:
        pass  # the engine is gone, and every lock with it


class GiveBack:
    """A message was taken for a link that is gone by now: nobody has seen it."""

    __slots__ = ("_outgoing", "exclusive", "fragment", "pages", "size")

    grows: Final = False

    def __init__(self, fragment: LoadedFragment, outgoing: OutgoingMessage) -> None:
        self.fragment = fragment
        self.size = len(outgoing.raw)
        self.pages: Pages | None = None
        self.exclusive = False
        self._outgoing = outgoing

    def decide(self, engine: Engine, now: Instant) -> Need | None:
        outgoing = self._outgoing
        queue = engine.at(outgoing.message.subqueue)
        if outgoing.token is None:
            queue.put_back(outgoing.message, outgoing.raw)
        else:
            queue.release(outgoing.token, now)
        return None

    def answer(self) -> None:
        pass

    def refuse(self, error: ServiceBusError) -> None:
        pass  # the lock is gone already


class Call:
    """A call with an answer: the result of `decide`, unless that is Need."""

    __slots__ = (
        "_call",
        "_done",
        "_failed",
        "_result",
        "exclusive",
        "fragment",
        "grows",
        "pages",
        "size",
    )

    def __init__(
        self,
        fragment: LoadedFragment,
        call: Callable[[Engine, Instant, Pages], Any],
        done: Callable[[Any], None],
        failed: Callable[[ServiceBusError], None],
        size: int = 0,
        exclusive: bool = True,
        grows: bool = False,
    ) -> None:
        self.fragment = fragment
        self.size = size
        self.exclusive = exclusive
        self.grows = grows
        self.pages: Pages | None = Pages()
        self._call = call
        self._done = done
        self._failed = failed
        self._result: Any = None

    def decide(self, engine: Engine, now: Instant) -> Need | None:
        assert self.pages is not None
        result = self._call(engine, now, self.pages)
        if isinstance(result, Need):
            return result
        self._result = result
        return None

    def answer(self) -> None:
        self._done(self._result)

    def refuse(self, error: ServiceBusError) -> None:
        self._failed(error)
