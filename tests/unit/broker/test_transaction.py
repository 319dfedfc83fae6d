"""One transaction on one fragment: all of it in one commit, or nothing (semantics B §7)."""

from __future__ import annotations

import pytest

from postbus.broker import forwarding
from postbus.broker.message import DEFERRED, SCHEDULED, Message, NewProperties
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER, subqueue_of
from postbus.broker.transaction import (
    MESSAGES_MAX,
    SETTLEMENTS_MAX,
    Settlement,
    Transaction,
    Verdict,
)
from postbus.errors import (
    EntityDisabled,
    InvalidOperation,
    MessageLockLost,
    MessageNotFound,
    QuotaExceeded,
    TransactionRolledBack,
)
from postbus.store import batch
from postbus.store.memory.store import MemoryStore
from tests.support.topics import Place, Sorter, outbox

HERE, THERE, ELSEWHERE = 1, 2, 3


def made(*names: str, scheduled_at: int = 0) -> list[Message]:
    return [Message(f"{name}:body".encode(), name, scheduled_at=scheduled_at) for name in names]


def commit(place: Place, transaction: Transaction) -> None:
    place.paged(lambda pages: transaction.commit(place.engine, place.now, pages))


def taken(place: Place, verdict: Verdict = Verdict.COMPLETE) -> Settlement:
    message = place.receive()
    assert message is not None and message.token is not None
    return Settlement(MAIN, message.token, verdict)


def enlist(place: Place, transaction: Transaction, *settlements: Settlement) -> None:
    place.turn(lambda: transaction.settle(place.engine, settlements, place.now))


def test_nothing_is_written_before_the_commit_and_all_of_it_by_one() -> None:
    place = Place()
    place.publish("a")
    [later] = place.publish("later", scheduled_at=place.now + 60_000)
    transaction = Transaction()
    enlist(place, transaction, taken(place))
    transaction.send(place.engine, made("b"))
    transaction.post(place.engine, THERE, made("c"))
    place.paged(lambda pages: transaction.cancel(place.engine, [later], pages))
    head = place.queue.ledger.head
    assert not place.queue.ledger.pending and place.names() == ["a"]

    commit(place, transaction)
    [written] = place.store.read(place.fragment, head, 1 << 20)
    assert batch.unpack(written.data).record_count == 4
    for _ in range(2):
        assert place.names() == ["b"] and place.names(lane=SCHEDULED) == []
        assert outbox(place, kind=TRANSFER_DEAD_LETTER) == ["c"]
        place.crash()


@pytest.mark.parametrize(
    ("verdict", "kind", "lane", "count"),
    [
        (Verdict.ABANDON, MAIN, 0, 1),
        (Verdict.RELEASE, MAIN, 0, 0),
        (Verdict.DEFER, MAIN, DEFERRED, 1),
        (Verdict.DEAD_LETTER, DEAD_LETTER, 0, 0),
    ],
)
def test_a_settlement_does_what_it_does_alone(
    verdict: Verdict, kind: int, lane: int, count: int
) -> None:
    place = Place()
    place.publish("a")
    transaction = Transaction()
    settlement = taken(place, verdict)._replace(
        reason="why",
        description="because",
        rewrite=lambda message, raw: NewProperties(b"new:" + (raw or b""), 4),
    )
    enlist(place, transaction, settlement)
    commit(place, transaction)
    [message] = place.rows(kind=kind, lane=lane)
    assert message.delivery_count == count
    if verdict is not Verdict.RELEASE:
        assert message.properties == b"new:a:body"
    if verdict is Verdict.DEAD_LETTER:
        assert (message.reason, message.description) == ("why", "because")


def test_a_body_that_a_property_change_needs_is_read_first() -> None:
    place = Place(checkpoint_every=1)
    place.publish("a")
    place.crash()
    transaction = Transaction()
    settlement = taken(place, Verdict.ABANDON)._replace(
        rewrite=lambda _, raw: NewProperties(raw or b"none", 6)
    )
    [message] = place.queue.locks.values()
    message.raw = None
    enlist(place, transaction, settlement)
    commit(place, transaction)
    assert place.rows()[0].properties == b"a:body"


def test_a_message_is_in_one_transaction_or_in_none_at_a_time() -> None:
    place = Place()
    place.publish("a")
    first, second = Transaction(), Transaction()
    settlement = taken(place)
    with pytest.raises(InvalidOperation):
        enlist(place, first, settlement, settlement)
    enlist(place, first, settlement)
    for transaction in (first, second):
        with pytest.raises(InvalidOperation):
            enlist(place, transaction, settlement)
    for alone in (place.queue.complete, place.queue.release, place.queue.abandon):
        with pytest.raises(InvalidOperation):
            alone(settlement.token, place.now)
    # Its lock can be renewed, and what is rolled back is free for another.
    place.now += 1
    assert place.queue.renew(settlement.token, place.now) == place.now + 30_000
    first.roll_back(place.engine)
    enlist(place, second, settlement)
    commit(place, second)
    assert place.names() == []


def test_a_lock_runs_out_though_its_message_is_enlisted_and_then_nothing_is_committed() -> None:
    place = Place()
    place.publish("a")
    transaction = Transaction()
    enlist(place, transaction, taken(place))
    transaction.send(place.engine, made("b"))
    place.wait(30_000)
    with pytest.raises(MessageLockLost):
        commit(place, transaction)
    transaction.roll_back(place.engine)
    assert place.names() == ["a"] and place.receive() is not None
    assert not place.engine.shared.enlisted and not place.engine.shared.transactions


def test_an_engine_that_was_loaded_again_knows_nothing_of_the_transaction() -> None:
    place = Place()
    transaction = Transaction()
    transaction.send(place.engine, made("a"))
    place.crash()
    with pytest.raises(TransactionRolledBack):
        transaction.send(place.engine, made("b"))
    with pytest.raises(TransactionRolledBack):
        commit(place, transaction)
    transaction.roll_back(place.engine)
    assert place.names() == []


def test_a_transaction_that_is_over_takes_nothing_more() -> None:
    place = Place()
    for ending in ("commit", "roll back"):
        transaction = Transaction()
        transaction.send(place.engine, made(ending))
        if ending == "commit":
            commit(place, transaction)
        else:
            transaction.roll_back(place.engine)
        with pytest.raises(TransactionRolledBack):
            transaction.send(place.engine, made("late"))
        with pytest.raises(TransactionRolledBack):
            commit(place, transaction)
    assert place.names() == ["commit"]


def test_an_empty_one_is_committed_without_a_record() -> None:
    place = Place()
    transaction = Transaction()
    commit(place, transaction)
    assert place.queue.ledger.head == 0


def test_the_number_of_a_scheduled_message_is_known_before_the_commit_and_holds() -> None:
    place = Place()
    transaction = Transaction()
    at = place.now + 60_000
    numbers = transaction.schedule(place.engine, made("a", "b", scheduled_at=at))
    place.publish("other")
    commit(place, transaction)
    assert [each.number for each in place.rows(lane=SCHEDULED)] == numbers
    assert place.rows()[0].number > max(numbers)
    place.crash()
    place.wait(60_000)
    assert place.names() == ["other", "a", "b"]


def test_one_that_is_due_by_the_time_of_the_commit_comes_behind_the_others() -> None:
    matcher = Sorter()
    place = Place(matcher=matcher)
    place.subscribe(1)
    transaction = Transaction()
    transaction.schedule(place.engine, made("a", scheduled_at=place.now + 10))
    place.publish("other")
    place.now += 20
    commit(place, transaction)
    assert place.names(1) == ["other", "a"]


def test_settlements_in_several_subscriptions_and_a_send_to_their_topic_are_one() -> None:
    matcher = Sorter()
    place = Place(matcher=matcher)
    for owner in (1, 2):
        place.subscribe(owner)
    place.publish("a")
    transaction = Transaction()
    for owner in (1, 2):
        found = place.at(owner).take(subqueue_of(owner), 1, place.now)
        assert found is not None and found[0].token is not None
        settlement = Settlement(subqueue_of(owner), found[0].token, Verdict.COMPLETE)
        enlist(place, transaction, settlement)
    place.turn(lambda: transaction.send(place.engine, made("b")))
    assert (place.names(1), place.names(2)) == (["a"], ["a"])
    commit(place, transaction)
    assert (place.names(1), place.names(2)) == (["b"], ["b"])


def test_a_token_is_of_use_only_in_the_subqueue_of_its_lock() -> None:
    place = Place()
    place.publish("a")
    settlement = taken(place)._replace(subqueue=DEAD_LETTER)
    with pytest.raises(MessageLockLost):
        enlist(place, Transaction(), settlement)


def test_what_is_refused_leaves_the_rest_as_it_was() -> None:
    place = Place(policy=Policy(size_bytes_max=40))
    place.publish("a")
    transaction = Transaction()
    transaction.send(place.engine, made("b", "c"))
    with pytest.raises(QuotaExceeded):
        transaction.send(place.engine, made("d" * 20))
    with pytest.raises(QuotaExceeded):
        transaction.post(place.engine, THERE, made("d" * 20))
    with pytest.raises(MessageNotFound):
        place.paged(lambda pages: transaction.cancel(place.engine, [99], pages))
    commit(place, transaction)
    assert place.names() == ["a", "b", "c"]


def test_the_room_that_a_transaction_was_promised_may_be_gone_by_its_commit() -> None:
    place = Place(policy=Policy(size_bytes_max=30))
    transaction = Transaction()
    transaction.send(place.engine, made("b"))
    transaction.post(place.engine, THERE, made("c"))
    place.publish("other", "others")
    with pytest.raises(QuotaExceeded):
        commit(place, transaction)
    assert place.names() == ["other", "others"] and not outbox(place, kind=TRANSFER_DEAD_LETTER)


def test_a_transaction_has_bounds() -> None:
    place = Place()
    transaction = Transaction()
    transaction.send(place.engine, made(*map(str, range(MESSAGES_MAX - 1))))
    transaction.post(place.engine, THERE, made("x"))
    for one_more in (transaction.send, transaction.schedule):
        with pytest.raises(QuotaExceeded, match="more than 100 messages in a single transaction"):
            one_more(place.engine, made("y"))
    with pytest.raises(QuotaExceeded):
        transaction.post(place.engine, THERE, made("y"))
    many = [Settlement(MAIN, bytes([1]), Verdict.COMPLETE)] * (SETTLEMENTS_MAX + 1)
    with pytest.raises(QuotaExceeded):
        transaction.settle(place.engine, many, place.now)
    with pytest.raises(QuotaExceeded):
        place.paged(lambda pages: transaction.cancel(place.engine, range(2_049), pages))


# -- sent through ------------------------------------------------------------------------------


def town() -> tuple[Place, Place, Place]:
    store = MemoryStore()
    return Place(store, HERE), Place(store, THERE), Place(store, ELSEWHERE)


def posted(place: Place, *letters: tuple[int, str]) -> None:
    transaction = Transaction()
    for destination, name in letters:
        transaction.post(place.engine, destination, made(name))
    commit(place, transaction)


def test_an_outbox_with_several_destinations_is_emptied_one_by_one() -> None:
    here, there, elsewhere = town()
    posted(here, (THERE, "a"), (ELSEWHERE, "b"), (THERE, "c"), (ELSEWHERE, "d"))
    shipment = here.collect(TRANSFER_DEAD_LETTER)
    assert shipment is not None
    assert [message.message_id for message, _ in shipment.messages] == ["a", "c"]
    receipt = there.accept(here, TRANSFER_DEAD_LETTER, shipment)
    there.commit()
    here.settle(TRANSFER_DEAD_LETTER, shipment, receipt)
    assert here.ship_to(elsewhere, TRANSFER_DEAD_LETTER) == 1
    assert (there.names(), elsewhere.names()) == (["a", "c"], ["b", "d"])
    assert here.queue.ledger.size_bytes == 0
    [first, _] = there.rows()
    assert first.trail is not None and first.trail.hops == 0


@pytest.mark.interpreted_only
@pytest.mark.parametrize("checkpoint_every", [0, 1])
def test_a_destination_that_is_passed_over_does_not_hold_the_others_up(
    checkpoint_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "SHIPPED_AT_ONCE", 3)
    here, _, elsewhere = town()
    here.checkpoint_every = checkpoint_every
    posted(here, *[(THERE, f"full{n}") for n in range(10)], (ELSEWHERE, "passes"))
    here.crash()
    found = here.collect_but(TRANSFER_DEAD_LETTER, THERE)
    assert found is not None
    assert [message.message_id for message, _ in found.messages] == ["passes"]
    receipt = elsewhere.accept(here, TRANSFER_DEAD_LETTER, found)
    here.settle(TRANSFER_DEAD_LETTER, found, receipt)
    assert len(outbox(here, kind=TRANSFER_DEAD_LETTER)) == 10
    assert here.collect_but(TRANSFER_DEAD_LETTER, THERE) is None
    assert TRANSFER_DEAD_LETTER in here.engine.shared.outboxes


def test_what_its_destination_refuses_is_kept_with_the_reason() -> None:
    here, there, _ = town()
    there.update(Policy(sends=False))
    posted(here, (THERE, "a"))
    here.ship_to(there, TRANSFER_DEAD_LETTER)
    here.crash()
    [message] = here.rows(kind=TRANSFER_DEAD_LETTER)
    assert message.reason == "EntityDisabled" and "disabled" in (message.description or "")
    assert not here.engine.shared.outboxes and here.names(kind=DEAD_LETTER) == []
    assert here.receive_and_delete(TRANSFER_DEAD_LETTER) == b"a:body"


def test_one_that_is_scheduled_is_so_at_its_destination() -> None:
    here, there, _ = town()
    transaction = Transaction()
    transaction.post(here.engine, THERE, made("a", scheduled_at=here.now + 500))
    commit(here, transaction)
    here.ship_to(there, TRANSFER_DEAD_LETTER)
    there.crash()
    assert there.names(lane=SCHEDULED) == ["a"] and there.names() == []
    there.wait(500)
    assert there.names() == ["a"]


def test_an_entity_that_takes_no_messages_can_be_sent_through() -> None:
    here, there, _ = town()
    here.update(Policy(sends=False))
    posted(here, (THERE, "a"))
    here.ship_to(there, TRANSFER_DEAD_LETTER)
    assert there.names() == ["a"]
    with pytest.raises(EntityDisabled):
        Transaction().send(here.engine, made("b"))


@pytest.mark.parametrize("step", ["collected", "taken in", "arrived", "told"])
def test_it_arrives_once_whatever_dies_on_the_way(step: str) -> None:
    here, there, _ = town()
    posted(here, (THERE, "a"), (THERE, "b"))
    shipment = here.collect(TRANSFER_DEAD_LETTER)
    assert shipment is not None
    if step == "collected":
        here.crash()
        shipment = here.collect(TRANSFER_DEAD_LETTER)
        assert shipment is not None
    receipt = there.accept(here, TRANSFER_DEAD_LETTER, shipment)
    if step != "taken in":
        there.commit()
    there.crash()
    if step == "told":
        here.settle(TRANSFER_DEAD_LETTER, shipment, receipt)
    here.crash()
    here.ship_to(there, TRANSFER_DEAD_LETTER)
    assert there.names() == ["a", "b"] and outbox(here, kind=TRANSFER_DEAD_LETTER) == []
