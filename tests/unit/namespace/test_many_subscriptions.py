"""A turn costs by what has come up in it, not by how many subscriptions a topic has."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from postbus.broker import chores, session_operations
from postbus.broker.destination import Destination
from postbus.broker.message import OUTBOX, Message
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import MAIN, subqueue_of
from postbus.runtime import dispatch, sessions
from postbus.runtime.dispatch import serve
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.receivers import OutgoingMessage
from postbus.runtime.turn import Turn
from tests.support.topics import Place, Sorter

END = 99


class Crowd:
    """A topic, most of whose subscriptions are received from or forward."""

    def __init__(self, subscriptions: int, policy: Policy) -> None:
        self.place = Place(matcher=Sorter())
        for owner in range(1, subscriptions + 1):
            self.place.subscribe(owner, policy)
        self.fragment = LoadedFragment(self.place.fragment, 0, 0, "topic", Policy())
        self.fragment.engine = self.place.engine
        self.told: list[int] = []
        self.fragment.on_outbox = self.told.append

    def only(self, owner: int) -> None:
        """Have this one get what is published, and no other."""
        matcher = self.place.matcher
        assert matcher is not None
        for each in matcher.rules:
            matcher.rules[each] = None if each == owner else lambda _: []

    def receive_everywhere(self) -> None:
        for owner in self.place.engine.queues:
            self.place.engine.set_receivers(subqueue_of(owner), 1)

    def turn(self) -> list[str]:
        """Returns the chores that have come up."""
        turn = Turn(1, 0, self.place.now)
        found = self.place.turn(lambda: serve(self.fragment, turn))
        for _, output in [*turn.at_once, *turn.outputs]:
            output()
        self.place.engine.next_deadline()
        return [chore._name for chore in found]  # type: ignore[attr-defined]

    def lines_of_a_turn(self) -> int:
        """Lines of code that a turn takes."""
        lines = 0

        def count(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal lines
            lines += event == "line"
            return count

        before = sys.gettrace()
        sys.settrace(count)
        try:
            self.turn()
        finally:
            sys.settrace(before)
        return lines


@pytest.mark.interpreted_only
@pytest.mark.parametrize(
    "policy", [Policy(), Policy(forward_to=Destination((END,)))], ids=["received", "forward"]
)
def test_a_turn_with_one_message_costs_the_same_in_a_crowd(policy: Policy) -> None:
    costs: list[int] = []
    for subscriptions in (3, 300):
        crowd = Crowd(subscriptions, policy)
        crowd.receive_everywhere()
        crowd.place.publish("a", ttl=60_000)
        crowd.turn()
        for owner in crowd.place.engine.queues:
            if owner:
                crowd.place.at(owner).take(subqueue_of(owner), 1, crowd.place.now)
        crowd.turn()
        crowd.only(2)
        crowd.place.publish("b", ttl=60_000)
        costs.append(crowd.lines_of_a_turn())
    assert costs[1] <= costs[0] + 10


def test_a_courier_is_told_of_an_outbox_when_something_was_added_and_not_in_every_turn() -> None:
    crowd = Crowd(3, Policy(forward_to=Destination((END,))))
    crowd.place.publish("a")
    crowd.turn()
    assert crowd.told == [subqueue_of(owner) for owner in (1, 2, 3)]
    crowd.turn()
    assert len(crowd.told) == 3
    crowd.only(2)
    crowd.place.publish("b")
    crowd.turn()
    assert crowd.told[3:] == [subqueue_of(2)]
    crowd.place.crash()
    crowd.fragment.engine = crowd.place.engine
    crowd.told.clear()
    crowd.turn()
    assert sorted(crowd.told) == [subqueue_of(owner) for owner in (1, 2, 3)], "none is left behind"


def test_every_queue_with_expired_messages_is_swept_when_somebody_receives_from_it() -> None:
    crowd = Crowd(3, Policy())
    crowd.place.publish("a", ttl=10)
    crowd.receive_everywhere()
    crowd.place.engine.set_receivers(subqueue_of(3), 0)
    assert crowd.turn() == []
    assert crowd.place.engine.next_deadline() == crowd.place.now + 10
    crowd.place.now += 10
    assert crowd.turn() == ["sweep 1", "sweep 2"]
    assert crowd.turn() == [], "they are under way"
    for owner in (1, 2):
        queue, now = crowd.place.at(owner), crowd.place.now
        crowd.place.paged(lambda pages, queue=queue, now=now: chores.sweep(queue, now, now, pages))
    crowd.fragment.chores.clear()
    assert crowd.turn() == []
    assert [crowd.place.names(owner) for owner in (1, 2, 3)] == [[], [], ["a"]]
    crowd.place.engine.set_receivers(subqueue_of(3), 1)
    assert crowd.turn() == ["sweep 3"]


def test_locks_end_wherever_they_are() -> None:
    crowd = Crowd(3, Policy(lock_ms=1_000))
    crowd.place.publish("a")
    for owner in (1, 3):
        assert crowd.place.at(owner).take(subqueue_of(owner), 1, crowd.place.now)
        crowd.place.now += 100
    assert crowd.place.engine.next_deadline() == crowd.place.now + 800
    crowd.place.now += 800
    crowd.turn()
    assert not crowd.place.at(1).locks and crowd.place.at(3).locks
    crowd.place.now += 100
    crowd.turn()
    assert not crowd.place.engine.holds_locks


def test_what_becomes_ready_in_a_queue_that_forwards_sets_out_later_too() -> None:
    crowd = Crowd(1, Policy())
    place, queue = crowd.place, crowd.place.at(1)
    place.publish("a")
    taken = place.turn(lambda: queue.take_and_delete(queue.main, place.now))
    assert taken is not None
    place.update(Policy(forward_to=Destination((END,))), owner=1)
    assert crowd.turn() == [] and crowd.turn() == []
    # It was for somebody who had gone.
    place.turn(lambda: queue.put_back(*taken))
    assert crowd.turn() == [f"divert {subqueue_of(1)}"]
    place.divert(1)
    assert place.names(1, MAIN, OUTBOX) == ["a"]


class Greedy:
    """A receiver with credit for all there is."""

    deletes = True
    holder = 1
    draining = False

    def __init__(self) -> None:
        self.reserved: list[str] = []

    def capacity(self) -> int:
        return 1_000

    def reserve(self, message: Message, raw: bytes) -> OutgoingMessage:
        self.reserved.append(message.message_id)
        return OutgoingMessage(message, raw, None)

    def deliver(self, messages: list[OutgoingMessage]) -> None: ...

    def drained(self) -> None: ...

    def holds_in(self, waiters: object) -> None: ...


@pytest.mark.interpreted_only
def test_a_turn_hands_out_so_many_over_all_lines_and_all_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "GIVEN_PER_TURN", 10)
    crowd = Crowd(4, Policy())
    crowd.place.publish(*(str(number) for number in range(25)))
    receivers = {owner: Greedy() for owner in range(1, 5)}
    for owner, receiver in receivers.items():
        crowd.fragment.receivers_of(subqueue_of(owner)).join(receiver)
        crowd.fragment.receivers_of(subqueue_of(owner)).wants(receiver)
    totals: list[int] = []
    while not totals or totals[-1] < 100:
        crowd.turn()
        totals.append(sum(len(each.reserved) for each in receivers.values()))
        assert len(totals) <= 12
        if len(totals) == 4:
            assert [len(each.reserved) for each in receivers.values()] == [10] * 4
    assert totals[:10] == list(range(10, 101, 10))
    assert all(each.reserved == [str(n) for n in range(25)] for each in receivers.values())


@pytest.mark.interpreted_only
def test_sessions_share_what_a_turn_hands_out_and_all_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "GIVEN_PER_TURN", 10)
    crowd = Crowd(4, Policy(requires_session=True))
    receivers: list[Any] = [Greedy() for _ in range(4)]
    for owner, receiver in enumerate(receivers, 1):
        queue = crowd.place.at(owner)
        receiver.session = session_operations.accept(queue, "s", 1, crowd.place.now)
        line = crowd.fragment.waiters_of(queue.main)
        line.hold(receiver.session, receiver)
        line.wants(receiver)
    messages = [Message(b"body", str(number), "s") for number in range(25)]
    crowd.place.turn(lambda: crowd.place.engine.send(messages, crowd.place.now))
    totals: list[int] = []
    for _ in range(11):
        crowd.turn()
        totals.append(sum(len(each.reserved) for each in receivers))
        if len(totals) == 4:
            assert [len(each.reserved) for each in receivers] == [10] * 4
    assert totals == [*range(10, 101, 10), 100]
