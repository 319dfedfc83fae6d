"""What a connection was promised and does not get is no longer counted against it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from postbus.amqp.sections import Properties, encode_data, encode_properties
from postbus.broker.subqueue_numbers import MAIN
from postbus.errors import ServiceBusError, StoreUnavailable
from postbus.gateway.client_links import ClientReceiver
from tests.support.bed import Bed, settled

# The stand-ins below are not the classes that a compiled Outlet insists on.
pytestmark = pytest.mark.interpreted_only
BODY = encode_properties(Properties(message_id="m")) + encode_data(b"m" * 100)


class Link:
    """The sending end of a link, as far as an Outlet goes."""

    def __init__(self) -> None:
        self.session = SimpleNamespace(owner=None, senders=list)
        self.snd_settle_mode = 0
        self.credit = 100
        self.drain = False
        self.attached = True
        self.sent = 0

    def room_beside(self, promised: int, promised_in_session: int) -> int:
        return max(0, self.credit - promised)

    def send(self, *_: Any, **__: Any) -> None:
        self.sent += 1
        self.credit -= 1


class Connection:
    """A gateway, likewise."""

    id = 1
    now = 0
    promised_bytes = 0

    def __init__(self, bed: Bed) -> None:
        self._bed = bed
        self.receiver: ClientReceiver | None = None
        self.held_back: dict[ClientReceiver, None] = {}

    def runtime(self, _: Any) -> Any:
        return self._bed.runtime

    def touch(self) -> None: ...

    def holds_back(self, _: ClientReceiver) -> bool:
        return False

    def attach(self) -> Link:
        entity = SimpleNamespace(
            path="orders",
            name="orders",
            prefetch=SimpleNamespace(credited=lambda _: None),
            touch=lambda _: None,
        )
        link = Link()
        self.receiver = ClientReceiver(
            cast(Any, self), cast(Any, link), cast(Any, entity), self._bed.fragment, MAIN
        )
        self.receiver.open()
        return link

    def detach(self, link: Link, error: ServiceBusError, entity: str) -> None:
        link.attached = False
        assert self.receiver is not None
        self.receiver.close()


@pytest.fixture
async def bed() -> Any:
    bed = Bed()
    yield bed
    bed.store.open.set()
    await bed.thread.stop()


def promised(connection: Connection, link: Link) -> tuple[int, int]:
    return connection.promised_bytes, link.session.owner.count


async def test_a_failed_commit_takes_its_promises_back(bed: Bed) -> None:
    await bed.send(*[BODY] * 5)
    connection = Connection(bed)
    link = connection.attach()
    bed.store.open.clear()
    bed.store.failure = StoreUnavailable("disk full")
    refused = bed.send(BODY)
    assert connection.receiver is not None
    connection.receiver.credited()
    await settled()
    assert promised(connection, link) == (6 * len(BODY), 6)

    bed.store.open.set()
    with pytest.raises(StoreUnavailable):
        await refused
    assert promised(connection, link) == (0, 0)
    assert link.sent == 0


async def test_a_promise_that_is_kept_after_a_close_is_counted_once(bed: Bed) -> None:
    await bed.send(*[BODY] * 5)
    connection = Connection(bed)
    link = connection.attach()
    bed.store.open.clear()
    sent = bed.send(BODY)
    assert connection.receiver is not None
    connection.receiver.credited()
    await settled()
    link.attached = False
    connection.receiver.close()
    assert promised(connection, link) == (0, 0)
    bed.store.open.set()
    await sent
    await settled()
    assert promised(connection, link) == (0, 0)


async def test_what_is_delivered_is_promised_no_more(bed: Bed) -> None:
    await bed.send(*[BODY] * 5)
    connection = Connection(bed)
    link = connection.attach()
    assert connection.receiver is not None
    connection.receiver.credited()
    await settled()
    assert link.sent == 5
    assert promised(connection, link) == (0, 0)
