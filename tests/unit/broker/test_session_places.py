"""Where messages with and without a session end up: subscriptions, destinations, restarts."""

from __future__ import annotations

from unittest import mock

from postbus.broker import chores, session_operations
from postbus.broker.destination import Destination
from postbus.broker.index_pages import Need, Pages
from postbus.broker.message import STATE, Message
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN
from postbus.runtime.dispatch import serve
from postbus.runtime.engine_cache import at_rest
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.turn import Turn
from postbus.store.memory.store import MemoryStore
from tests.support.sessions import LOCK_MS, SessionEngine
from tests.support.topics import Place, Sorter

IN_SESSIONS = Policy(requires_session=True)


def publish(place: Place, name: str, session_id: str | None) -> None:
    message = Message(b"body", name, session_id)
    place.turn(lambda: place.engine.send([message], place.now))


def test_a_subscription_with_sessions_buries_what_has_none() -> None:
    topic = Place(matcher=Sorter())
    topic.subscribe(1, IN_SESSIONS)
    topic.subscribe(2)
    publish(topic, "with", "a")
    publish(topic, "without", None)
    assert topic.names(1) == ["with"]
    assert topic.names(2) == ["with", "without"]
    [dead] = topic.rows(1, DEAD_LETTER)
    assert dead.reason == "Session ID is null"
    assert dead.description is not None
    assert dead.description.startswith("Session enabled entity doesn't allow a message whose")
    session = session_operations.accept_next(topic.at(1), 1, topic.now, Pages())
    assert isinstance(session, Need)


def test_a_queue_with_sessions_refuses_what_is_forwarded_to_it_without_one() -> None:
    store = MemoryStore()
    end = Place(store, 2, IN_SESSIONS)
    source = Place(store, 1, Policy(forward_to=Destination((2,))))
    publish(source, "with", "a")
    publish(source, "without", None)
    publish(source, "with too", "b")
    while source.ship_to(end):
        pass
    assert end.names() == ["with", "with too"]
    [dead] = source.rows(0, DEAD_LETTER)
    assert (dead.message_id, dead.reason) == ("without", "InvalidOperation")
    assert end.engine.own.sessions is not None
    assert list(end.engine.own.sessions.free.ids) == ["a", "b"]


def test_what_a_subscription_with_sessions_leaves_is_removed() -> None:
    topic = Place(matcher=Sorter())
    topic.subscribe(1, IN_SESSIONS)
    publish(topic, "m", "a")
    queue = topic.at(1)
    session = topic.turn(lambda: session_operations.accept(queue, "a", 1, topic.now))
    topic.paged(lambda pages: session_operations.set_state(queue, "a", b"state", topic.now, pages))
    assert topic.engine.ledger.count(queue.main, STATE) == 1
    topic.unsubscribe(1)
    assert session.lost and not topic.engine.shared.ready_sessions
    while topic.purge_slice():
        pass
    assert topic.engine.ledger.counts == {} and topic.engine.ledger.size_bytes == 0


def test_a_turn_tells_of_the_sessions_that_were_lost() -> None:
    engine = SessionEngine()
    fragment = LoadedFragment(7, 0, 0, "orders", engine.policy)
    fragment.engine = engine.engine
    engine.put("a", b"m")
    engine.accept("a", holder=5)
    assert not at_rest(fragment, engine.now)
    told: list[tuple[int, str, int]] = []
    fragment.on_session_lost = lambda *lost: told.append(lost)
    turn = Turn(1, 0, engine.now + LOCK_MS - 1)
    serve(fragment, turn)
    assert turn.outputs == []
    turn.now += 1
    serve(fragment, turn)
    assert told == []  # not before the commit
    for _, output in turn.outputs:
        output()
    assert told == [(MAIN, "a", 5)]
    assert not engine.engine.shared.lost_sessions
    serve(fragment, Turn(2, 1, engine.now + LOCK_MS))
    assert told == [(MAIN, "a", 5)]


def test_a_session_on_a_plain_queue_has_no_effect() -> None:
    place = Place()
    publish(place, "1", "a")
    publish(place, "2", None)
    assert [m.message_id for m in (place.receive(), place.receive()) if m is not None] == ["1", "2"]


def test_a_body_is_copied_forward_under_a_message_that_is_held() -> None:
    store = MemoryStore()
    engine = SessionEngine(store=store)
    engine.put("a", b"kept", b"too")
    session = engine.accept("a")
    engine.commit(checkpoint=True)
    message = engine.take(session)
    assert message is not None
    for n in range(20):
        engine.put("b", b"m%d" % n)
    engine.drain(engine.accept("b"))
    engine.commit(checkpoint=True)
    before = message.base
    head = engine.queue.ledger.head
    with mock.patch("postbus.runtime.loading.LIVE_SHARE_MAX", 1.0):
        engine.paged(lambda pages: chores.copy_forward(engine.engine, head, 100, pages))
    assert message.base > before
    engine.commit(checkpoint=True)
    store.trim(engine.fragment, engine.now + 1, 0, 1_000)
    engine.leave(session)
    assert engine.drain(engine.accept("a")) == ["kept", "too"]
