"""Everything a queue holds, read the way a peek reads it, and the same from the store alone.

A second engine is built from index and tail, and a third from every record ever written; all must
show the same. Neither acquires the fragment: the engine that runs would be fenced by that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from postbus.broker import browse, records
from postbus.broker.index_pages import BatchPage, BodyPage, Loaded, Need, NextDue, Page, Pages
from postbus.broker.ledger import Layout, Ledger
from postbus.broker.policy import Policy
from postbus.broker.queue import Queue
from postbus.broker.shared_state import SharedState
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN
from postbus.broker.window import WindowLimits
from postbus.runtime.loading import load_page
from postbus.store import batch
from postbus.store.batch import StoredBatch
from postbus.store.ports.journal import Lease
from postbus.store.ports.store import Store
from tests.simulation.history import Violation
from tests.simulation.model import Entry, entry_of

FRAGMENT = 7
_ATTEMPTS = 1000


class Found(NamedTuple):
    entry: Entry
    body: bytes


Seen = dict[str, Found]
Read = Callable[[Page], Loaded]


def read_from(store: Store) -> Read:
    return lambda page: load_page(store, FRAGMENT, page)


def take_stock(queue: Queue, read: Read) -> Seen:
    """All messages by name, bodies included; nothing is changed."""
    found: Seen = {}
    for subqueue in (MAIN, DEAD_LETTER):
        start = 0
        while page := _peek(queue, subqueue, start, read):
            for message, body in page:
                if message.message_id in found:
                    raise Violation(
                        "a message is in one place",
                        message.message_id,
                        f"{found[message.message_id].entry} and {entry_of(message)}",
                    )
                found[message.message_id] = Found(entry_of(message), body)
            start = page[-1][0].number + 1
    return found


def _peek(queue: Queue, subqueue: int, start: int, read: Read) -> browse.Found:
    pages = Pages()
    for _ in range(_ATTEMPTS):
        result = browse.peek(queue, subqueue, start, 5, 1 << 20, pages)
        if not isinstance(result, Need):
            return result
        for page in result.pages:
            pages.add(page, read(page))
    raise AssertionError("the engine never has enough")


def from_index_and_tail(store: Store, lease: Lease, policy: Policy) -> Queue:
    """A second engine, as a restart would load it."""
    ledger = _ledger(lease.checkpoint, lease.state)
    while ledger.head < lease.head:
        batches = store.read(FRAGMENT, ledger.head, 1 << 10)
        if not batches:
            raise Violation("replay equals live", None, f"the journal ends at {ledger.head}")
        _replay(ledger, batches)
    return _queue(ledger, policy)


def from_every_record(batches: Iterable[StoredBatch], policy: Policy) -> tuple[Queue, Read]:
    """A third engine, from the journal as it would be had nothing ever been trimmed."""
    ledger = _ledger(0, b"")
    kept = {stored.base: stored.data for stored in batches}
    _replay(ledger, (StoredBatch(base, data) for base, data in kept.items()))

    def read(page: Page) -> Loaded:
        match page:
            case BodyPage(base, position, length):
                return kept[base][position : position + length]
            case BatchPage(base):
                return kept[base]
            case NextDue():
                return None
        return []

    return _queue(ledger, policy), read


def _queue(ledger: Ledger, policy: Policy) -> Queue:
    return Queue("orders", 0, policy, SharedState(ledger, WindowLimits(), bytes(8), 0))


def _ledger(head: int, state: bytes) -> Ledger:
    return Ledger(Layout(batch.HEADER_SIZE, batch.RECORD_PREFIX_SIZE), 0, head, state)


def _replay(ledger: Ledger, batches: Iterable[StoredBatch]) -> None:
    for stored in batches:
        header = batch.unpack(stored.data)
        for position, record in batch.records(stored.data):
            ledger.replay(records.decode(record), stored.base, position, header.at)
        ledger.head = stored.base + header.record_count


def same(one: Seen, other: Seen, promise: str) -> None:
    for name in sorted(one.keys() | other.keys()):
        if one.get(name) != other.get(name):
            raise Violation(promise, name, f"live {one.get(name)}, loaded {other.get(name)}")
