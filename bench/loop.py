"""One process of the load generator: many connections, each with one link or more, in one loop."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Sequence

from bench.client import LoadFailed, Wire, now_ms

_TICK_S = 1.0
_CLOSE_WITHIN_S = 2.0


class Loop:
    """All connections of one process, and their links."""

    def __init__(self, wires: Sequence[Wire], stall_s: float) -> None:
        self._wires = wires
        self._carriers = [wire for wire in wires if wire.carrier is wire]
        self._stall_s = stall_s
        self._selector = selectors.DefaultSelector()
        self._full: set[Wire] = set()
        for wire in self._carriers:
            self._selector.register(wire.socket, selectors.EVENT_READ, wire)

    def attach(self) -> None:
        """Return when every link is attached."""
        self._run(lambda: all(wire.attached for wire in self._wires))

    def work(self) -> None:
        """Return when every link has done its share."""
        for wire in self._wires:
            wire.start()
        self._run(lambda: all(wire.finished for wire in self._wires))

    def close(self) -> None:
        """Close in good order, but do not wait long for a broker that does not answer."""
        for wire in self._carriers:
            wire.core.close()
            self._write(wire)
        deadline = time.monotonic() + _CLOSE_WITHIN_S
        while time.monotonic() < deadline and not all(wire.core.closed for wire in self._carriers):
            self._turn(0.1)
        self.drop()

    def drop(self) -> None:
        self._selector.close()
        for wire in self._carriers:
            wire.socket.close()

    def _run(self, is_over: Callable[[], bool]) -> None:
        progress = -1
        moved_at = ticked_at = time.monotonic()
        for wire in self._carriers:
            self._write(wire)
        while not is_over():
            self._turn(_TICK_S)
            now = time.monotonic()
            if now - ticked_at < _TICK_S:
                continue
            ticked_at = now
            for wire in self._carriers:
                wire.handle(wire.core.tick(now_ms()))
                self._write(wire)
            seen = sum(wire.attached + wire.started + wire.done for wire in self._wires)
            if seen != progress:
                progress, moved_at = seen, now
            elif now - moved_at > self._stall_s:
                raise LoadFailed(f"nothing happened for {self._stall_s:g} s")

    def _turn(self, wait_s: float) -> None:
        for key, ready in self._selector.select(wait_s):
            wire: Wire = key.data
            if ready & selectors.EVENT_READ and not wire.core.closed:
                wire.read()
            self._write(wire)

    def _write(self, wire: Wire) -> None:
        if wire.write() is (wire in self._full):
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            if wire in self._full:
                self._full.discard(wire)
                self._selector.modify(wire.socket, selectors.EVENT_READ, wire)
            else:
                self._full.add(wire)
                self._selector.modify(wire.socket, both, wire)
