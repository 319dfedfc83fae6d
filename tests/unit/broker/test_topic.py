"""A topic's rules: who gets what, in which commit, and what stays when a process dies."""

from __future__ import annotations

from functools import partial

import pytest

from postbus.broker import chores, records, topic
from postbus.broker.destination import Destination
from postbus.broker.index_pages import BodyPage, Pages, PinnedPage
from postbus.broker.message import COPY_BYTES, PUBLISHING, SCHEDULED, Message
from postbus.broker.policy import Policy
from postbus.broker.record_kinds import RecordKind
from postbus.broker.subqueue_numbers import DEAD_LETTER, owner_of, subqueue_of
from postbus.broker.topic import Copy, Sorted, fan_out
from postbus.broker.window_budget import WindowBudget
from postbus.errors import EntityDisabled, EntityNotFound, QuotaExceeded
from postbus.store import batch
from tests.support.topics import Place, Sorter


def topic_with(*owners: int, policy: Policy | None = None, checkpoint_every: int = 0) -> Place:
    place = Place(policy=policy, matcher=Sorter(), checkpoint_every=checkpoint_every)
    for owner in owners:
        place.subscribe(owner)
    return place


def test_copies_are_made_in_one_commit_and_share_one_body() -> None:
    place = topic_with(1, 2, 3)
    place.publish("a")
    [stored] = place.store.read(place.fragment, 0, 1 << 20)
    assert stored.data.count(b"a:body") == 1
    for owner in (1, 2, 3):
        [copy] = place.rows(owner)
        assert place.body(copy) == b"a:body"
        taken = place.at(owner).take(subqueue_of(owner), 1, place.now)
        assert taken is not None and taken[1] == b"a:body"


def test_copies_have_numbers_of_their_own_and_remember_that_of_their_message() -> None:
    place = topic_with(1, 2)
    [number] = place.publish("a")
    copies = [place.rows(owner)[0] for owner in (1, 2)]
    assert len({number, *(copy.number for copy in copies)}) == 3
    assert [copy.enqueue_number for copy in copies] == [number, number]


def test_a_message_for_nobody_is_taken_and_leaves_nothing() -> None:
    place = topic_with()
    assert place.publish("a") == [1]
    assert place.queue.ledger.size_bytes == 0 and not any(place.queue.ledger.counts.values())


@pytest.mark.interpreted_only
@pytest.mark.parametrize("checkpoint_every", [0, 1, 3])
@pytest.mark.parametrize("crash_after", range(12))
def test_copies_made_in_slices_survive_a_crash_between_every_two(
    crash_after: int, checkpoint_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic, "COPIES_AT_ONCE", 2)
    monkeypatch.setattr(topic, "STAGED_ROWS", 2)
    owners = range(1, 6)
    place = topic_with(*owners, checkpoint_every=checkpoint_every)
    place.publish("a", "b")
    place.publish("c")
    assert place.names(lane=PUBLISHING) == ["a", "b", "c"]
    slices = 0
    while place.spread_slice():
        slices += 1
        if slices == crash_after:
            place.crash()
    assert slices >= 8, "15 copies, two at a time"
    for owner in owners:
        assert place.names(owner) == ["a", "b", "c"]
    assert place.names(lane=PUBLISHING) == []


@pytest.mark.interpreted_only
def test_what_comes_behind_a_kept_message_waits_though_it_would_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic, "COPIES_AT_ONCE", 2)
    place = topic_with(1, 2, 3)
    assert place.matcher is not None
    place.matcher.rules[2] = place.matcher.rules[3] = lambda m: _unless(m.message_id, "b")
    place.publish("a")
    place.publish("b")
    assert place.names(1) == []
    place.spread()
    assert place.names(1) == ["a", "b"]


@pytest.mark.interpreted_only
def test_no_more_bodies_are_read_than_a_turn_can_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic, "COPIES_AT_ONCE", 6)
    place = topic_with(*range(1, 8))
    names = [str(each) for each in range(40)]
    place.publish(*names)
    kept = place.engine.topic
    assert kept is not None
    read: list[int] = []
    for _ in range(60):
        pages = Pages()
        place.paged(partial(fan_out, kept, place.queue), pages)
        read.append(sum(isinstance(page, BodyPage) for page in pages._loaded))
        # The second half is for one subscription only, and more of it fits into a turn.
        if place.matcher is not None and len(place.names(7)) >= 20:
            for owner in range(2, 8):
                place.matcher.rules[owner] = lambda _: []
    assert not kept.behind
    assert place.names(1) == names and place.names(7) == names[:20]
    assert max(read[:20]) <= 2 and 5 <= max(read) <= 7


def test_a_turn_without_room_reads_nothing() -> None:
    place = topic_with(1)
    kept = place.engine.topic
    assert kept is not None
    kept.room = 0
    assert fan_out(kept, place.queue, Pages()) is None


@pytest.mark.interpreted_only
@pytest.mark.parametrize("comes", ["sent", "due", "forwarded"])
@pytest.mark.parametrize("checkpoint_every", [0, 1])
def test_a_subscription_gets_nothing_that_was_there_before_it(
    comes: str, checkpoint_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic, "COPIES_AT_ONCE", 1)
    place = topic_with(1, 2, checkpoint_every=checkpoint_every)
    if comes == "due":
        place.publish("a", scheduled_at=place.now + 10)
        place.now += 10
        place.paged(partial(chores.activate, place.engine, place.now, place.now))
    elif comes == "forwarded":
        source = Place(place.store, 1, Policy(forward_to=Destination((place.fragment,))))
        source.publish("a")
        source.ship_to(place)
    else:
        place.publish("a")
    assert place.names(lane=PUBLISHING) == ["a"]
    place.subscribe(3)
    place.publish("b")
    place.crash()
    place.spread()
    assert [place.names(owner) for owner in (1, 2, 3)] == [["a", "b"], ["a", "b"], ["b"]]


def _unless(name: str, unwanted: str) -> list[Copy]:
    return [] if name == unwanted else [Copy(2)]


@pytest.mark.interpreted_only
def test_a_subscription_with_several_copies_gets_them_in_one_slice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic, "COPIES_AT_ONCE", 1)
    place = topic_with(1)
    place.subscribe(2, rule=lambda _: [Copy(2), Copy(2, properties=b"changed")])
    place.publish("a")
    place.spread_slice()
    place.spread_slice()
    assert [copy.properties for copy in place.rows(2)] == [None, b"changed"]
    assert place.names(lane=PUBLISHING) == []


def test_a_scheduled_message_is_published_when_it_is_due_and_not_before() -> None:
    place = topic_with(1)
    place.publish("a", scheduled_at=place.now + 1_000)
    place.publish("b", scheduled_at=place.now + 2_000)
    [_, cancelled] = place.rows(lane=SCHEDULED)
    place.cancel(cancelled.number)
    place.wait(999)
    place.crash()
    assert place.names(1) == []
    place.wait(1)
    place.spread()
    [copy] = place.rows(1)
    assert copy.message_id == "a" and copy.enqueued_at == place.now
    place.wait(5_000)
    place.spread()
    assert place.names(1) == ["a"] and place.names(lane=SCHEDULED) == []


def test_a_new_subscription_gets_what_is_published_from_then_on() -> None:
    place = topic_with(1)
    place.publish("a")
    place.subscribe(2)
    place.publish("b")
    assert (place.names(1), place.names(2)) == (["a", "b"], ["b"])


@pytest.mark.interpreted_only
@pytest.mark.parametrize("checkpoint_every", [0, 1, 5])
@pytest.mark.parametrize("crash_after", range(5))
def test_what_a_removed_subscription_leaves_is_purged_though_the_process_dies(
    crash_after: int, checkpoint_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chores, "SLICE", 2)
    place = topic_with(1, 2, checkpoint_every=checkpoint_every)
    place.publish(*"abcde")
    taken = place.turn(lambda: place.at(1).take(subqueue_of(1), 1, place.now))
    assert taken is not None and taken[0].token is not None
    token = taken[0].token
    place.turn(lambda: place.at(1).dead_letter(token, place.now))
    place.unsubscribe(1)
    slices = 0
    if crash_after == 0:
        place.crash()
    while place.purge_slice():
        slices += 1
        if slices == crash_after:
            place.crash()
        assert slices < 20, "it comes to an end"
    assert place.names(1) == [] and place.names(1, DEAD_LETTER) == []
    assert place.names(2) == list("abcde")
    assert place.queue.ledger.size_bytes == sum(copy.charge for copy in place.rows(2))
    place.crash()
    assert not place.engine.removed
    with pytest.raises(EntityNotFound):
        place.engine.at(subqueue_of(1))


def test_a_purge_that_another_has_finished_is_finished_too() -> None:
    place = topic_with(1)
    place.publish("a")
    place.unsubscribe(1)
    while place.purge_slice():
        pass
    assert chores.purge(place.engine, 1, Pages()) is None


def test_bodies_that_are_copied_forward_stay_shared() -> None:
    place = topic_with(1, 2, 3)
    place.publish("a")
    place.publish("b")
    place.commit(checkpoint=True)
    head = place.queue.ledger.head
    pages = Pages()
    lanes = [
        place.store.index.load_lane(place.fragment, subqueue_of(n), 0, 0, 9) for n in (1, 2, 3)
    ]
    pages.add(PinnedPage(head, 9), [row for lane in lanes for row in lane])
    place.paged(lambda pages: chores.copy_forward(place.engine, head, 9, pages), pages)
    place.crash()
    copies = [copy for owner in (1, 2, 3) for copy in place.rows(owner)]
    assert [place.body(copy) for copy in copies] == [b"a:body", b"b:body"] * 3
    assert all(copy.base >= head for copy in copies)
    assert len({(copy.base, copy.position) for copy in copies}) == 2, "one body for each message"


@pytest.mark.parametrize("checkpoint_every", [0, 1])
@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2), (2, 3, 1)])
def test_a_topic_counts_no_less_than_the_bodies_it_keeps_whoever_goes_first(
    order: tuple[int, ...], checkpoint_every: int
) -> None:
    place = topic_with(1, 2, 3, checkpoint_every=checkpoint_every)
    large = Message(bytes(3_000), "a")
    place.turn(lambda: place.engine.send([large], place.now))
    place.publish("b")
    left = [1, 2, 3]
    for owner in order:
        # Any one of them keeps the whole body, and each small copy has a row.
        assert place.queue.ledger.size_bytes == len(left) * (3_000 + COPY_BYTES)
        place.crash()
        assert place.queue.ledger.size_bytes == len(left) * (3_000 + COPY_BYTES)
        place.unsubscribe(owner)
        while place.purge_slice():
            pass
        left.remove(owner)
    assert place.queue.ledger.size_bytes == 0
    place.crash()
    assert place.queue.ledger.size_bytes == 0


def test_the_shorter_time_to_live_counts_of_topic_subscription_and_message() -> None:
    place = topic_with(1, policy=Policy(default_ttl_ms=5_000))
    place.subscribe(2, Policy(default_ttl_ms=1_000))
    place.publish("a")
    place.publish("b", ttl=300)
    assert [copy.ttl for copy in place.rows(1)] == [5_000, 300]
    assert [copy.ttl for copy in place.rows(2)] == [1_000, 300]


def test_a_filter_that_fails_makes_a_dead_letter_or_nothing() -> None:
    place = topic_with(1)
    failure = ("FilterFailed", "no such property")
    place.subscribe(2, rule=lambda _: [Copy(2, failure=failure)])
    place.subscribe(
        3, Policy(dead_letter_on_filter_errors=False), lambda _: [Copy(3, failure=failure)]
    )
    place.publish("a")
    [dead] = place.rows(2, DEAD_LETTER)
    assert (dead.reason, dead.description) == failure
    assert place.names(1) == ["a"]
    assert place.names(2) == place.names(3) == place.names(3, DEAD_LETTER) == []


def test_a_copy_whose_headers_grow_too_large_is_a_dead_letter() -> None:
    place = topic_with()
    place.subscribe(1, Policy(header_size_max=100), lambda _: [Copy(1, header_size=101)])
    place.subscribe(2, Policy(header_size_max=100), lambda _: [Copy(2, header_size=100)])
    place.publish("a")
    [dead] = place.rows(1, DEAD_LETTER)
    assert dead.reason == "HeaderSizeExceeded"
    assert place.names(2) == ["a"]


def test_a_full_or_disabled_topic_takes_none_of_a_batch() -> None:
    place = topic_with(1, policy=Policy(size_bytes_max=10))
    with pytest.raises(QuotaExceeded):
        place.publish("a", "b")
    place.update(Policy(sends=False))
    with pytest.raises(EntityDisabled):
        place.publish("a")
    assert place.names(1) == [] and place.queue.ledger.size_bytes == 0


def test_what_an_action_changed_is_there_after_a_restart() -> None:
    place = topic_with()
    changed = Copy(1, b"envelope", b"properties", b"annotations", "other", "session", "key", 77, 9)
    place.subscribe(1, rule=lambda _: [changed])
    place.publish("a")
    for _ in range(2):
        [copy] = place.rows(1)
        assert copy.trail is not None
        assert (copy.trail.envelope, copy.properties) == (b"envelope", b"properties")
        assert copy.trail.annotations == b"annotations"
        assert (copy.message_id, copy.session_id, copy.ttl) == ("other", "session", 77)
        assert copy.partition_key == "key"
        place.commit(checkpoint=True)
        place.crash()


@pytest.mark.interpreted_only
def test_a_kept_message_whose_first_page_is_all_spread_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is done with stays in the index until the next checkpoint."""
    monkeypatch.setattr(topic, "COPIES_AT_ONCE", 1)
    monkeypatch.setattr(topic, "STAGED_ROWS", 1)
    place = topic_with(1, 2)
    place.publish(*"abc")
    place.commit(checkpoint=True)
    place.spread_slice()
    place.spread_slice()
    place.crash()
    place.spread()
    assert place.names(1) == place.names(2) == ["a", "b", "c"]


def test_records_say_which_subscription_they_are_about() -> None:
    place = topic_with(5)
    place.publish("a")
    [stored] = place.store.read(place.fragment, 0, 1 << 20)
    read = [records.decode(data) for _, data in batch.records(stored.data)]
    assert [(record.kind, owner_of(record.message.subqueue)) for record in read] == [
        (RecordKind.PUBLISHED, 0),
        (RecordKind.DISTRIBUTED, 5),
    ]


@pytest.mark.interpreted_only
def test_many_sends_of_one_turn_make_no_more_copies_than_a_turn_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic, "COPIES_AT_ONCE", 4)
    place = topic_with(1, 2)

    def sends() -> None:
        for name in "abcdef":
            place.engine.send([Message(b"body", name)], place.now)

    place.turn(sends)
    assert place.names(1) == ["a", "b"] and place.names(lane=PUBLISHING) == list("cdef")
    place.spread()
    assert place.names(1) == place.names(2) == list("abcdef")


@pytest.mark.interpreted_only
def test_messages_that_match_nobody_cost_what_looking_at_them_costs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic, "COPIES_AT_ONCE", 10)
    place = topic_with()
    assert place.matcher is not None
    place.matcher.cost = 5
    place.publish(*"abcd")
    assert place.names(lane=PUBLISHING) == ["c", "d"], "two were looked at"
    place.spread()
    assert place.names(lane=PUBLISHING) == []


def test_the_windows_of_many_subscriptions_are_filled_no_further_than_the_budget() -> None:
    place = topic_with(*range(1, 101))
    place.publish(*(f"m{number}" for number in range(300)))
    place.spread()
    place.commit(checkpoint=True)
    place.limits = WindowBudget(0)
    place.crash()
    main = subqueue_of(1)
    place.paged(lambda pages: chores.refill(place.at(1), main, pages))
    assert len(place.at(1).windows[main].live) <= 64


class Slow(Sorter):
    """Makes one copy of the message `first` at a time, and all of any other."""

    def copies(self, message: Message, raw: bytes, after: int = 0) -> Sorted:
        found, _ = super().copies(message, raw)
        if message.message_id != "first":
            return Sorted(found, True)
        left = [copy for copy in found if copy.owner > after]
        return Sorted(left[:1], len(left) <= 1)


def test_none_overtakes_a_message_whose_copies_take_several_turns() -> None:
    topic = Place(matcher=Slow())
    for owner in (1, 2, 3):
        topic.subscribe(owner)
    topic.publish("first", "second")
    topic.spread()
    assert [topic.names(owner) for owner in (1, 2, 3)] == [["first", "second"]] * 3
