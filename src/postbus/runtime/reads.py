"""Pages for requests that have to read: each goes back to where it came from when it has them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from postbus.broker.engine import Engine
from postbus.broker.pages import Need
from postbus.errors import ServiceBusError
from postbus.model.times import Instant
from postbus.runtime.commits import safely
from postbus.runtime.fragment import LoadedFragment
from postbus.runtime.holding import Held, Ordered
from postbus.runtime.loading import Loader
from postbus.runtime.requests import Request

READ_AGAIN_S: Final = 1.0


class Reader:
    """Reads for the requests of one runtime."""

    def __init__(
        self,
        loader: Loader,
        hand_back: Callable[[list[Request]], None],
        wake: Callable[[LoadedFragment], None],
    ) -> None:
        self._loader = loader
        self._hand_back = hand_back
        """Called with requests whose pages are there, in the order they came in."""
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._wanted: list[tuple[Request, Need]] = []
        self._handed_back: list[LoadedFragment] = []
        """Those of requests that the turn decides which is next, or is under way."""
        self.busy = 0
        """Reads under way."""
        self.held_count = 0
        """Requests that wait behind another, and their bytes."""
        self.held_bytes = 0

    def want(self, request: Request, need: Need, engine: Engine) -> None:
        """Have this read when the turn is over."""
        if isinstance(request, Ordered):
            request.fragment.held = Held(request, need, engine)
        request.fragment.wants += 1
        self._wanted.append((request, need))

    def hold(self, held: Held, request: Request, engine: Engine, now: Instant) -> bool:
        """Have a request wait behind another that reads, if it is of that kind."""
        if not held.takes(request, engine, now):
            return False
        self.held_count += 1
        self.held_bytes += request.size
        return True

    def read(self) -> None:
        """The turn is over and on its way to the disk: a page shows what it has written."""
        for fragment in self._handed_back:
            fragment.wants -= 1
        self._handed_back.clear()
        wanted, self._wanted = self._wanted, []
        for request, need in wanted:
            self._read(request, need)

    def _read(self, request: Request, need: Need) -> None:
        fragment, held = request.fragment, request.fragment.held
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
                fragment.held = None
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
            # Whoever waits for what was to be read has no other reason to be looked at.
            self._loop.call_later(READ_AGAIN_S, self._wake, fragment)

        self._loader.load_pages(request, need, loaded)
