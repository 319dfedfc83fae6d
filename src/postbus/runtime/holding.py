"""Sends that wait for what one of them has to read: none overtakes another.

While a send looks up ids that may be duplicates, those behind it to the same entity are held back,
or a sender's messages would be stored in another order than they were sent in. What they will have
to look up is read with it, so that a turn full of possible duplicates costs one read.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Final

from postbus.broker.engine import Engine
from postbus.broker.pages import Need, Page, SeenPage
from postbus.errors import ServiceBusError, StoreUnavailable
from postbus.model.times import Instant
from postbus.runtime.requests import Request

if TYPE_CHECKING:
    from postbus.runtime.fragment import LoadedFragment

FORESEEN_MAX: Final = 4_096
"""Ids in one read, or few more."""


class Ordered(Request):
    """A request that keeps its place among others of its kind."""

    __slots__ = ()

    @abstractmethod
    def foresee(self, engine: Engine, now: Instant) -> Need | None:
        """What it would have to read, if it were decided now."""


class Held:
    """One send that reads, and those behind it."""

    __slots__ = ("_behind", "_engine", "_foreseen", "_needs", "_wanted", "first")

    def __init__(self, first: Request, need: Need, engine: Engine) -> None:
        self.first = first
        self._engine = engine
        self._needs: list[Need] | None = [need]
        """None when it is being read: whoever comes then reads later."""
        self._wanted = 0
        self._behind: list[Request] = []
        self._foreseen: list[Request] = []
        """Those behind it that what is read is for, too."""

    def takes(self, request: Request, engine: Engine, now: Instant) -> bool:
        """Does this one have to wait, too?"""
        if not isinstance(request, Ordered):
            return False
        if self._needs is not None and self._wanted < FORESEEN_MAX:
            need = request.foresee(engine, now)
            if need is not None:
                self._needs.append(need)
                self._foreseen.append(request)
                self._wanted += sum([len(page.digests) for page in _seen_pages(need)])
        self._behind.append(request)
        return True

    def begin(self) -> Need:
        """What to read, for all that wait by now."""
        needs, self._needs = self._needs, None
        assert needs is not None
        wanted: dict[tuple[int, ...], dict[bytes, None]] = {}
        others: list[Page] = []
        for need in needs:
            others += [page for page in need.pages if not isinstance(page, SeenPage)]
            for page in _seen_pages(need):
                wanted.setdefault(page.parts, {}).update(dict.fromkeys(page.digests))
        seen = [SeenPage(parts, tuple(digests)) for parts, digests in wanted.items()]
        return Need((*others, *seen))

    def release(self) -> list[Request]:
        """It was read: all of them, in order. Only those that it was read for have it: if all had,
        the next that reads would read into the same pages, and so on as long as sends come in."""
        for request in self._foreseen:
            request.pages = self.first.pages
        return [self.first, *self._behind]

    def refusal(self, fragment: LoadedFragment) -> ServiceBusError | None:
        """Those that came after the engine was thrown away may be ahead of these already."""
        if fragment.engine is self._engine or fragment.gone is not None:
            return None
        return StoreUnavailable(f"The messaging entity '{fragment.name}' was loaded anew.")


def _seen_pages(need: Need) -> list[SeenPage]:
    return [page for page in need.pages if isinstance(page, SeenPage)]
