"""What a low-level AMQP client may do that the SDKs never do, and drain with a wait of zero."""

from __future__ import annotations

import time

from proton import Message
from proton.reactor import AtMostOnce

from tests.support.administration import Administration
from tests.support.proton_client import (
    ACCEPTED,
    MODIFIED,
    REJECTED,
    RELEASED,
    Settled,
    drain,
    plain_connection,
    settle,
)
from tests.support.server import Server
from tests.support.waiting import until_blocking


def test_a_transfer_that_is_settled_when_sent_is_stored(
    server: Server, queue: str, administration: Administration
) -> None:
    """R-SETTLE-04: fire and forget."""
    with plain_connection(server) as connection:
        sender = connection.create_sender(queue, options=AtMostOnce())
        for n in range(10):
            sender.send(Message(body=n))
        connection.create_receiver(queue, credit=0)  # a round trip, so that all of it is on its way
        until_blocking(
            "all are stored", lambda: administration.counts(queue).active_message_count == 10
        )


def test_drain_returns_what_is_there_or_nothing_at_once(server: Server, queue: str) -> None:
    """R-DLQ-09: the zero-wait receive on the wire (AMQP 2.6.7)."""
    with plain_connection(server) as connection:
        sender = connection.create_sender(queue)
        receiver = connection.create_receiver(queue, credit=0)
        began = time.monotonic()
        for _ in range(20):
            assert drain(receiver, 5) == []
        assert time.monotonic() - began < 5
        for n in range(3):
            sender.send(Message(body=n))
        assert [message.body for message in drain(receiver, 5)] == [0, 1, 2]
        assert receiver.link.credit == 0


def test_the_founding_loop_on_the_wire(
    server: Server, queue: str, administration: Administration
) -> None:
    """R-DLQ-09, R-SETTLE-08: no wait, abandon, until the queue is empty."""
    with plain_connection(server) as connection:
        connection.create_sender(queue).send(Message(body="poison"))
        receiver = connection.create_receiver(queue, credit=0)
        counts = []
        while messages := drain(receiver, 1):
            counts.append(messages[0].delivery_count)
            settle(receiver, MODIFIED, failed=True)
        assert counts == list(range(10))

        dead = connection.create_receiver(f"{queue}/$DeadLetterQueue", credit=1)
        message = dead.receive(timeout=10)
        assert message.properties["DeadLetterReason"] == "MaxDeliveryCountExceeded"
        dead.accept()
    assert administration.counts(queue).total_message_count == 0


def test_a_released_message_comes_back_with_its_count_unchanged(server: Server, queue: str) -> None:
    """R-SETTLE-07: AMQP `released`."""
    with plain_connection(server) as connection:
        connection.create_sender(queue).send(Message(body="x"))
        receiver = connection.create_receiver(queue, credit=0)
        for _ in range(15):
            [message] = drain(receiver, 1)
            assert message.delivery_count == 0
            settle(receiver, RELEASED)
        [message] = drain(receiver, 1)
        settle(receiver, ACCEPTED)
        assert drain(receiver, 1) == []


def test_a_modified_message_counts_whatever_delivery_failed_says(
    server: Server, queue: str
) -> None:
    """wire §4.2: abandon, as Go and .NET spell it."""
    with plain_connection(server) as connection:
        connection.create_sender(queue).send(Message(body="x"))
        receiver = connection.create_receiver(queue, credit=0)
        for count in range(4):
            [message] = drain(receiver, 1)
            assert message.delivery_count == count
            settle(receiver, MODIFIED, failed=count % 2 == 0)


def test_a_rejected_message_without_an_error_is_dead_lettered(server: Server, queue: str) -> None:
    """wire §5.1: .NET's dead-letter without a reason."""
    with plain_connection(server) as connection:
        connection.create_sender(queue).send(Message(body="x"))
        receiver = connection.create_receiver(queue, credit=0)
        drain(receiver, 1)
        settle(receiver, REJECTED)
        dead = connection.create_receiver(f"{queue}/$DeadLetterQueue", credit=1)
        assert dead.receive(timeout=10).body == "x"


def test_a_receiver_of_settled_transfers_deletes(
    server: Server, queue: str, administration: Administration
) -> None:
    """R-SETTLE-05: snd-settle-mode settled is receive-and-delete."""
    with plain_connection(server) as connection:
        sender = connection.create_sender(queue)
        for n in range(3):
            sender.send(Message(body=n))
        receiver = connection.create_receiver(queue, credit=0, options=Settled())
        assert [message.body for message in drain(receiver, 2)] == [0, 1]
    assert administration.counts(queue).active_message_count == 1


def test_the_server_gives_credit_and_tops_it_up(server: Server, queue: str) -> None:
    """R-SETTLE-12: flow control is link credit; it is bounded, and it does not run out."""
    with plain_connection(server) as connection:
        sender = connection.create_sender(queue)
        connection.wait(lambda: sender.link.credit > 0, msg="credit")
        first = sender.link.credit
        assert 100 <= first <= 10_000
        for n in range(first + 50):
            sender.send(Message(body=n))


def test_one_session_holds_at_most_2048_unsettled_deliveries(server: Server, queue: str) -> None:
    """The Node SDK's ring of deliveries overflows past that (wire §10.25)."""
    with plain_connection(server) as connection:
        sender = connection.create_sender(queue, options=AtMostOnce())
        for n in range(2500):
            sender.send(Message(body=n))
        receiver = connection.create_receiver(queue, credit=4000)
        held = receiver.fetcher.incoming

        def quiet() -> bool:
            before = len(held)
            connection.container.process()
            return before == len(held) == 2048

        connection.wait(lambda: len(held) >= 2048, msg="2048 deliveries")
        connection.create_sender(queue, name="another")  # a round trip: what was coming is here
        assert len(held) == 2048
        assert quiet()
        # settling some lets the rest come
        for _ in range(500):
            receiver.fetcher.pop()
            settle(receiver, ACCEPTED)
        connection.wait(lambda: len(held) >= 2500 - 500, msg="the rest")
