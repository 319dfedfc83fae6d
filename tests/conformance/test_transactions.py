"""Transactions on one entity, frame by frame (AMQP 4, wire §8, semantics B §7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.request import urlopen
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage

from postbus.amqp.codec.types import AmqpArray, Long, Symbol
from postbus.amqp.events import LinkDetached, SessionEnded
from postbus.amqp.frames.outcomes import Accepted, Error, Modified, Rejected, Released
from postbus.amqp.sections import (
    encode_amqp_value,
    read_header,
    scan,
)
from tests.support.administration import Administration
from tests.support.bus import Subscription, Topic
from tests.support.server import Server
from tests.support.transacting import (
    Refused,
    Transacting,
    body_of,
    expect,
    expect_in,
    message,
)
from tests.support.waiting import until_blocking

UUIDS = 0x98
LONGS = 0x81


@pytest.fixture
def client(server: Server) -> Iterator[Transacting]:
    with Transacting(server) as client:
        yield client


@pytest.fixture
def active(administration: Administration) -> Callable[[Any], int]:
    """How many messages are in a queue or subscription."""

    def count(source: Any) -> int:
        return administration.counts(source).active_message_count

    return count


def test_what_is_sent_in_a_transaction_is_there_when_it_is_committed(
    client: Transacting, queue: str, active: Callable[[Any], int]
) -> None:
    coordinator, sender = client.coordinator(), client.sender(queue)
    transaction = client.declare(coordinator)
    assert len(transaction) == 16
    for n in range(3):
        client.send(sender, f"{n}", transaction)
    assert active(queue) == 0
    client.commit(coordinator, transaction)
    assert active(queue) == 3
    receiver = client.receiver(queue)
    assert [body_of(client.next(receiver)) for _ in range(3)] == ["0", "1", "2"]


def test_what_is_sent_in_a_transaction_that_is_rolled_back_never_comes(
    client: Transacting, queue: str, active: Callable[[Any], int]
) -> None:
    coordinator, sender = client.coordinator(), client.sender(queue)
    transaction = client.declare(coordinator)
    client.send(sender, "x", transaction)
    client.roll_back(coordinator, transaction)
    client.send(sender, "y")
    assert active(queue) == 1


def test_a_receive_its_completion_and_a_send_are_one_step(
    client: Transacting, queue: str, active: Callable[[Any], int]
) -> None:
    client.fill(queue, "in")
    coordinator, sender, receiver = (
        client.coordinator(),
        client.sender(queue),
        client.receiver(queue),
    )
    delivery = client.next(receiver)
    transaction = client.declare(coordinator)
    client.complete(delivery, transaction)
    client.send(sender, "out", transaction)
    assert active(queue) == 1
    client.commit(coordinator, transaction)
    assert body_of(client.next(receiver)) == "out"
    assert active(queue) == 1


def test_a_message_whose_completion_is_rolled_back_stays_locked(
    client: Transacting, queue: str, active: Callable[[Any], int]
) -> None:
    client.fill(queue, "x")
    coordinator, receiver = client.coordinator(), client.receiver(queue)
    delivery = client.next(receiver)
    transaction = client.declare(coordinator)
    client.complete(delivery, transaction)
    client.roll_back(coordinator, transaction)
    # It can be settled by its token, with the lock that it had, in another transaction or in none.
    token = AmqpArray(UUIDS, [UUID(bytes_le=delivery.tag)])
    status, _ = client.manage(queue, "renew-lock", {"lock-tokens": token})
    assert status == 200
    status, _ = client.manage(
        queue, "update-disposition", {"disposition-status": "completed", "lock-tokens": token}
    )
    assert status == 200
    assert active(queue) == 0


REASON = {Symbol("DeadLetterReason"): "why", Symbol("more"): 7}
OUTCOMES: dict[str, tuple[Any, str, int]] = {
    "abandoned": (Modified(True, False), "", 1),
    "released": (Released(), "", 0),
    "deferred": (Modified(True, True), "deferred", 1),
    "dead-lettered": (
        Rejected(Error("com.microsoft:dead-letter", None, REASON)),
        "/$DeadLetterQueue",
        0,
    ),
}


@pytest.mark.parametrize(("outcome", "where", "count"), OUTCOMES.values(), ids=list(OUTCOMES))
def test_every_outcome_counts_when_its_transaction_is_committed(
    client: Transacting,
    queue: str,
    administration: Administration,
    outcome: Any,
    where: str,
    count: int,
) -> None:
    client.fill(queue, "x")
    coordinator, receiver = client.coordinator(), client.receiver(queue)
    delivery = client.next(receiver)
    transaction = client.declare(coordinator)
    plain = Rejected() if isinstance(outcome, Rejected) else outcome
    expect_in(client.settle_in(delivery, outcome, transaction), transaction, plain)
    assert administration.counts(queue).dead_letter_message_count == 0
    client.commit(coordinator, transaction)
    if where == "deferred":
        sequence = 1
        status, answer = client.manage(
            queue,
            "receive-by-sequence-number",
            {"sequence-numbers": AmqpArray(LONGS, [Long(sequence)]), "receiver-settle-mode": 1},
        )
        assert (status, len(answer["messages"])) == (200, 1)
        return
    again = client.next(client.receiver(queue + where))
    assert body_of(again) == "x"
    assert read_header(again.payload, scan(again.payload)).delivery_count == count


def test_a_message_that_is_settled_in_one_transaction_cannot_be_in_another(
    client: Transacting, queue: str, active: Callable[[Any], int]
) -> None:
    client.fill(queue, "x")
    coordinator, receiver = client.coordinator(), client.receiver(queue)
    delivery = client.next(receiver)
    first, second = client.declare(coordinator), client.declare(coordinator)
    client.complete(delivery, first)
    token = AmqpArray(UUIDS, [UUID(bytes_le=delivery.tag)])
    wanted = {"disposition-status": "completed", "lock-tokens": token}
    for transaction in (first, second, None):
        status, _ = client.manage(queue, "update-disposition", wanted, transaction)
        assert status == 403
    # Its lock may be renewed meanwhile, also by a request that is part of the transaction.
    assert client.manage(queue, "renew-lock", {"lock-tokens": token}, first)[0] == 200
    client.commit(coordinator, second)
    client.commit(coordinator, first)
    assert active(queue) == 0


def test_a_transaction_whose_lock_ran_out_is_rolled_back_whole(
    client: Transacting, administration: Administration, active: Callable[[Any], int]
) -> None:
    queue = administration.make_queue(lock_s=5, max_delivery_count=2)
    client.fill(queue, "x")
    coordinator, sender, receiver = (
        client.coordinator(),
        client.sender(queue),
        client.receiver(queue),
    )
    delivery = client.next(receiver)
    transaction = client.declare(coordinator)
    client.send(sender, "y", transaction)
    client.complete(delivery, transaction)
    again = client.next(receiver)  # comes when the lock has run out
    assert body_of(again) == "x"
    with pytest.raises(Refused) as refused:
        client.commit(coordinator, transaction)
    assert refused.value.condition == "amqp:transaction:rollback"
    assert "lock" in refused.value.text
    assert active(queue) == 1
    # And the transaction is over.
    with pytest.raises(Refused) as refused:
        client.commit(coordinator, transaction)
    assert refused.value.condition == "amqp:transaction:unknown-id"


def test_a_hundred_messages_can_be_sent_in_a_transaction(
    client: Transacting, queue: str, active: Callable[[Any], int]
) -> None:
    coordinator, sender = client.coordinator(), client.sender(queue)
    transaction = client.declare(coordinator)
    for n in range(100):
        client.send(sender, f"{n}", transaction)
    with pytest.raises(Refused) as refused:
        client.send(sender, "one more", transaction)
    assert refused.value.text.startswith(
        "Cannot send more than 100 messages in a single transaction."
    )
    # The Java SDK does not look at the answer: it is told by the commit.
    with pytest.raises(Refused) as refused:
        client.commit(coordinator, transaction)
    assert refused.value.condition == "amqp:transaction:rollback"
    assert "Cannot send more than 100 messages in a single transaction." in refused.value.text
    assert active(queue) == 0
    transaction = client.declare(coordinator)
    for n in range(100):
        client.send(sender, f"{n}", transaction)
    client.commit(coordinator, transaction)
    assert active(queue) == 100


def test_transactions_are_counted(client: Transacting, server: Server, queue: str) -> None:
    coordinator, sender = client.coordinator(), client.sender(queue)
    for end in (client.commit, client.commit, client.roll_back):
        transaction = client.declare(coordinator)
        client.send(sender, "x", transaction)
        end(coordinator, transaction)
    with urlopen(f"{server.http}/metrics") as answer:
        shown = answer.read().decode().splitlines()
    label = f'{{entity="{queue}"}}'
    assert f"postbus_transactions_committed_total{label} 2.0" in shown
    assert f"postbus_transactions_rolled_back_total{label} 1.0" in shown


def test_a_transaction_without_operations_can_be_discharged_either_way(client: Transacting) -> None:
    coordinator = client.coordinator()
    client.commit(coordinator, client.declare(coordinator))
    client.roll_back(coordinator, client.declare(coordinator))


def test_a_transaction_cannot_span_two_queues(
    client: Transacting, make_queue: Callable[..., str], active: Callable[[Any], int]
) -> None:
    a, b = make_queue(), make_queue()
    # Data links first: it is no session for cross-entity transactions.
    to_a, to_b = client.sender(a), client.sender(b)
    coordinator = client.coordinator()
    transaction = client.declare(coordinator)
    client.send(to_a, "x", transaction)
    with pytest.raises(Refused) as refused:
        client.send(to_b, "y", transaction)
    assert refused.value.condition == "amqp:not-allowed"
    assert refused.value.text.startswith(
        "Local transactions cannot span multiple top-level entities such as queue or topic."
    )
    with pytest.raises(Refused) as refused:
        client.commit(coordinator, transaction)
    assert refused.value.condition == "amqp:transaction:rollback"
    assert (active(a), active(b)) == (0, 0)


def test_a_settlement_that_is_refused_is_no_part_of_its_transaction(
    client: Transacting, queue: str, active: Callable[[Any], int]
) -> None:
    client.fill(queue, "x", "y")
    coordinator, receiver = client.coordinator(), client.receiver(queue)
    first, second = client.next(receiver), client.next(receiver)
    token = AmqpArray(UUIDS, [UUID(bytes_le=second.tag)])
    settling = {"disposition-status": "completed", "lock-tokens": token}
    assert client.manage(queue, "update-disposition", settling)[0] == 200
    transaction = client.declare(coordinator)
    with pytest.raises(Refused) as refused:
        client.complete(second, transaction)
    assert refused.value.condition == "com.microsoft:message-lock-lost"
    client.complete(first, transaction)
    client.commit(coordinator, transaction)
    assert active(queue) == 0


def test_an_operation_that_is_refused_first_does_not_bind_the_transaction(
    client: Transacting, make_queue: Callable[..., str], active: Callable[[Any], int]
) -> None:
    a, b = make_queue(), make_queue()
    client.fill(a, "x")
    receiver, to_b = client.receiver(a), client.sender(b)
    delivery = client.next(receiver)
    coordinator = client.coordinator()
    transaction = client.declare(coordinator)
    token = AmqpArray(UUIDS, [UUID(bytes_le=delivery.tag), UUID(int=1)])
    status, _ = client.manage(
        a,
        "update-disposition",
        {"disposition-status": "completed", "lock-tokens": token},
        transaction,
    )
    assert status == 410
    client.send(to_b, "y", transaction)
    client.commit(coordinator, transaction)
    assert (active(a), active(b)) == (1, 1)
    client.complete(delivery, second := client.declare(coordinator))
    client.commit(coordinator, second)
    assert active(a) == 0


def test_a_transaction_covers_a_topic_and_its_subscriptions(
    client: Transacting,
    administration: Administration,
    topic: Topic,
    active: Callable[[Any], int],
) -> None:
    one, other = administration.make_subscription(topic), administration.make_subscription(topic)
    sender = client.sender(topic)
    client.send(sender, "in")
    receivers = [client.receiver(path(each)) for each in (one, other)]
    deliveries = [client.next(receiver) for receiver in receivers]
    coordinator = client.coordinator()
    transaction = client.declare(coordinator)
    for delivery in deliveries:
        client.complete(delivery, transaction)
    client.send(sender, "out", transaction)
    assert (active(one), active(other)) == (1, 1)
    client.commit(coordinator, transaction)
    assert [body_of(client.next(receiver)) for receiver in receivers] == ["out", "out"]
    assert (active(one), active(other)) == (1, 1)


def path(subscription: Subscription) -> str:
    return f"{subscription.topic}/Subscriptions/{subscription.name}"


def test_several_deliveries_are_settled_by_one_disposition(
    client: Transacting, queue: str, active: Callable[[Any], int]
) -> None:
    client.fill(queue, *"abc")
    coordinator, receiver = client.coordinator(), client.receiver(queue)
    deliveries = [client.next(receiver) for _ in range(3)]
    transaction = client.declare(coordinator)
    for delivery in deliveries[:-1]:
        # Neighbours with one state leave as one frame.
        client.settle_later(delivery, Accepted(), transaction)
    client.complete(deliveries[-1], transaction)
    client.commit(coordinator, transaction)
    assert active(queue) == 0


# -- ids, links and connections --------------------------------------------------------------------


def test_a_transaction_of_another_connection_is_not_known(
    client: Transacting, server: Server, queue: str, active: Callable[[Any], int]
) -> None:
    transaction = client.declare(client.coordinator())
    with Transacting(server) as other:
        sender, coordinator = other.sender(queue), other.coordinator()
        for attempt in (
            lambda: other.send(sender, "x", transaction),
            lambda: other.commit(coordinator, transaction),
        ):
            with pytest.raises(Refused) as refused:
                attempt()
            assert refused.value.condition == "amqp:transaction:unknown-id"
    assert active(queue) == 0


@pytest.mark.parametrize("lost", ["link", "session", "connection", "socket"])
def test_whatever_ends_with_the_coordinator_is_rolled_back(
    client: Transacting,
    server: Server,
    queue: str,
    active: Callable[[Any], int],
    lost: str,
) -> None:
    """semantics B §7: at once. The message stays locked, but where a connection broke."""
    client.fill(queue, "x")
    with Transacting(server) as other:
        session = other.core.begin()
        coordinator = other.coordinator(session)
        sender, receiver = other.sender(queue), other.receiver(queue)
        delivery = other.next(receiver)
        transaction = other.declare(coordinator)
        other.send(sender, "y", transaction)
        other.complete(delivery, transaction)
        match lost:
            case "link":
                coordinator.detach()
                other.write()
                other.until(LinkDetached)
            case "session":
                session.end()
                other.write()
                other.until(SessionEnded)
            case "connection":
                other.core.close()
                other.write()
            case "socket":
                other.socket.close()
        if lost in ("link", "session"):
            with pytest.raises(Refused) as refused:
                other.send(sender, "z", transaction)
            assert refused.value.condition == "amqp:transaction:unknown-id"
        token = AmqpArray(UUIDS, [UUID(bytes_le=delivery.tag)])
        settling = {"disposition-status": "completed", "lock-tokens": token}

        def settled() -> int:
            return client.manage(queue, "update-disposition", settling)[0]

        if lost == "socket":
            until_blocking("the lock is lost", lambda: settled() == 410)
            assert active(queue) == 1
        else:
            until_blocking("it can be settled by its token", lambda: settled() == 200)
            assert active(queue) == 0


def test_a_coordinator_is_asked_for_nothing_but_transactions(client: Transacting) -> None:
    coordinator = client.coordinator()
    for payload in (message("x"), encode_amqp_value("declare")):
        with pytest.raises(Refused) as refused:
            expect(client.transfer(coordinator, payload))
        assert refused.value.condition == "com.microsoft:argument-error"
    client.declare(coordinator)


def test_a_send_that_waits_for_no_answer_spoils_its_transaction_where_it_is_refused(
    client: Transacting, make_queue: Callable[..., str], active: Callable[[Any], int]
) -> None:
    a, b = make_queue(), make_queue()
    to_a, to_b, coordinator = client.sender(a), client.sender(b), client.coordinator()
    transaction = client.declare(coordinator)
    client.send(to_a, "x", transaction)
    client.transfer(to_b, message("y"), transaction, settled=True)
    with pytest.raises(Refused) as refused:
        client.commit(coordinator, transaction)
    assert refused.value.condition == "amqp:transaction:rollback"
    assert (active(a), active(b)) == (0, 0)


def test_operations_and_the_discharge_behind_them_need_not_wait_for_each_other(
    client: Transacting, queue: str, active: Callable[[Any], int]
) -> None:
    coordinator, sender = client.coordinator(), client.sender(queue)
    transaction = client.declare(coordinator)
    for n in range(10):
        client.transfer(sender, message(f"{n}"), transaction, settled=True)
    client.commit(coordinator, transaction)
    assert active(queue) == 10


async def test_a_transaction_leaves_other_clients_alone(
    client: Transacting, queue: str, bus: Any
) -> None:
    coordinator, sender = client.coordinator(), client.sender(queue)
    transaction = client.declare(coordinator)
    client.send(sender, "later", transaction)
    await bus.send(queue, ServiceBusMessage("sooner"))
    client.commit(coordinator, transaction)
    assert [str(each) for each in await bus.receive(queue, 2)] == ["sooner", "later"]
