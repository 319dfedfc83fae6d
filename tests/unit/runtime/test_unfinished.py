"""Work that nobody waits for goes on: after a start, and however short of room memory is."""

from __future__ import annotations

import pytest

from postbus.broker.destination import Destination
from postbus.broker.message import ACTIVE, OUTBOX, Message
from postbus.broker.policy import Policy
from postbus.broker.send_via import send_through
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER, subqueue_of
from postbus.runtime.engine_cache import at_rest
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.requests import Call
from postbus.store.memory.store import MemoryStore
from tests.support.operations import Do
from tests.support.topics import Sorter
from tests.unit.runtime.test_engine_cache import MINUTE, Bed

ELSEWHERE = 99
_NOTHING = (lambda _: None, lambda _: None)


def rested() -> MemoryStore:
    """The store of a queue that has one message and one dead letter, and no use since."""
    bed = Bed()
    bed.send()
    bed.send()
    bed.ask(lambda queue, now, _: queue.dead_letter(_locked(queue, now), now))
    bed.wait(5 * MINUTE)
    assert bed.fragment.engine is None
    return bed.store


def _locked(queue: object, now: int) -> bytes:
    message, _ = queue.take(MAIN, 1, now)  # type: ignore[attr-defined]
    return bytes(message.token)


def started(store: MemoryStore, fragment: LoadedFragment) -> Bed:
    bed = Bed(store=store)
    bed.fragments, bed.fragment = [fragment], fragment
    bed.runtime.survey([fragment])
    bed.run()
    bed.machine.pass_time(1)
    bed.run()
    return bed


@pytest.mark.parametrize(
    ("policy", "subqueue"),
    [
        (Policy(forward_to=Destination((ELSEWHERE,))), MAIN),
        (Policy(forward_dead_letters_to=Destination((ELSEWHERE,))), DEAD_LETTER),
    ],
    ids=["messages", "dead letters"],
)
def test_a_queue_that_forwards_sends_off_after_a_start_what_it_holds(
    policy: Policy, subqueue: int
) -> None:
    bed = started(rested(), LoadedFragment(1, 0, 0, "q1", policy))
    engine = bed.fragment.engine
    assert engine is not None, "nobody uses it, and yet"
    assert engine.ledger.count(subqueue, OUTBOX) == 1
    assert engine.ledger.count(subqueue, ACTIVE) == 0


def test_what_was_sent_through_a_queue_goes_on_after_a_start() -> None:
    before = Bed()
    messages = [Message(b"body", "id")]
    send = Call(
        before.fragment,
        Do(lambda engine, now, _: send_through(engine, ELSEWHERE, messages, now)),
        *_NOTHING,
    )
    before.runtime.submit(send)
    before.run()
    before.fragment.checkpoint_wanted = True
    before.runtime.wake(before.fragment)
    before.run()
    assert before.store.position(1) is not None

    bed = started(before.store, LoadedFragment(1, 0, 0, "q1", Policy()))
    engine = bed.fragment.engine
    assert engine is not None, "nobody uses it, and yet"
    assert engine.shared.outboxes.keys() == {TRANSFER_DEAD_LETTER}


def topic(subscriptions: dict[int, tuple[str, Policy]]) -> LoadedFragment:
    fragment = LoadedFragment(1, 0, 0, "topic", Policy())
    matcher = Sorter()
    matcher.rules = dict.fromkeys(subscriptions)
    fragment.matcher, fragment.subscriptions = matcher, subscriptions
    return fragment


def test_what_a_subscription_has_left_is_purged_after_a_start() -> None:
    before = Bed()
    before.fragments, before.fragment = [fragment := topic({1: ("one", Policy())})], fragment
    send = Call(
        fragment, Do(lambda engine, now, _: engine.send([Message(b"body", "id")], now)), *_NOTHING
    )
    before.runtime.submit(send)
    before.run()
    before.wait(5 * MINUTE)
    assert (
        fragment.engine is None and fragment.counts is not None and fragment.counts[1].active == 1
    )

    bed = started(before.store, topic({}))
    engine = bed.fragment.engine
    assert engine is not None
    assert engine.ledger.count(subqueue_of(1)) == engine.ledger.size_bytes == 0


def test_an_engine_that_was_not_looked_at_yet_is_not_forgotten_with_work_to_do() -> None:
    policy = Policy(forward_to=Destination((ELSEWHERE,)))
    store = rested()
    bed = Bed(store=store)
    bed.fragments, bed.fragment = [fragment := LoadedFragment(1, 0, 0, "q1", policy)], fragment
    bed.runtime.wake(fragment)
    while fragment.engine is None:
        if bed.machine.ready:
            bed.machine.run_one()
        elif bed.thread.calls:
            bed.thread.run_one()
        else:
            bed.thread.answer_one(in_order=True)
    assert not fragment.chores, "its first turn is still to come"
    assert not at_rest(fragment, bed.machine.now)
