"""Everything a queue holds, read as a peek reads it: from the engine, and from loaded ones.

One engine is loaded from index and tail, another from every record ever written. All must show
the same messages, and neither acquires the fragment.
"""

from __future__ import annotations

from collections.abc import Callable

from postbus.broker import browse
from postbus.broker.index_pages import BatchPage, BodyPage, Loaded, Need, NextDue, Page, Pages
from postbus.broker.ledger import Ledger
from postbus.broker.message import STATE
from postbus.broker.queue import Queue
from postbus.broker.shared_state import SharedState
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN
from postbus.broker.window_budget import WindowBudget
from postbus.runtime.loading import load_page
from tests.simulation.history import Violation
from tests.simulation.promises import FULL, ONCE, PEEK, REPLAY
from tests.simulation.queues.messages import name_of
from tests.simulation.queues.model import QueueModel
from tests.simulation.queues.queues import Queues
from tests.simulation.replay import full_replay, index_and_tail

Read = Callable[[Page], Loaded]
_ATTEMPTS = 1_000


def check_peeks(queues: Queues, model: QueueModel) -> None:
    world, fragment_id = queues.world, model.id
    fragment = world.fragments[fragment_id]
    recorded = world.store_of(fragment).recorded
    written = {each.base: each.data for each in recorded.batches.get(fragment_id, [])}

    def from_store(page: Page) -> Loaded:
        return load_page(recorded.store, fragment_id, page)

    def from_records(page: Page) -> Loaded:
        match page:
            case BodyPage(base, position, length):
                return written[base][position : position + length]
            case BatchPage(base):
                return written[base]
            case NextDue():
                return None
        return []

    if fragment.engine is not None:
        _check(PEEK, model, fragment.engine.own, from_store)
    _check(REPLAY, model, _queue(model, index_and_tail(world, fragment_id)), from_store)
    _check(FULL, model, _queue(model, full_replay(world, fragment_id)), from_records)


def _queue(model: QueueModel, ledger: Ledger) -> Queue:
    return Queue("loaded", 0, model.policy, SharedState(ledger, WindowBudget(), bytes(8), 0))


def _check(promise: str, model: QueueModel, queue: Queue, read: Read) -> None:
    for subqueue in (MAIN, DEAD_LETTER):
        there = sorted(
            (entry.number, entry.name)
            for entry in model.durable.entries.values()
            if entry.subqueue == subqueue and entry.lane != STATE
        )
        shown = _all(queue, subqueue, read)
        names = [name for _, name in shown]
        for name in names:
            if names.count(name) > 1:
                raise Violation(ONCE, name, f"in more than one place: {shown}")
        if shown != there:
            odd = sorted(set(shown) ^ set(there))
            raise Violation(promise, odd[0][1] if odd else None, f"{shown}, not {there}")


def _all(queue: Queue, subqueue: int, read: Read) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    while page := _peek(queue, subqueue, found[-1][0] + 1 if found else 0, read):
        found += [(message.number, name_of(body)) for message, body in page]
    return found


def _peek(queue: Queue, subqueue: int, start: int, read: Read) -> browse.Found:
    pages = Pages()
    for _ in range(_ATTEMPTS):
        result = browse.peek(queue, subqueue, start, 50, 1 << 20, pages)
        if not isinstance(result, Need):
            return result
        for page in result.pages:
            pages.add(page, read(page))
    raise AssertionError("the engine never has enough")
