"""Sending through one entity to another: send-via, cross-entity transactions (semantics B §7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus.management import EntityStatus

from postbus.amqp.codec.types import Symbol, Timestamp
from postbus.amqp.events import SessionEnded
from postbus.amqp.sections import (
    encode_message_annotations,
    read_annotations,
    read_application_properties,
    scan,
)
from tests.support.administration import Administration
from tests.support.bus import Topic
from tests.support.server import Server
from tests.support.transacting import Refused, Transacting, body_of, expect, message
from tests.support.waiting import until_blocking

VIA = Symbol("com.microsoft:transfer-destination-address")
SPANS = "Local transactions cannot span multiple top-level entities such as queue or topic."


@pytest.fixture
def client(server: Server) -> Iterator[Transacting]:
    with Transacting(server) as client:
        yield client


@pytest.fixture
def two(make_queue: Callable[..., str]) -> tuple[str, str]:
    return make_queue("a"), make_queue("b")


def active(administration: Administration, queue: str) -> int:
    return administration.counts(queue).active_message_count


def test_a_message_is_sent_through_an_entity_that_never_shows_it(
    client: Transacting, administration: Administration, two: tuple[str, str]
) -> None:
    """Without a transaction, too."""
    a, b = two
    sender = client.sender(a, destination=b)
    assert sender.properties is not None
    assert sender.properties[VIA] == b
    client.send(sender, "x")
    delivery = client.next(client.receiver(b))
    assert body_of(delivery) == "x"
    until_blocking("it has left", lambda: administration.counts(a).size_in_bytes == 0)
    assert active(administration, a) == 0


def test_a_receive_its_completion_and_a_send_elsewhere_are_one_step(
    client: Transacting, administration: Administration, two: tuple[str, str]
) -> None:
    a, b = two
    client.send(client.sender(a), "in")
    receiver, through = client.receiver(a), client.sender(a, destination=b)
    coordinator = client.coordinator()
    delivery = client.next(receiver)

    rolled_back = client.declare(coordinator)
    client.send(through, "never", rolled_back)
    client.roll_back(coordinator, rolled_back)

    transaction = client.declare(coordinator)
    client.complete(delivery, transaction)
    client.send(through, "out", transaction)
    assert (active(administration, a), active(administration, b)) == (1, 0)
    client.commit(coordinator, transaction)
    assert body_of(client.next(client.receiver(b))) == "out"
    assert (active(administration, a), active(administration, b)) == (0, 1)


def test_a_message_for_a_destination_that_is_gone_is_refused_when_it_is_sent(
    client: Transacting, administration: Administration, two: tuple[str, str]
) -> None:
    a, b = two
    with pytest.raises(Refused) as refused:
        client.sender(a, destination="nowhere")
    assert refused.value.condition == "amqp:not-found"
    sender, coordinator = client.sender(a, destination=b), client.coordinator()
    administration.client.delete_queue(b)
    transaction = client.declare(coordinator)
    for within in (None, transaction):
        with pytest.raises(Refused) as refused:
            client.send(sender, "x", within)
        assert refused.value.condition == "amqp:not-found"


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_a_message_that_its_destination_refuses_is_in_the_transfer_dead_letter_queue(
    client: Transacting, administration: Administration, two: tuple[str, str], kind: str
) -> None:
    a, b = two
    via = a if kind == "queue" else str(administration.make_topic("via"))
    sender, coordinator = client.sender(via, destination=b), client.coordinator()
    transaction = client.declare(coordinator)
    client.send(sender, "x", transaction)
    administration.update(b, status=EntityStatus.SEND_DISABLED)
    client.commit(coordinator, transaction)
    delivery = client.next(client.receiver(f"{via}/$Transfer/$DeadLetterQueue"))
    assert body_of(delivery) == "x"
    properties = read_application_properties(delivery.payload, scan(delivery.payload))
    assert properties["DeadLetterReason"] == "EntityDisabled"
    assert "disabled" in properties["DeadLetterErrorDescription"]
    if kind == "queue":
        assert administration.counts(a).transfer_dead_letter_message_count == 1
        assert administration.counts(a).transfer_message_count == 0
    client.complete(delivery, second := client.declare(coordinator))
    client.commit(coordinator, second)
    if kind == "queue":
        assert administration.counts(a).transfer_dead_letter_message_count == 0


def test_a_message_that_is_scheduled_waits_at_its_destination(
    client: Transacting, administration: Administration, two: tuple[str, str]
) -> None:
    a, b = two
    at = int((datetime.now(UTC) + timedelta(seconds=2)).timestamp() * 1000)
    annotations = encode_message_annotations(
        {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(at)}
    )
    expect(client.transfer(client.sender(a, destination=b), annotations + message("x")))
    until_blocking("it is there", lambda: administration.counts(b).scheduled_message_count == 1)
    delivery = client.next(client.receiver(b))
    enqueued = read_annotations(delivery.payload, scan(delivery.payload))["x-opt-enqueued-time"]
    assert enqueued >= at


def test_the_way_through_an_entity_is_no_hop(
    client: Transacting, administration: Administration, make_queue: Callable[..., str]
) -> None:
    """Four hops are allowed from where it arrives (semantics B §8)."""
    last = make_queue("hop")
    first = last
    for _ in range(4):
        first = make_queue("hop", forward_to=first)
    client.send(client.sender(make_queue("via"), destination=first), "x")
    assert body_of(client.next(client.receiver(last))) == "x"


# -- cross-entity transactions -----------------------------------------------------------------


def test_the_first_link_behind_a_coordinator_is_what_the_others_go_through(
    client: Transacting, administration: Administration, two: tuple[str, str]
) -> None:
    a, b = two
    client.send(client.sender(a), "in")
    session = client.core.begin()
    coordinator = client.coordinator(session)
    receiver, sender = client.receiver(a, session=session), client.sender(b, session=session)
    delivery = client.next(receiver)
    transaction = client.declare(coordinator)
    client.complete(delivery, transaction)
    client.send(sender, "out", transaction)
    assert (active(administration, a), active(administration, b)) == (1, 0)
    client.commit(coordinator, transaction)
    assert body_of(client.next(client.receiver(b))) == "out"
    assert active(administration, a) == 0
    # Without a transaction it is a sender like any other.
    client.send(sender, "plain")
    assert active(administration, b) == 2


def test_a_receiver_of_a_subscription_goes_through_its_topic(
    client: Transacting, administration: Administration, topic: Topic, queue: str
) -> None:
    subscription = administration.make_subscription(topic)
    client.send(client.sender(topic), "in")
    session = client.core.begin()
    coordinator = client.coordinator(session)
    path = f"{topic}/Subscriptions/{subscription.name}"
    receiver, sender = client.receiver(path, session=session), client.sender(queue, session=session)
    delivery = client.next(receiver)
    transaction = client.declare(coordinator)
    client.send(sender, "out", transaction)
    client.complete(delivery, transaction)
    client.commit(coordinator, transaction)
    assert body_of(client.next(client.receiver(queue))) == "out"
    assert administration.counts(subscription).active_message_count == 0


@pytest.mark.parametrize("first", ["receiver", "sender"])
def test_a_second_top_level_receiver_ends_the_session(
    client: Transacting, two: tuple[str, str], first: str
) -> None:
    """semantics B §7 (NET TransactionGroupSendsFirst): and the next session starts anew."""
    a, b = two
    session = client.core.begin()
    coordinator = client.coordinator(session)
    if first == "receiver":
        client.receiver(a, session=session)
        client.receiver(f"{a}/$DeadLetterQueue", session=session)
    else:
        client.sender(a, session=session)
    transaction = client.declare(coordinator)
    ended: list[Any] = []
    with pytest.raises(Refused) as refused:
        client.receiver(b, session=session, seen=ended)
    assert refused.value.condition == "amqp:not-allowed"
    assert refused.value.text.startswith(SPANS)
    while not (found := [each for each in ended if isinstance(each, SessionEnded)]):
        ended += client.pump()
    assert found[0].session is session
    assert found[0].error is not None
    assert found[0].error.condition == "amqp:not-allowed"
    again = client.core.begin()
    coordinator = client.coordinator(again)
    with pytest.raises(Refused) as refused:
        client.commit(coordinator, transaction)
    assert refused.value.condition == "amqp:transaction:unknown-id"
    client.receiver(b, session=again)
