"""With no right but to listen, a client makes nothing larger than it may be."""

from __future__ import annotations

from proton import Delivery, Message
from proton.utils import BlockingReceiver

from tests.support.administration import Administration
from tests.support.proton_client import MODIFIED, REJECTED, plain_connection, settle
from tests.support.server import Server

PROPERTY = 60_000
TIMES = 10


def change(receiver: BlockingReceiver, name: str) -> Delivery:
    """Abandon the next message with a new property; returns when the broker has said what of it."""
    receiver.receive(timeout=10)
    delivery = receiver.fetcher.unsettled.popleft()
    delivery.local.annotations = {name: "x" * PROPERTY}
    delivery.local.failed = True
    delivery.update(MODIFIED)
    receiver.connection.wait(lambda: delivery.remote_state, timeout=10, msg="a verdict")
    delivery.settle()
    return delivery


def test_a_dead_letter_does_not_grow_with_each_abandon(server: Server) -> None:
    """R-DLQ-05. Each is refused that would take its headers over the limit, with the reason."""
    administration = Administration(server.connection_string)
    queue = administration.make_queue()
    with plain_connection(server) as connection:
        connection.create_sender(queue).send(Message(body="tea"))
        first = connection.create_receiver(queue, credit=1)
        first.receive(timeout=10)
        settle(first, REJECTED)
        first.close()
        dead_letters = connection.create_receiver(f"{queue}/$deadletterqueue", credit=0)
        taken, refused = 0, None
        while refused is None and taken < TIMES:
            dead_letters.link.flow(1)
            delivery = change(dead_letters, f"p{taken}")
            if delivery.remote_state == MODIFIED:
                taken += 1
            else:
                refused = delivery.remote
    assert taken == 1 and refused is not None
    assert refused.condition.name == "amqp:link:message-size-exceeded"
    assert "cannot be dead-lettered again" in refused.condition.description
    with administration.client as client:
        size = client.get_queue_runtime_properties(queue).size_in_bytes
    assert PROPERTY < size < PROPERTY + 2_000
