"""Requests to a fragment: the base of all of them, and those that any room may make."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from postbus.broker.engine import Engine
from postbus.broker.index_pages import Need, Pages
from postbus.broker.subqueue_numbers import owner_of
from postbus.errors import ServiceBusError
from postbus.model.times import Instant
from postbus.runtime.receivers import OutgoingMessage

if TYPE_CHECKING:
    from postbus.runtime.loaded_fragment import LoadedFragment

T_co = TypeVar("T_co", covariant=True)


class Request:
    """Something asked of one fragment. It is answered after the commit that it depends on."""

    __slots__ = ("exclusive", "fragment", "grows", "pages", "size")

    def __init__(
        self,
        fragment: LoadedFragment,
        size: int = 0,
        pages: Pages | None = None,
        exclusive: bool = False,
        grows: bool = False,
    ) -> None:
        self.fragment = fragment
        self.size = size
        """Bytes that it keeps in memory while it waits."""
        self.pages = pages
        """What was read for it; None where it can do without."""
        self.exclusive = exclusive
        """Its answer is put into words after the commit, from messages as they are then. So
        nothing more may be decided before that commit is back."""
        self.grows = grows
        """It brings messages. A full disk refuses such requests, and serves all others."""

    @abstractmethod
    def decide(self, engine: Engine, now: Instant) -> Need | None:
        """Do it. Raises ServiceBusError to refuse. A request that returns Need has changed
        nothing, and is called again when the pages were read."""

    def answer(self) -> None:
        """It is done, durably. By default nobody waits to hear of it."""

    def refuse(self, error: ServiceBusError) -> None:
        """It is not done. By default nobody waits to hear of it."""


class Chore(Request):
    """Work that came up by itself. A fragment has at most one chore of a name under way."""

    __slots__ = ("_call", "_name")

    def __init__(
        self,
        fragment: LoadedFragment,
        name: str,
        call: Callable[[Engine, Instant, Pages], Need | None],
    ) -> None:
        super().__init__(fragment, pages=Pages())
        self._name = name
        self._call = call

    def decide(self, engine: Engine, now: Instant) -> Need | None:
        assert self.pages is not None
        need = self._call(engine, now, self.pages)
        if need is None:
            # Within the turn, so that what is left to do is found before the turn is over.
            self.fragment.chores.discard(self._name)
        return need

    def refuse(self, error: ServiceBusError) -> None:
        self.fragment.chores.discard(self._name)
        self.fragment.wake_all()  # receivers that wait for it have no other reason to be served


class Lose(Request):
    """A connection broke: its locks end as if they had run out (R-SETTLE-10).

    A refusal changes nothing: it means that the engine is gone, and every lock with it.
    """

    __slots__ = ("_tokens",)

    def __init__(self, fragment: LoadedFragment, tokens: list[tuple[int, bytes]]) -> None:
        super().__init__(fragment)
        self._tokens = tokens

    def decide(self, engine: Engine, now: Instant) -> Need | None:
        for subqueue, token in self._tokens:
            queue = engine.queues.get(owner_of(subqueue))
            if queue is not None:
                queue.lose(token, now)
        return None


class GiveBack(Request):
    """A message was taken for a link that is gone by now: no client has seen it.

    A refusal changes nothing: it means that the lock is gone already.
    """

    __slots__ = ("_outgoing",)

    def __init__(self, fragment: LoadedFragment, outgoing: OutgoingMessage) -> None:
        super().__init__(fragment, len(outgoing.raw))
        self._outgoing = outgoing

    def decide(self, engine: Engine, now: Instant) -> Need | None:
        outgoing = self._outgoing
        queue = engine.at(outgoing.message.subqueue)
        if outgoing.token is None:
            queue.put_back(outgoing.message, outgoing.raw)
        else:
            queue.release(outgoing.token, now)
        return None


class Operation(Protocol[T_co]):
    """What is asked of a fragment, as plain data: no callback and no link is part of it."""

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> T_co | Need:
        """Do it. Returns the result, or what must be read before; raises ServiceBusError."""


class Call(Request):
    """An operation with an answer: its result, or its refusal."""

    __slots__ = ("_done", "_failed", "_operation", "_result")

    def __init__(
        self,
        fragment: LoadedFragment,
        operation: Operation[Any],
        done: Callable[[Any], None],
        failed: Callable[[ServiceBusError], None],
        size: int = 0,
        exclusive: bool = True,
        grows: bool = False,
    ) -> None:
        super().__init__(fragment, size, Pages(), exclusive, grows)
        self._operation = operation
        self._done = done
        self._failed = failed
        self._result: Any = None

    def decide(self, engine: Engine, now: Instant) -> Need | None:
        assert self.pages is not None
        result = self._operation.decide(engine, now, self.pages)
        if isinstance(result, Need):
            return result
        self._result = result
        return None

    def answer(self) -> None:
        self._done(self._result)

    def refuse(self, error: ServiceBusError) -> None:
        self._failed(error)
