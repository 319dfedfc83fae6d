"""Is the memory of windows accounted for? Counted again from the messages that they hold."""

from __future__ import annotations

from collections.abc import Iterable

from postbus.broker.engine import Engine
from postbus.broker.window import Window
from postbus.broker.window_budget import MESSAGE_BYTES, WindowBudget


def windows_of(engine: Engine) -> list[Window]:
    """All windows of an engine, with those of held sessions."""
    found: list[Window] = []
    for queue in engine.queues.values():
        found += queue.windows.values()
        if queue.sessions is not None:
            found += [session.window for session in queue.sessions.held.values()]
    return found


def audit(budget: WindowBudget, windows: Iterable[Window]) -> None:
    """Every byte that is counted is held by one of these windows, and the other way round."""
    used, listed = 0, set()
    for window in windows:
        bodies = sum(len(each.raw) for each in window.live.values() if each.raw is not None)
        assert window.held == len(window.live) * MESSAGE_BYTES + bodies, "bodies of a window"
        used += window.held
        lined_up = [*window._ready, *(each for _, _, each in window._returned)]
        ready = [each.number for each in lined_up if window.live.get(each.number) is each]
        assert len(ready) == len(set(ready)) == window.ready_count, "ready messages of a window"
        assert window.is_listed == (window.held > budget.least), "windows above the minimum"
        if window.is_listed:
            listed.add(window)
    assert budget.used == used, f"{budget.used} bytes are counted, {used} are held"
    assert set(budget._listed) == listed, "a window that is gone is still listed"


def audit_engines(budget: WindowBudget, engines: Iterable[Engine]) -> None:
    """The same for all engines that share a budget, with the changes in their deltas."""
    known = list(engines)
    audit(budget, [window for engine in known for window in windows_of(engine)])
    changes = sum(engine.shared._changes for engine in known)
    assert budget.changes == changes, f"{budget.changes} changes are counted, {changes} are there"
