"""Many sessions: each has its turn, and none takes memory that is not held."""

from __future__ import annotations

import gc
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from postbus.broker import held_sessions as broker
from postbus.broker import session_operations
from postbus.broker.held_sessions import Session, Sessions
from postbus.broker.message import Message
from postbus.broker.window import Window
from postbus.store.sqlite.store import SqliteStore
from tests.support.sessions import LOCK_MS, SessionEngine
from tests.support.windows import audit_engines


def sessions_of(engine: SessionEngine) -> Sessions:
    found = engine.queue.sessions
    assert found is not None
    return found


def fill(engine: SessionEngine, count: int, name: str = "s{:05}") -> list[str]:
    names = [name.format(n) for n in range(count)]
    for start in range(0, count, 500):
        messages = [Message(b"m", "id-", each) for each in names[start : start + 500]]
        engine.turn(lambda batch=messages: engine.queue.send(batch, engine.now))  # type: ignore[misc]
    engine.commit(checkpoint=True)
    return names


def test_ten_thousand_sessions_that_are_taken_and_given_up_all_have_their_turn() -> None:
    engine = SessionEngine()
    names = fill(engine, 10_000)
    turns: Counter[str] = Counter()
    for _ in range(21_000):
        session = engine.accept_next()
        assert session is not None
        turns[session.id] += 1
        engine.leave(session)
    assert set(turns) == set(names)
    assert max(turns.values()) - min(turns.values()) <= 2


def test_a_few_sessions_take_turns_too() -> None:
    engine = SessionEngine()
    for name in ("b", "a", "c"):
        engine.put(name, b"m")
    turns = []
    for _ in range(6):
        session = engine.accept_next()
        assert session is not None
        turns.append(session.id)
        engine.leave(session)
    assert turns == ["b", "a", "c", "b", "a", "c"]


@pytest.fixture
def short_line(monkeypatch: pytest.MonkeyPatch) -> int:
    for module in (broker, session_operations):
        monkeypatch.setattr(module, "READY_MAX", 4)
    return 4


def test_new_sessions_with_ever_higher_ids_do_not_keep_the_old_ones_waiting(
    short_line: int,
) -> None:
    """More come than are taken, and all of them behind those that are taken next."""
    engine = SessionEngine()
    fill(engine, 20)
    turns: Counter[str] = Counter()
    made = 20
    for _ in range(150):
        for _ in range(2):
            engine.put(f"s{made:05}", b"m")
            made += 1
        session = engine.accept_next()
        assert session is not None
        turns[session.id] += 1
        engine.leave(session)
    assert min(turns[f"s{n:05}"] for n in range(20)) >= 2


def test_new_sessions_before_an_old_one_do_not_keep_it_waiting(short_line: int) -> None:
    """As many come as are taken, and all of them before the one whose id is the last."""
    engine = SessionEngine()
    engine.put("zzz", b"m")
    fill(engine, 12)
    for made in range(12, 100):
        session = engine.accept_next()
        assert session is not None
        if session.id == "zzz":
            return
        engine.drain(session)
        engine.leave(session)
        engine.put(f"s{made:05}", b"m")
    pytest.fail("the session was not offered while others came")


def test_a_line_that_was_too_short_is_complete_again_when_there_are_few(short_line: int) -> None:
    engine = SessionEngine()
    fill(engine, 10)
    seen = []
    while (session := engine.accept_next()) is not None:
        seen.append(session.id)
        engine.drain(session)
        engine.leave(session)
    assert len(seen) == 10
    assert sessions_of(engine).free.complete
    engine.put("z", b"m")
    engine.put("a", b"m")
    assert list(sessions_of(engine).free.ids) == ["z", "a"]


def test_when_all_sessions_are_held_there_is_no_next_one(short_line: int) -> None:
    engine = SessionEngine()
    fill(engine, 10)
    held = [engine.accept_next() for _ in range(10)]
    assert None not in held
    assert engine.accept_next() is None
    engine.now += LOCK_MS
    assert engine.accept_next() is not None


def alive() -> int:
    gc.collect()
    return sum(isinstance(each, (Message, Session, Window)) for each in gc.get_objects())


def test_memory_does_not_grow_with_the_number_of_sessions(tmp_path: Path) -> None:
    counts = []
    for count in (3_000, 9_000):
        with closing(SqliteStore(str(tmp_path / f"{count}.db"))) as store:
            before = alive()
            engine = SessionEngine(store=store, checkpoint_every=1_000)
            fill(engine, count)
            for _ in range(10):
                session = engine.accept_next()
                assert session is not None
                engine.take(session)
                engine.leave(session)
            engine.commit(checkpoint=True)
            assert len(sessions_of(engine).free.ids) <= 1_024
            assert not sessions_of(engine).held
            counts.append(alive() - before)
            del engine, session
    assert counts[1] <= counts[0] + 10


def test_a_message_of_a_session_that_nobody_holds_keeps_no_body_in_memory() -> None:
    engine = SessionEngine()
    first, second = Message(b"x" * 99, "1", "a"), Message(b"y" * 99, "2", "a")
    engine.turn(lambda: engine.queue.send([first], engine.now))
    assert first.raw is None
    session = engine.accept("a")
    assert engine.take(session) is first
    engine.turn(lambda: engine.queue.send([second], engine.now))
    assert second.has_body
    engine.leave(session)
    assert first.raw is None and not second.has_body
    assert engine.drain(engine.accept("a")) == ["1", "2"]


def test_a_session_that_is_left_gives_its_memory_back() -> None:
    engine = SessionEngine()
    held = [engine.accept(f"s{n}") for n in range(5)]
    for n in range(5):
        engine.send(b"x" * 1_000, session_id=f"s{n}")
    assert engine.limits.used > 5_000
    for session in held[1:]:
        engine.leave(session)
    assert 1_000 < engine.limits.used < 2_000
    audit_engines(engine.limits, [engine.engine])
    engine.leave(held[0])
    assert engine.limits.used == 0


@pytest.mark.interpreted_only
def test_a_line_is_complete_once_all_that_the_index_names_were_looked_at(short_line: int) -> None:
    engine = SessionEngine()
    names = fill(engine, 10)
    kept = engine.accept("s00003")
    for name in names:
        session = kept if name == kept.id else engine.accept(name)
        assert engine.take(session) is not None
        if session is not kept:
            engine.turn(lambda each=session: engine.queue.complete(*each.locks, engine.now))  # type: ignore[call-arg]
    engine.crash()
    held = engine.accept_next()
    assert held is not None and held.id == kept.id
    assert not sessions_of(engine).free.complete
    assert engine.accept_next() is None
    assert sessions_of(engine).free.complete
    engine.leave(held)
    assert list(sessions_of(engine).free.ids) == [kept.id]


def test_sessions_that_only_the_index_knows_do_not_hide_those_behind_them(short_line: int) -> None:
    engine = SessionEngine()
    names = fill(engine, 60)
    for name in names[:-1]:
        session = engine.accept(name)
        assert engine.drain(session) == [""]
    engine.crash()
    found = engine.accept_next()
    assert found is not None and found.id == names[-1]
