"""What a message carries beside its body is bounded and counted: on every path, in every subqueue.

Each path changes the properties of one message again and again, by a new property each time, as a
client can that has no right but to listen. Whatever happens, no message may have larger headers
than its entity allows, the size of the entity is the sum of what is kept, and a replay of the
journal says the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from postbus.amqp.sections import encode_application_properties, encode_data
from postbus.broker import browse
from postbus.broker.destination import Destination
from postbus.broker.index_pages import Need, Pages
from postbus.broker.message import LANES, OUTBOX, Message, NewProperties
from postbus.broker.policy import Policy
from postbus.broker.records import decode
from postbus.broker.resubmission import Back, Outcome, Repair, Result, resubmit
from postbus.broker.rewrite_bound import VALUES_MAX
from postbus.broker.send_via import send_through
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER
from postbus.broker.transaction import Transaction
from postbus.errors import EntityDisabled, MessageSizeExceeded
from postbus.gateway.settlement import bodies_needed, rewritten, settle_with
from postbus.gateway.transactions.enlisting import settlements_of
from postbus.messages.envelope import Changes, read_message
from postbus.model.plain_message import Edits
from postbus.namespace.dead_letter_edits import Revision
from postbus.store import batch
from tests.support.topics import Place

HEADERS_MAX = 1_000
NEW = 300
TIMES = 12
SUBQUEUES = [MAIN, DEAD_LETTER, TRANSFER_DEAD_LETTER]
ELSEWHERE = 9

Change = Callable[[Place, int, Message, Changes], None]


def sent(place: Place, subqueue: int) -> None:
    """One message in a subqueue, whatever brings one there."""
    made = read_message(encode_application_properties({"a": 1}) + encode_data(b"tea"), 1 << 20)
    if subqueue == TRANSFER_DEAD_LETTER:
        place.turn(lambda: send_through(place.engine, ELSEWHERE, [made], place.now))
        shipment = place.collect(TRANSFER_DEAD_LETTER)
        assert shipment is not None
        number = shipment.messages[0][0].number
        place.return_one(subqueue, number, EntityDisabled("there", "Send"))
        return
    place.send_messages(made)
    if subqueue == DEAD_LETTER:
        message = place.receive()
        assert message is not None
        place.dead_letter(message, "why")


def alone(place: Place, subqueue: int, message: Message, changes: Changes) -> None:
    """By a disposition, or by a request to the management node."""
    token = message.token
    assert token is not None
    queue, now = place.queue, place.now

    def settle(pages: Pages) -> Need | None:
        need = bodies_needed(queue, [token], now, pages)
        if need is not None:
            return need
        properties = rewritten(queue, token, changes, now, pages)
        settle_with(queue, token, changes, now, properties)
        return None

    place.paged(settle)


def together(place: Place, subqueue: int, message: Message, changes: Changes) -> None:
    """By a transaction."""
    token = message.token
    assert token is not None
    transaction = Transaction()
    settlements, _ = settlements_of(subqueue, [token], changes, 1 << 20)
    transaction.settle(place.engine, settlements, place.now)
    try:
        place.paged(lambda pages: transaction.commit(place.engine, place.now, pages))
    except MessageSizeExceeded:
        transaction.roll_back(place.engine)
        raise


def check(place: Place) -> None:
    """Nothing is too large, all is counted, and the journal says so too."""
    size = 0
    for subqueue in SUBQUEUES:
        for lane in LANES:
            for row in place.rows(kind=subqueue, lane=lane):
                properties = row.properties or b""
                assert row.header_size <= HEADERS_MAX and len(properties) <= HEADERS_MAX
                texts = (row.reason, row.description, row.source)
                size += row.length + len(properties) + sum(len(text or "") for text in texts)
    assert place.queue.ledger.size_bytes == size


def held(place: Place, subqueue: int) -> Message | None:
    message = place.receive(subqueue)
    deferred = place.names(kind=subqueue, lane=1)
    if message is None and deferred:
        [row] = place.rows(kind=subqueue, lane=1)
        [(message, _)] = place.paged(
            lambda pages: browse.receive_deferred(
                place.queue, subqueue, [row.number], False, 1, place.now, pages
            )
        )
    return message


@pytest.mark.parametrize("checkpoint_every", [0, 1, 3])
@pytest.mark.parametrize("subqueue", SUBQUEUES)
@pytest.mark.parametrize("verdict", ["abandon", "defer", "dead letter"])
@pytest.mark.parametrize("change", [alone, together])
def test_properties_are_bounded_and_counted_on_every_path_in_every_subqueue(
    change: Change, verdict: str, subqueue: int, checkpoint_every: int
) -> None:
    """R-DLQ-05"""
    policy = Policy(header_size_max=HEADERS_MAX, max_delivery_count=100)
    place = Place(policy=policy, checkpoint_every=checkpoint_every)
    sent(place, subqueue)
    check(place)
    refused = 0
    for n in range(TIMES):
        message = held(place, subqueue)
        if message is None:
            break  # it is a dead letter by now
        changes = Changes(
            dead_letter=verdict == "dead letter" and subqueue == MAIN,
            defer=verdict == "defer",
            reason="r" * 50,
            properties={f"p{n}": "x" * NEW},
        )
        token = message.token
        try:
            change(place, subqueue, message, changes)
        except MessageSizeExceeded:
            refused += 1
            assert message.token == token, "it stays locked"
            place.complete(message) if refused == 3 else place.turn(
                lambda message=message: place.queue.release(message.token, place.now)  # type: ignore[misc]
            )
        check(place)
        before = place.queue.ledger.size_bytes
        place.crash()
        check(place)
        assert place.queue.ledger.size_bytes == before
    if subqueue == MAIN:
        [dead] = place.rows(kind=DEAD_LETTER)
        assert dead.reason == ("r" * 50 if verdict == "dead letter" else "HeaderSizeExceeded")
        place.receive_and_delete(DEAD_LETTER)
    else:
        assert refused == 3
    assert place.queue.ledger.size_bytes == 0


def test_records_of_one_message_do_not_grow_with_the_number_of_changes() -> None:
    place = Place(policy=Policy(header_size_max=HEADERS_MAX))
    sent(place, DEAD_LETTER)
    written = place.queue.ledger.head
    for n in range(200):
        message = place.receive(DEAD_LETTER)
        assert message is not None
        try:
            alone(place, DEAD_LETTER, message, Changes(properties={f"p{n % 3}": "x" * NEW}))
        except MessageSizeExceeded:
            pytest.fail("three of them fit")
    sizes = [
        len(record)
        for stored in place.store.read(place.fragment, written, 1 << 24)
        for _, record in batch.records(stored.data)
    ]
    assert len(sizes) == 200 and max(sizes) < HEADERS_MAX + 300


def test_a_dead_letter_that_is_forwarded_or_sent_again_keeps_to_the_bound_and_is_counted() -> None:
    policy = Policy(header_size_max=HEADERS_MAX)
    place = Place(policy=policy)
    there = Place(place.store, ELSEWHERE, policy)
    sent(place, DEAD_LETTER)
    for n in range(3):
        message = place.receive(DEAD_LETTER)
        assert message is not None
        alone(place, DEAD_LETTER, message, Changes(properties={f"p{n}": "x" * NEW}))
    place.update(policy._replace(forward_dead_letters_to=Destination((ELSEWHERE,))))
    place.divert()
    assert place.names(kind=DEAD_LETTER, lane=OUTBOX)
    check(place)
    place.ship_to(there, DEAD_LETTER)
    assert place.queue.ledger.size_bytes == 0
    check(there)
    # There its headers are what they were here, and not what they were when it was sent.
    message = there.receive()
    assert message is not None and message.header_size > 3 * NEW
    alone(there, MAIN, message, Changes(properties={"p3": "x" * NEW}))
    [dead] = there.rows(kind=DEAD_LETTER)
    assert dead.reason == "HeaderSizeExceeded"
    check(there)
    larger = Revision(Edits(properties={"more": "x" * NEW}), 1 << 20)
    as_it_is = Revision(Edits(), 1 << 20)
    for revise, outcome in ((larger, Outcome.REFUSED), (as_it_is, Outcome.MOVED)):
        repair = Repair(dead.number, revise)
        [result] = there.paged(partial(sent_again, there, repair))
        assert result.outcome is outcome
        check(there)
        size = there.queue.ledger.size_bytes
        there.crash()
        assert there.queue.ledger.size_bytes == size


def sent_again(place: Place, repair: Repair, pages: Pages) -> list[Result] | Need:
    target = Back(place.queue, place.queue)
    return resubmit(place.queue, DEAD_LETTER, [repair], target, place.now, pages)


def test_one_verdict_changes_no_more_properties_than_a_turn_has_time_for() -> None:
    """Sent once, they would be read and written for each of thousands of messages."""
    many = {f"p{n}": n for n in range(VALUES_MAX // 4)}
    place = Place(policy=Policy(header_size_max=1 << 20, message_size_max=1 << 20))
    for _ in range(6):
        sent(place, MAIN)
    messages = [place.receive() for _ in range(6)]
    tokens = [message.token for message in messages if message is not None and message.token]
    transaction = Transaction()
    settlements, _ = settlements_of(MAIN, tokens, Changes(properties=many), 1 << 20)
    transaction.settle(place.engine, settlements, place.now)
    with pytest.raises(MessageSizeExceeded, match="name fewer messages"):
        place.paged(lambda pages: transaction.commit(place.engine, place.now, pages))
    assert all(message is not None and message.token for message in messages)
    assert place.engine.shared.take_toil() >= VALUES_MAX, "and the turn ends by it"


def test_a_store_of_before_counts_down_to_nothing() -> None:
    """Messages were counted with their bodies alone, whatever properties they were given."""
    place = Place()
    sent(place, MAIN)
    message = place.receive()
    assert message is not None
    alone(place, MAIN, message, Changes(properties={"p": "x" * NEW}))
    # As it was written: the record of the change and the index have no other size than the body's.
    [row] = place.rows()
    assert row.trail is not None
    row.trail = None
    place.queue.ledger.size_bytes = row.length
    place.commit(checkpoint=True)
    place.crash()
    assert place.queue.ledger.size_bytes == row.length
    message = place.receive()
    assert message is not None and message.properties is not None
    alone(place, MAIN, message, Changes(properties={"p": "y"}))
    place.crash()
    check(place)
    message = place.receive()
    assert message is not None
    place.complete(message)
    assert place.queue.ledger.size_bytes == 0


def test_a_record_says_what_its_message_counted_with_before() -> None:
    place = Place()
    sent(place, MAIN)
    message = place.receive()
    assert message is not None
    head = place.queue.ledger.head
    alone(place, MAIN, message, Changes(properties={"p": "x"}))
    [stored] = place.store.read(place.fragment, head, 1 << 20)
    [(_, data)] = batch.records(stored.data)
    record = decode(data)
    assert record.message.trail is not None
    assert record.message.trail.former_size == message.length
    assert message.trail is not None and message.trail.former_size == 0


def test_what_is_put_back_counts_with_its_changed_properties() -> None:
    place = Place(policy=Policy(header_size_max=HEADERS_MAX))
    sent(place, MAIN)
    message = place.receive()
    assert message is not None
    section = encode_application_properties({"grown": "x" * NEW})
    place.abandon(message, NewProperties(section, len(section)))
    size = place.queue.ledger.size_bytes
    taken = place.turn(lambda: place.queue.take_and_delete(MAIN, place.now))
    assert taken is not None
    assert place.queue.ledger.size_bytes == 0
    place.turn(lambda: place.queue.put_back(*taken))
    for _ in range(2):
        assert place.queue.ledger.size_bytes == size > NEW
        place.commit()
        place.crash()
