"""A generic AMQP client for what no SDK shows: single outcomes, drain, settle modes, credit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from proton import Delivery, Message
from proton.reactor import ReceiverOption
from proton.utils import BlockingConnection, BlockingReceiver

from tests.support.server import Server


class Settled(ReceiverOption):
    """Ask for messages that are settled when sent: receive and delete (wire §3.3)."""

    def apply(self, receiver: Any) -> None:
        receiver.snd_settle_mode = receiver.SND_SETTLED


@contextmanager
def plain_connection(server: Server) -> Iterator[BlockingConnection]:
    connection = BlockingConnection(
        f"amqp://localhost:{server.port}",
        timeout=10,
        user="RootManageSharedAccessKey",
        password="SAS_KEY_VALUE",
        allowed_mechs="PLAIN",
    )
    try:
        yield connection
    finally:
        connection.close()


def deliver_all(receiver: BlockingReceiver) -> None:
    """Proton stops after each message to let its caller look; this goes on while there are more."""
    seen = -1
    while seen != receiver.fetcher.has_message:
        seen = receiver.fetcher.has_message
        receiver.connection.container.do_work(0.02)


def drain(receiver: BlockingReceiver, credit: int) -> list[Message]:
    """Ask for what is there now: returns when the server has used up or given back all credit."""
    receiver.link.drain(credit)
    receiver.connection.wait(lambda: not receiver.link.draining(), msg="the link is drained")
    deliver_all(receiver)
    messages = []
    while receiver.fetcher.has_message:
        messages.append(receiver.fetcher.pop())
    return messages


def settle(receiver: BlockingReceiver, outcome: int, **local: Any) -> None:
    """Give a verdict on the oldest delivery that has none; returns when the server took it."""
    delivery = receiver.fetcher.unsettled.popleft()
    for name, value in local.items():
        setattr(delivery.local, name, value)
    delivery.update(outcome)
    delivery.settle()


MODIFIED, RELEASED = Delivery.MODIFIED, Delivery.RELEASED
ACCEPTED, REJECTED = Delivery.ACCEPTED, Delivery.REJECTED
