"""A fragment's ledger, built again from what was written, and compared with the live engine.

A second ledger is built from index and tail, as a restart would, and a third from every record ever
written. Neither acquires the fragment: that would fence the engine that runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from postbus.broker import records
from postbus.broker.duplicate_history import History
from postbus.broker.ledger import Layout, Ledger
from postbus.broker.message import Message
from postbus.model.index_rows import Row
from postbus.store import batch
from postbus.store.batch import StoredBatch
from tests.simulation.history import Violation
from tests.simulation.promises import BODY, FULL, REPLAY, TOTALS
from tests.simulation.world import World

ALL = 1 << 20

Load = Callable[[int, int], list[Row]]
Rows = list[tuple[Message, bytes]]


def full_replay(world: World, fragment_id: int) -> Ledger:
    """From every record that was ever written."""
    ledger = _ledger(world, fragment_id, 0, b"")
    _replay(ledger, _recorded(world, fragment_id).batches.get(fragment_id, []))
    return ledger


def index_and_tail(world: World, fragment_id: int) -> Ledger:
    """As a restart would find it."""
    recorded = _recorded(world, fragment_id)
    standing = recorded.standing_of.get(fragment_id)
    if standing is None:
        return _ledger(world, fragment_id, 0, b"")
    ledger = _ledger(world, fragment_id, standing.checkpoint, standing.state)
    while ledger.head < standing.head:
        batches = recorded.store.read(fragment_id, ledger.head, 1 << 10)
        if not batches:
            raise Violation(REPLAY, None, f"the journal of {fragment_id} ends at {ledger.head}")
        _replay(ledger, batches)
    return ledger


def all_rows(world: World, fragment_id: int) -> list[Message]:
    """What a full replay finds."""
    return _rows(full_replay(world, fragment_id), _no_index)


def compare(world: World, fragment_id: int) -> Rows:
    """Engine, restart and full replay have the same messages with the same bodies: these."""
    recorded = _recorded(world, fragment_id)
    full = full_replay(world, fragment_id)
    kept = {each.base: each.data for each in recorded.batches.get(fragment_id, [])}
    rows = _rows(full, _no_index)
    bodies = [kept[row.base][row.position : row.position + row.length] for row in rows]
    expected = [_described(row, body) for row, body in zip(rows, bodies, strict=True)]

    def load(subqueue: int, lane: int) -> list[Row]:
        return list(recorded.store.index.load_lane(fragment_id, subqueue, lane, 0, ALL))

    others = [(FULL, index_and_tail(world, fragment_id))]
    engine = world.fragments[fragment_id].engine
    if engine is not None:
        others.append((REPLAY, engine.ledger))
    for promise, ledger in others:
        shown = []
        for row in _rows(ledger, load):
            body = recorded.store.read_slice(fragment_id, row.base, row.position, row.length)
            if body is None:
                raise Violation(BODY, row.message_id, f"{promise}: none for {row.number}")
            shown.append(_described(row, body))
        _check_same(promise, expected, shown)
        if ledger.marks != full.marks:
            raise Violation(promise, None, f"marks {ledger.marks}, must be {full.marks}")
        _check_totals(ledger, rows)
    _check_totals(full, rows)
    return list(zip(rows, bodies, strict=True))


def check_empty(world: World, fragment_id: int) -> None:
    """Everything was taken out."""
    ledger = full_replay(world, fragment_id)
    left = {lane: count for lane, count in ledger.counts.items() if count}
    if left or ledger.size_bytes:
        raise Violation(TOTALS, None, f"{left} left of {fragment_id}, {ledger.size_bytes} bytes")


def _recorded(world: World, fragment_id: int) -> Any:
    return world.store_of(world.fragments[fragment_id]).recorded


def _no_index(subqueue: int, lane: int) -> list[Row]:
    return []


def _rows(ledger: Ledger, load: Load) -> list[Message]:
    found: list[Message] = []
    for subqueue, lane in sorted(ledger.counts):
        rows, _ = ledger.delta.over_lane(load(subqueue, lane), subqueue, lane, 0, ALL)
        found += rows
    return found


def _check_totals(ledger: Ledger, rows: list[Message]) -> None:
    counts = dict(Counter((row.subqueue, row.lane) for row in rows))
    if counts != {lane: n for lane, n in ledger.counts.items() if n}:
        raise Violation(TOTALS, None, f"counts {ledger.counts}, there are {counts}")
    size = sum(row.weight for row in rows)
    if ledger.size_bytes != size:
        raise Violation(TOTALS, None, f"{ledger.size_bytes} bytes, there are {size}")


def _ledger(world: World, fragment_id: int, head: int, state: bytes) -> Ledger:
    layout = Layout(batch.HEADER_SIZE, batch.RECORD_PREFIX_SIZE)
    window_ms = world.policy_of(fragment_id).duplicate_window_ms
    history = None if window_ms is None else History(window_ms)
    return Ledger(layout, fragment_id << 48, head, state, history)


def _replay(ledger: Ledger, batches: Sequence[StoredBatch]) -> None:
    for stored in batches:
        header = batch.unpack(stored.data)
        for position, record in batch.records(stored.data):
            ledger.replay(records.decode(record), stored.base, position, header.at)
        ledger.head = stored.base + header.record_count


def _described(row: Message, body: bytes) -> tuple[Any, ...]:
    trail = row.trail
    trailed = None if trail is None else tuple(getattr(trail, each) for each in trail.__slots__)
    place = row.subqueue, row.lane, row.number, row.message_id, row.enqueue_number, row.session_id
    state = row.delivery_count, row.enqueued_at, row.ttl, row.reason, row.properties, row.source
    return (*place, *state, row.description, trailed, row.base, row.position, body)


def _check_same(promise: str, one: list[tuple[Any, ...]], other: list[tuple[Any, ...]]) -> None:
    if one != other:
        odd = sorted(set(one) ^ set(other), key=repr)
        raise Violation(promise, odd[0][3] if odd else None, f"{odd[:2]}")
