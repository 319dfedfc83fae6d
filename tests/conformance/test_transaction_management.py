"""What `$management` does in a transaction (wire §8): schedule, cancel, settle."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from postbus.amqp.codec.types import AmqpArray, Long, Symbol, Timestamp
from postbus.amqp.frames.outcomes import Modified
from postbus.amqp.sections import encode_message_annotations
from tests.support.administration import Administration
from tests.support.server import Server
from tests.support.transacting import Transacting, expect, expect_in, message

UUIDS = 0x98
LONGS = 0x81


@pytest.fixture
def client(server: Server) -> Iterator[Transacting]:
    with Transacting(server) as client:
        yield client


def scheduled(body: str, after: timedelta) -> bytes:
    at = int((datetime.now(UTC) + after).timestamp() * 1000)
    annotations = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(at)}
    return encode_message_annotations(annotations) + message(body)


def test_messages_are_scheduled_and_cancelled_in_a_transaction(
    client: Transacting, queue: str, administration: Administration
) -> None:
    def count() -> int:
        return administration.counts(queue).scheduled_message_count

    coordinator = client.coordinator()
    wanted = {"messages": [{"message": scheduled("x", timedelta(hours=1)), "message-id": "1"}]}
    first = client.declare(coordinator)
    status, answer = client.manage(queue, "schedule-message", wanted, first)
    assert (status, count()) == (200, 0)
    numbers = answer["sequence-numbers"]
    client.commit(coordinator, first)
    assert count() == 1

    second = client.declare(coordinator)
    cancelled = {"sequence-numbers": numbers}
    assert client.manage(queue, "cancel-scheduled-message", cancelled, second)[0] == 200
    assert client.manage(queue, "cancel-scheduled-message", cancelled, second)[0] == 404
    assert count() == 1
    client.roll_back(coordinator, second)
    assert count() == 1

    third = client.declare(coordinator)
    assert client.manage(queue, "cancel-scheduled-message", cancelled, third)[0] == 200
    client.commit(coordinator, third)
    assert count() == 0


def test_a_transfer_that_is_scheduled_can_be_part_of_a_transaction(
    client: Transacting, queue: str, administration: Administration
) -> None:
    coordinator, sender = client.coordinator(), client.sender(queue)
    transaction = client.declare(coordinator)
    state = client.transfer(sender, scheduled("x", timedelta(hours=1)), transaction)
    expect(state, transaction)
    client.commit(coordinator, transaction)
    assert administration.counts(queue).scheduled_message_count == 1


def test_a_deferred_message_is_settled_in_a_transaction(
    client: Transacting, queue: str, administration: Administration
) -> None:
    client.fill(queue, "x")
    coordinator, receiver = client.coordinator(), client.receiver(queue)
    delivery = client.next(receiver)
    deferring = client.declare(coordinator)
    outcome = Modified(True, True)
    expect_in(client.settle_in(delivery, outcome, deferring), deferring, outcome)
    client.commit(coordinator, deferring)
    wanted = {"sequence-numbers": AmqpArray(LONGS, [Long(1)]), "receiver-settle-mode": 1}
    _, answer = client.manage(queue, "receive-by-sequence-number", wanted)
    token = AmqpArray(UUIDS, [answer["messages"][0]["lock-token"]])
    settling = {"disposition-status": "completed", "lock-tokens": token}

    rolled_back = client.declare(coordinator)
    assert client.manage(queue, "update-disposition", settling, rolled_back)[0] == 200
    client.roll_back(coordinator, rolled_back)
    assert administration.counts(queue).active_message_count == 1
    committed = client.declare(coordinator)
    assert client.manage(queue, "update-disposition", settling, committed)[0] == 200
    client.commit(coordinator, committed)
    assert administration.counts(queue).active_message_count == 0


def test_what_cannot_be_part_of_a_transaction_is_refused_by_name(
    client: Transacting, queue: str
) -> None:
    transaction = client.declare(client.coordinator())
    wanted = {"from-sequence-number": Long(0), "message-count": 1}
    assert client.manage(queue, "peek-message", wanted, transaction)[0] == 403
