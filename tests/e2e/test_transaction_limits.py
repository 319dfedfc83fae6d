"""What a transaction may take: time, room, and company."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from postbus.amqp.codec.types import Symbol
from postbus.amqp.frames.outcomes import Modified, Rejected
from tests.support.administration import Administration
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


@pytest.fixture
def server(make_server: Callable[..., Server]) -> Server:
    return make_server(
        *("--transaction-timeout-ms", "700"),
        *("--transactions-per-connection-max", "3"),
        *("--transactions-max-bytes", "1024"),
    ).start()


@pytest.fixture
def administration(server: Server) -> Administration:
    return Administration(server.connection_string)


@pytest.fixture
def client(server: Server) -> Iterator[Transacting]:
    with Transacting(server) as client:
        yield client


def test_a_transaction_that_takes_too_long_is_rolled_back(
    client: Transacting, administration: Administration
) -> None:
    """From its first operation on (semantics B §7)."""
    queue = administration.make_queue()
    sender, coordinator = client.sender(queue), client.coordinator()
    client.send(sender, "in")
    receiver = client.receiver(queue)
    delivery = client.next(receiver)
    idle, transaction = client.declare(coordinator), client.declare(coordinator)
    client.send(sender, "never", transaction)
    client.complete(delivery, transaction)

    def refused_by_now() -> bool:
        try:
            client.send(sender, "more", transaction)
        except Refused as refused:
            return refused.condition == "amqp:transaction:timeout"
        return False

    until_blocking("it is too late", refused_by_now)
    with pytest.raises(Refused) as refused:
        client.commit(coordinator, transaction)
    assert refused.value.condition == "amqp:transaction:timeout"
    assert "700 milliseconds" in refused.value.text
    assert administration.counts(queue).active_message_count == 1
    # One that nothing was done in is not in a hurry, and what was enlisted can be so again.
    client.send(sender, "late", idle)
    client.commit(coordinator, idle)
    assert body_of(client.next(receiver)) == "late"


def test_a_connection_has_so_many_transactions_at_a_time(client: Transacting) -> None:
    coordinator = client.coordinator()
    three = [client.declare(coordinator) for _ in range(3)]
    assert len(set(three)) == 3
    with pytest.raises(Refused) as refused:
        client.declare(coordinator)
    assert refused.value.condition == "amqp:resource-limit-exceeded"
    client.roll_back(coordinator, three[0])
    client.declare(coordinator)


def test_its_transactions_send_so_many_bytes_at_a_time(
    client: Transacting, administration: Administration
) -> None:
    queue = administration.make_queue()
    sender, coordinator = client.sender(queue), client.coordinator()
    for _ in range(2):
        first, second = client.declare(coordinator), client.declare(coordinator)
        for _ in range(2):
            client.send(sender, "x" * 200, first)
            client.send(sender, "x" * 200, second)
        with pytest.raises(Refused) as refused:
            expect(client.transfer(sender, message("x" * 250), second), second)
        assert refused.value.condition == "amqp:resource-limit-exceeded"
        client.commit(coordinator, first)
        client.roll_back(coordinator, second)
    assert administration.counts(queue).active_message_count == 4


def test_changes_of_properties_take_room_too(
    client: Transacting, administration: Administration
) -> None:
    queue = administration.make_queue()
    coordinator, receiver = client.coordinator(), client.receiver(queue)
    client.fill(queue, "1", "2", "3")
    first, second, third = [client.next(receiver) for _ in range(3)]
    transaction = client.declare(coordinator)
    changed = Modified(message_annotations={Symbol("long"): "x" * 600})
    expect_in(client.settle_in(first, changed, transaction), transaction, Modified())
    state = client.settle_in(second, changed, transaction)
    assert isinstance(state, Rejected) and state.error is not None
    assert state.error.condition == "amqp:resource-limit-exceeded"
    client.roll_back(coordinator, transaction)
    another = client.declare(coordinator)
    expect_in(client.settle_in(third, changed, another), another, Modified())
