"""Sends to a partitioned queue: to another fragment only where it is certain that none has them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from postbus.amqp.frames.outcomes import Accepted, Rejected
from postbus.amqp.sections import Properties, encode_data, encode_properties
from postbus.broker.policy import Policy
from postbus.errors import OutcomeUnknown, QuotaExceeded, ServiceBusError, StoreUnavailable
from postbus.gateway.partitioned_links import PartitionedSender
from postbus.http.mailbox import Mailbox
from postbus.model.address import resolve_path
from postbus.model.partitioning import fragment_of
from postbus.model.plain_message import PlainMessage
from postbus.namespace.entities import QueueEntity
from postbus.settings import Settings
from postbus.store.ports.catalog import EntityRecord, FragmentRecord
from tests.unit.runtime.test_runtime import Bed, settled

# The stand-ins below are not the classes that a compiled sender insists on.
pytestmark = pytest.mark.interpreted_only
FRAGMENTS = 16
BODY = encode_properties(Properties(message_id="m")) + encode_data(b"m" * 100)
ORDERS = resolve_path("orders")


def allowed() -> None:
    """The client may still send."""


class Link:
    """The receiving end of a link."""

    credit = 100

    def __init__(self) -> None:
        self.outcomes: list[Any] = []

    def grant(self, credit: int) -> None: ...

    def settle(self, delivery: Any, outcome: Any) -> None:
        self.outcomes.append(outcome)


class Partitioned:
    """A partitioned queue on a gated store, and a sender link to it."""

    def __init__(self) -> None:
        self.bed = Bed()
        records = tuple(FragmentRecord(1 + n, n, 0) for n in range(FRAGMENTS))
        record = EntityRecord("orders", "queue", {"enable_partitioning": True}, 0, 0, records)
        self.entity = QueueEntity(record, Settings(), 0)
        self.link = Link()
        self.errors: list[ServiceBusError] = []
        gateway: Any = SimpleNamespace(
            now=0,
            service=SimpleNamespace(settings=Settings()),
            runtime=lambda fragment: self.bed.runtime,
            refusals=SimpleNamespace(rejected=self._rejected),
            touch=lambda: None,
        )
        link: Any = self.link
        self.sender = PartitionedSender(gateway, link, self.entity, 100)
        namespace: Any = SimpleNamespace(
            settings=Settings(),
            at=lambda address: self.entity,
            runtime=lambda fragment: self.bed.runtime,
        )
        self.mailbox = Mailbox(namespace, lambda: self.bed.now)

    def _rejected(self, error: ServiceBusError, entity: str) -> Rejected:
        self.errors.append(error)
        return Rejected()

    def limit(self, size_bytes: int, *indexes: int) -> None:
        for index in indexes:
            self.entity.fragments[index].policy = Policy(size_bytes_max=size_bytes)

    async def send(self, payload: bytes = BODY) -> None:
        delivery: Any = SimpleNamespace(message_format=0, payload=payload, state=None)
        self.sender.received(delivery)
        await settled()

    def stored(self) -> list[int]:
        """How many messages each fragment has in its engine."""
        engines = [fragment.engine for fragment in self.entity.fragments]
        return [0 if engine is None else engine.ledger.count(0) for engine in engines]


@pytest.fixture
async def queue() -> AsyncIterator[Partitioned]:
    queue = Partitioned()
    yield queue
    queue.bed.store.open.set()
    await queue.bed.thread.stop()


async def test_r_part_10_a_full_fragment_diverts_to_the_others_until_all_are_full(
    queue: Partitioned,
) -> None:
    """R-PART-10."""
    queue.limit(10, *range(1, FRAGMENTS))
    queue.limit(3 * len(BODY), 0)
    for _ in range(3):
        await queue.send()
    assert queue.link.outcomes == [Accepted()] * 3
    assert queue.stored() == [3, *[0] * 15]
    await queue.send()
    assert isinstance(queue.link.outcomes[-1], Rejected) and len(queue.link.outcomes) == 4
    assert [type(error) for error in queue.errors] == [QuotaExceeded]
    assert queue.stored() == [3, *[0] * 15]


async def test_r_part_10_a_full_fragment_diverts_what_comes_over_http(queue: Partitioned) -> None:
    """R-PART-10."""
    queue.limit(10, *range(FRAGMENTS - 1))
    for _ in range(2):
        await queue.mailbox.send(ORDERS, [PlainMessage(b"1"), PlainMessage(b"2")], allowed)
    assert queue.stored() == [*[0] * 15, 4]
    queue.limit(10, FRAGMENTS - 1)
    engine = queue.entity.fragments[-1].engine
    assert engine is not None
    engine.own.update(Policy(size_bytes_max=10), queue.bed.now)
    with pytest.raises(QuotaExceeded):
        await queue.mailbox.send(ORDERS, [PlainMessage(b"3")], allowed)


async def test_r_part_15_a_message_with_a_key_is_never_stored_elsewhere(queue: Partitioned) -> None:
    """R-PART-15."""
    queue.limit(10, fragment_of("k"))
    with pytest.raises(QuotaExceeded):
        await queue.mailbox.send(ORDERS, [PlainMessage(b"1", partition_key="k")], allowed)
    assert sum(queue.stored()) == 0


@pytest.mark.parametrize("failure", [OSError("gone"), StoreUnavailable("disk full")])
async def test_a_send_that_may_be_stored_is_not_sent_to_another_fragment(
    queue: Partitioned, failure: Exception
) -> None:
    """A store that is out is out for all its fragments."""
    await queue.send()
    queue.bed.store.failure = failure
    await queue.send()
    [error] = queue.errors
    assert isinstance(error, (OutcomeUnknown, StoreUnavailable))
    assert len(queue.link.outcomes) == 2
    assert sum(queue.stored()) == 1
