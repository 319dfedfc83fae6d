"""Reads from the store for requests that need pages, and sends that wait behind such a request.

A request that needs pages goes back to the runtime when they are loaded. A send needs pages when it
looks up ids that may be duplicates. Later sends to the same entity are held behind it, because a
sender's messages must be stored in the order in which they were sent. The ids that the held sends
will look up are read with the first, so a turn full of possible duplicates costs one read.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Final

from postbus.broker.engine import Engine
from postbus.broker.index_pages import Need, Page, SeenPage
from postbus.errors import ServiceBusError, StoreUnavailable
from postbus.model.times import Instant
from postbus.runtime.commits import safely
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.loading import Loader
from postbus.runtime.requests import Request

READ_AGAIN_S: Final = 1.0
FORESEEN_MAX: Final = 4_096
"""About how many ids one read looks up."""


class OrderedRequest(Request):
    """A request that no later request of its kind may overtake: a send."""

    __slots__ = ()

    @abstractmethod
    def foresee(self, engine: Engine, now: Instant) -> Need | None:
        """Return the pages that it would need if it were decided now."""


class HeldSends:
    """A send that reads pages, and the sends that wait behind it."""

    __slots__ = ("_behind", "_engine", "_foreseen", "_needs", "_wanted", "first")

    def __init__(self, first: Request, need: Need, engine: Engine) -> None:
        self.first = first
        self._engine = engine
        self._needs: list[Need] | None = [need]
        """The pages to read; None once the read is under way."""
        self._wanted = 0
        self._behind: list[Request] = []
        self._foreseen: list[Request] = []
        """The waiting sends whose pages are read as well."""

    def takes(self, request: Request, engine: Engine, now: Instant) -> bool:
        """Let a send wait behind the first; return False for a request of another kind."""
        if not isinstance(request, OrderedRequest):
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
        """Begin the read: return the pages that the sends need."""
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
        """Return all sends in order, after the read. Only the sends whose pages were read share the
        loaded pages. If all did, the next read would add to the same pages, and so on without end.
        """
        for request in self._foreseen:
            request.pages = self.first.pages
        return [self.first, *self._behind]

    def refusal(self, fragment: LoadedFragment) -> ServiceBusError | None:
        """The refusal if the engine was loaded anew: later sends may have been decided already."""
        if fragment.engine is self._engine or fragment.gone is not None:
            return None
        return StoreUnavailable(f"The messaging entity '{fragment.name}' was loaded anew.")


def _seen_pages(need: Need) -> list[SeenPage]:
    return [page for page in need.pages if isinstance(page, SeenPage)]


class PageReader:
    """Loads pages for the requests of one runtime."""

    def __init__(
        self,
        loader: Loader,
        hand_back: Callable[[list[Request]], None],
        wake: Callable[[LoadedFragment], None],
    ) -> None:
        self._loader = loader
        self._hand_back = hand_back
        """Called with requests whose pages are loaded, in the order in which they came."""
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._wanted: list[tuple[Request, Need]] = []
        self._handed_back: list[LoadedFragment] = []
        """The fragments of requests that were handed back and not decided yet."""
        self.held: dict[LoadedFragment, HeldSends] = {}
        """Sends that wait for a read, by their fragment."""
        self.held_count = 0
        """Sends that wait behind another, and their bytes."""
        self.held_bytes = 0
        self.busy = 0
        """Reads under way."""

    def want(self, request: Request, need: Need, engine: Engine) -> None:
        """Read these pages for a request when the turn is over."""
        if isinstance(request, OrderedRequest):
            self.held[request.fragment] = HeldSends(request, need, engine)
        request.fragment.wants += 1
        self._wanted.append((request, need))

    def hold(self, request: Request, engine: Engine, now: Instant) -> bool:
        """Let a send wait if another send of its fragment reads; return whether it does."""
        held = self.held.get(request.fragment)
        if held is None or not held.takes(request, engine, now):
            return False
        self.held_count += 1
        self.held_bytes += request.size
        return True

    def read(self) -> None:
        """Start the reads of a turn. Its commit was submitted before, so the pages include it."""
        for fragment in self._handed_back:
            fragment.wants -= 1
        self._handed_back.clear()
        wanted, self._wanted = self._wanted, []
        for request, need in wanted:
            self._read(request, need)

    def _read(self, request: Request, need: Need) -> None:
        fragment = request.fragment
        held = self.held.get(fragment)
        if held is not None and held.first is request:
            need = held.begin()
        else:
            held = None
        fragment.loads += 1
        self.busy += 1

        def loaded(error: ServiceBusError | None) -> None:
            fragment.loads -= 1
            self.busy -= 1
            back = [request]
            if held is not None:
                back = held.release()
                del self.held[fragment]
                error = error or held.refusal(fragment)
                self.held_count -= len(back) - 1
                self.held_bytes -= sum([each.size for each in back]) - request.size
            if error is None:
                self._handed_back.append(fragment)
                self._hand_back(back)
                return
            fragment.wants -= 1
            for each in back:
                safely(fragment, partial(each.refuse, error))
            # Receivers that wait for these pages have no other reason to be looked at.
            self._loop.call_later(READ_AGAIN_S, self._wake, fragment)

        self._loader.load_pages(request, need, loaded)
