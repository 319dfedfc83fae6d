"""One fragment's ledger, built again from what was written, and what is in it put into words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from postbus.broker import records
from postbus.broker.duplicate_history import History
from postbus.broker.ledger import Layout, Ledger
from postbus.broker.message import Message
from postbus.broker.policy import Policy
from postbus.model.index_rows import Row
from postbus.store import batch
from postbus.store.batch import StoredBatch
from tests.simulation.history import Violation

ALL = 1 << 20
REPLAY = "replay equals live"
FULL = "index and tail equal a full replay"
TOTALS = "size and counts are right"

Load = Callable[[int, int], list[Row]]


def full_replay(stage: Any, fragment_id: int) -> Ledger:
    """From every record that was ever written."""
    ledger = _ledger(stage, fragment_id, 0, b"")
    _replay(ledger, stage.records.batches.get(fragment_id, []))
    return ledger


def index_and_tail(stage: Any, fragment_id: int) -> Ledger:
    """As a restart would find it."""
    stands = stage.records.stands.get(fragment_id)
    if stands is None:
        return _ledger(stage, fragment_id, 0, b"")
    ledger = _ledger(stage, fragment_id, stands.checkpoint, stands.state)
    while ledger.head < stands.head:
        batches = stage.records.store.read(fragment_id, ledger.head, 1 << 10)
        if not batches:
            raise Violation(REPLAY, None, f"the journal of {fragment_id} ends at {ledger.head}")
        _replay(ledger, batches)
    return ledger


def nothing(subqueue: int, lane: int) -> list[Row]:
    """An index that has nothing."""
    return []


def rows_of(ledger: Ledger, load: Load) -> list[Message]:
    found: list[Message] = []
    for subqueue, lane in sorted(ledger.counts):
        rows, _ = ledger.delta.over_lane(load(subqueue, lane), subqueue, lane, 0, ALL)
        found += rows
    return found


def compare(stage: Any, fragment_id: int) -> list[tuple[Message, bytes]]:
    """Engine, restart and full replay have the same messages with the same bodies: those."""
    store = stage.records.store
    full = full_replay(stage, fragment_id)
    kept = {each.base: each.data for each in stage.records.batches.get(fragment_id, [])}
    rows = rows_of(full, nothing)
    bodies = [kept[row.base][row.position : row.position + row.length] for row in rows]
    told = [_told(row, body) for row, body in zip(rows, bodies, strict=True)]

    def load(subqueue: int, lane: int) -> list[Row]:
        return list(store.index.load_lane(fragment_id, subqueue, lane, 0, ALL))

    others = [(FULL, index_and_tail(stage, fragment_id))]
    engine = stage.fragments[fragment_id].engine
    if engine is not None:
        others.append((REPLAY, engine.ledger))
    for promise, ledger in others:
        shown = [
            _told(row, store.read_slice(fragment_id, row.base, row.position, row.length))
            for row in rows_of(ledger, load)
        ]
        _same(promise, told, shown)
        if ledger.marks != full.marks:
            raise Violation(promise, None, f"marks {ledger.marks}, must be {full.marks}")
        _check_totals(ledger, rows)
    _check_totals(full, rows)
    return list(zip(rows, bodies, strict=True))


def _check_totals(ledger: Ledger, rows: list[Message]) -> None:
    counts = dict(Counter((row.subqueue, row.lane) for row in rows))
    if counts != {place: n for place, n in ledger.counts.items() if n}:
        raise Violation(TOTALS, None, f"counts {ledger.counts}, there are {counts}")
    size = sum(row.weight for row in rows)
    if ledger.size_bytes != size:
        raise Violation(TOTALS, None, f"{ledger.size_bytes} bytes, there are {size}")


def _ledger(stage: Any, fragment_id: int, head: int, state: bytes) -> Ledger:
    layout = Layout(batch.HEADER_SIZE, batch.RECORD_PREFIX_SIZE)
    policy: Policy = stage.policies[fragment_id]
    window_ms = policy.duplicate_window_ms
    history = None if window_ms is None else History(window_ms)
    return Ledger(layout, fragment_id << 48, head, state, history)


def _replay(ledger: Ledger, batches: Sequence[StoredBatch]) -> None:
    for stored in batches:
        header = batch.unpack(stored.data)
        for position, record in batch.records(stored.data):
            ledger.replay(records.decode(record), stored.base, position, header.at)
        ledger.head = stored.base + header.record_count


def _told(row: Message, body: bytes | None) -> tuple[Any, ...]:
    trail = row.trail
    trailed = None if trail is None else tuple(getattr(trail, each) for each in trail.__slots__)
    place = row.subqueue, row.lane, row.number, row.message_id, row.enqueue_number, row.session_id
    state = row.delivery_count, row.enqueued_at, row.ttl, row.reason, row.properties, row.source
    return (*place, *state, trailed, row.base, row.position, body)


def _same(promise: str, one: list[tuple[Any, ...]], other: list[tuple[Any, ...]]) -> None:
    if one == other:
        return
    odd = sorted(set(one) ^ set(other), key=repr)
    raise Violation(promise, odd[0][3] if odd else None, f"{odd[:2]}")
