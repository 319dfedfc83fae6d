"""The state of a session: durable, the holder's alone, and part of the entity's size."""

from __future__ import annotations

import pytest

from postbus.broker import chores
from postbus.broker.message import STATE
from postbus.broker.policy import Policy
from postbus.broker.record_kinds import RecordKind
from postbus.broker.records import decode
from postbus.broker.subqueue_numbers import MAIN
from postbus.errors import MessageSizeExceeded, QuotaExceeded, SessionLockLost
from postbus.runtime.engine_cache import counts_of
from postbus.store import batch
from postbus.store.memory.store import MemoryStore
from postbus.store.sqlite.store import SqliteStore
from tests.support.sessions import LOCK_MS, SessionEngine


def test_a_session_has_no_state_until_one_is_set() -> None:
    engine = SessionEngine()
    engine.accept("a")
    assert engine.get_state("a") is None
    engine.set_state("a", b"one")
    assert engine.get_state("a") == b"one"


@pytest.mark.parametrize("nothing", [None, b""])
def test_a_state_of_nothing_is_cleared_and_leaves_nothing(nothing: bytes | None) -> None:
    engine = SessionEngine()
    engine.accept("a")
    engine.set_state("a", b"one")
    for _ in range(2):
        engine.set_state("a", nothing)
        assert engine.get_state("a") is None
    assert engine.queue.ledger.counts == {}
    assert engine.queue.ledger.size_bytes == 0
    engine.commit()
    engine.crash()
    engine.accept("a")
    assert engine.get_state("a") is None


def test_state_is_for_the_holder_of_the_session() -> None:
    engine = SessionEngine()
    session = engine.accept("a")
    engine.set_state("a", b"state")
    engine.leave(session)
    with pytest.raises(SessionLockLost):
        engine.get_state("a")
    with pytest.raises(SessionLockLost):
        engine.set_state("a", b"other")
    engine.accept("a")
    engine.now += LOCK_MS
    with pytest.raises(SessionLockLost):
        engine.get_state("a")


@pytest.mark.parametrize("first_in_index", [False, True])
@pytest.mark.parametrize("second_in_index", [False, True])
def test_state_survives_a_crash(first_in_index: bool, second_in_index: bool) -> None:
    engine = SessionEngine()
    engine.accept("a")
    engine.set_state("a", b"first")
    engine.commit(checkpoint=first_in_index)
    engine.set_state("a", b"the second")
    engine.commit(checkpoint=second_in_index)
    engine.crash()
    engine.accept("a")
    assert engine.get_state("a") == b"the second"
    assert engine.queue.ledger.count(MAIN, STATE) == 1
    assert engine.queue.ledger.size_bytes == len(b"the second")
    engine.set_state("a", None)
    engine.commit(checkpoint=True)
    engine.crash()
    engine.accept("a")
    assert engine.get_state("a") is None
    assert engine.queue.ledger.size_bytes == 0


def test_many_changes_between_two_checkpoints_leave_one_row() -> None:
    engine = SessionEngine()
    engine.accept("a")
    engine.accept("b")
    for n in range(20):
        engine.set_state("a", b"%d" % n)
        engine.set_state("b", b"%d" % -n)
    engine.commit(checkpoint=True)
    rows = engine.store.index.load_lane(engine.fragment, MAIN, STATE, 0, 100)
    assert sorted(row.group or b"" for row in rows) == [b"a", b"b"]
    assert engine.get_state("a") == b"19"


def test_state_is_no_message() -> None:
    engine = SessionEngine()
    engine.accept("a")
    engine.set_state("a", b"12345")
    counts = counts_of(engine.queue.ledger)
    assert (counts.active, counts.scheduled, counts.dead_letter, counts.transfer) == (0, 0, 0, 0)
    assert counts.size_bytes == 5
    assert engine.peeked(None) == [] and engine.peeked("a") == []


def test_state_may_be_as_large_as_a_message() -> None:
    engine = SessionEngine(Policy(message_size_max=10))
    engine.accept("a")
    engine.set_state("a", bytes(10))
    with pytest.raises(MessageSizeExceeded, match="11 bytes, 10 bytes are allowed"):
        engine.set_state("a", bytes(11))
    assert engine.get_state("a") == bytes(10)


def test_state_counts_in_the_size_of_the_entity_and_is_refused_when_that_is_full() -> None:
    engine = SessionEngine(Policy(size_bytes_max=100))
    engine.put("a", b"x" * 40)
    engine.accept("a")
    engine.set_state("a", bytes(60))
    engine.set_state("a", bytes(59))
    engine.set_state("a", bytes(60))
    with pytest.raises(QuotaExceeded, match="no room for 61 bytes"):
        engine.set_state("a", bytes(61))
    with pytest.raises(QuotaExceeded):
        engine.put("a", b"x")


def test_the_state_of_a_session_is_copied_forward_with_the_messages() -> None:
    store = MemoryStore()
    engine = SessionEngine(store=store)
    engine.accept("a")
    engine.set_state("a", b"kept")
    engine.commit(checkpoint=True)
    for n in range(20):
        engine.put("b", b"m%d" % n)
    session = engine.accept("b")
    engine.drain(session)
    engine.commit(checkpoint=True)
    store.trim(engine.fragment, engine.now + 1, 0, 1_000)
    head = engine.queue.ledger.head
    before = store.index.load_lane(engine.fragment, MAIN, STATE, 0, 9)[0].base
    engine.paged(lambda pages: chores.copy_forward(engine.engine, head, 100, pages))
    engine.commit(checkpoint=True)
    assert store.index.load_lane(engine.fragment, MAIN, STATE, 0, 9)[0].base > before
    engine.crash()
    engine.accept("a")
    assert engine.get_state("a") == b"kept"


def test_the_journal_tells_what_became_of_a_state() -> None:
    engine = SessionEngine()
    engine.accept("a")
    engine.set_state("a", b"one")
    engine.set_state("a", b"two")
    kinds = [
        decode(record).kind
        for stored in engine.store.read(engine.fragment, 0, 1 << 20)
        for _, record in batch.records(stored.data)
    ]
    assert kinds == [RecordKind.STATE_SET, RecordKind.STATE_CLEARED, RecordKind.STATE_SET]


def test_state_is_found_in_a_file_too(tmp_path: object) -> None:
    store = SqliteStore(f"{tmp_path}/store.db")
    engine = SessionEngine(store=store, checkpoint_every=3)
    for n in range(10):
        session = engine.accept(f"s{n}")
        engine.set_state(session.id, b"%d" % n)
        engine.put(session.id, b"m")
        engine.leave(session)
    engine.crash()
    for _ in range(10):
        found = engine.accept_next()
        assert found is not None
        assert engine.get_state(found.id) == found.id[1:].encode()
        assert engine.drain(found) == ["m"]
    assert engine.accept_next() is None
    store.close()
