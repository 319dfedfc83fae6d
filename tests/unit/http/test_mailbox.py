"""Messages for those who do not speak AMQP: what the mailbox asks of the engine, and refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from postbus.errors import (
    ConnectionForced,
    EntityDisabled,
    EntityNotFound,
    InvalidArgument,
    InvalidOperation,
    MessageLockLost,
    MessageNotFound,
    MessageSizeExceeded,
    ServerBusy,
    StoreUnavailable,
    Unauthorized,
)
from postbus.http.mailbox import Mailbox
from postbus.model.address import resolve_path
from postbus.model.description import EntityStatus, QueueDescription
from postbus.model.plain_message import PlainMessage, ReceivedMessage
from postbus.namespace.entities import QueueEntity
from postbus.runtime import runtime
from postbus.settings import Settings
from postbus.store.ports.catalog import EntityRecord, FragmentRecord
from tests.support.bed import Bed, settled

ORDERS = resolve_path("orders")
DEAD = resolve_path("orders/$DeadLetterQueue")


class SmallQueue(QueueEntity):
    """A queue that takes messages of up to 1,000 bytes."""

    message_size_max = 1_000


class Office:
    """A mailbox on a namespace with one queue."""

    def __init__(self) -> None:
        self.bed = Bed()
        self.refusal: Unauthorized | None = None
        """What somebody is told whose key is gone."""
        fragment = self.bed.fragment
        fragments = (FragmentRecord(fragment.id, 0, 0),)
        record = EntityRecord("orders", "queue", {}, 0, 0, fragments)
        self.entity: Any = SmallQueue(record, Settings(), 0)
        self.entity.fragments = (fragment,)
        fragment.meter = self.entity.meter
        namespace: Any = SimpleNamespace(
            name="ns",
            settings=Settings(),
            at=lambda address: self.entity if address.entity == "orders" else None,
            runtime=lambda fragment: self.bed.runtime,
        )
        self.mailbox = Mailbox(namespace, lambda: self.bed.now)
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def accessed_at(self) -> int:
        accessed_at: int = self.entity.accessed_at
        return accessed_at

    async def send(self, *bodies: bytes, **facts: Any) -> None:
        messages = [PlainMessage(body, **facts) for body in bodies]
        await self.mailbox.send(ORDERS, messages, self.check)

    async def receive(self, deletes: bool = False, wait_ms: int = 0) -> ReceivedMessage | None:
        return await self.mailbox.receive(ORDERS, deletes, wait_ms, self.gone, self.check)

    def check(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    async def lock(self) -> tuple[str, UUID]:
        received = await self.receive()
        assert received is not None and received.token is not None
        return str(received.number), received.token


@pytest.fixture
async def office() -> AsyncIterator[Office]:
    office = Office()
    yield office
    office.bed.store.open.set()
    await office.bed.thread.stop()


async def test_a_message_goes_in_and_out(office: Office) -> None:
    await office.send(b"1", message_id="m")
    assert office.accessed_at == office.bed.now
    received = await office.receive(deletes=True)
    assert received is not None
    assert (received.message.body, received.message.message_id) == (b"1", "m")
    assert await office.receive() is None
    meter = office.entity.meter
    assert (meter.sends, meter.receives, meter.empty_receives) == (1, 1, 1)
    assert meter.bytes_in == meter.bytes_out > 0


async def test_a_send_is_answered_after_its_commit(office: Office) -> None:
    """R-SETTLE-01."""
    office.bed.store.open.clear()
    sending = asyncio.ensure_future(office.send(b"1"))
    await settled()
    assert not sending.done()
    office.bed.store.failure = StoreUnavailable("disk full")
    office.bed.store.open.set()
    with pytest.raises(StoreUnavailable):
        await sending
    assert office.entity.meter.bytes_in == 0
    assert await office.receive() is None


async def test_a_batch_is_stored_whole_or_not_at_all(office: Office) -> None:
    messages = [PlainMessage(b"1"), PlainMessage(message_id="x" * 129)]
    with pytest.raises(InvalidArgument):
        await office.mailbox.send(ORDERS, messages, office.check)
    assert await office.receive() is None


async def test_what_a_key_had_opened_is_not_stored_once_the_key_is_gone(office: Office) -> None:
    """The body of a send may come slowly, and long after the right was first looked at."""
    office.refusal = Unauthorized("The key is gone.")
    with pytest.raises(Unauthorized):
        await office.send(b"1")
    office.refusal = None
    assert await office.receive() is None


async def test_how_settling_ends_a_lock(office: Office) -> None:
    mailbox = office.mailbox
    await office.send(b"1")
    number, token = await office.lock()
    await mailbox.renew(ORDERS, number, token)
    assert office.entity.meter.lock_renewals == 1
    await mailbox.unlock(ORDERS, number, token)
    for settle in (mailbox.renew, mailbox.unlock, mailbox.complete):
        with pytest.raises(MessageLockLost):
            await settle(ORDERS, number, token)
    number, token = await office.lock()
    await mailbox.complete(ORDERS, number, token)
    assert await office.receive() is None
    assert (office.entity.meter.abandons, office.entity.meter.completions) == (1, 1)


async def test_a_lock_is_settled_under_its_own_name_only(office: Office) -> None:
    await office.send(b"1", message_id="m")
    number, token = await office.lock()
    with pytest.raises(MessageNotFound):
        await office.mailbox.complete(ORDERS, "another", token)
    with pytest.raises(MessageLockLost):
        await office.mailbox.complete(DEAD, number, token)
    await office.mailbox.complete(ORDERS, "m", token)


async def test_where_nothing_can_be_sent_nothing_is_read(office: Office) -> None:
    mailbox = office.mailbox
    assert mailbox.room_for(ORDERS) == 1_000
    with pytest.raises(EntityNotFound):
        mailbox.room_for(resolve_path("absent"))
    with pytest.raises(InvalidOperation):
        mailbox.room_for(DEAD)
    office.entity.description = QueueDescription(status=EntityStatus.SEND_DISABLED)
    with pytest.raises(EntityDisabled):
        mailbox.room_for(ORDERS)


@pytest.mark.interpreted_only
async def test_a_busy_broker_says_so_before_it_reads(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "QUEUED_BYTES_MAX", 10)
    office.bed.store.open.clear()
    sends = []
    for _ in range(runtime.COMMITS_MAX):
        sends.append(asyncio.ensure_future(office.send(b"1")))
        await settled()
    assert office.mailbox.room_for(ORDERS) == 1_000, "each of them is under way"
    sends.append(asyncio.ensure_future(office.send(b"x" * 100)))
    await settled()
    with pytest.raises(ServerBusy):
        office.mailbox.room_for(ORDERS)
    office.bed.store.open.set()
    await asyncio.gather(*sends)
    assert office.mailbox.room_for(ORDERS) == 1_000


async def test_nobody_receives_from_what_is_disabled(office: Office) -> None:
    office.entity.description = QueueDescription(status=EntityStatus.RECEIVE_DISABLED)
    with pytest.raises(EntityDisabled):
        await office.receive()


async def test_a_stop_ends_all_waits_and_lets_none_begin(office: Office) -> None:
    waiting = [asyncio.ensure_future(office.receive(wait_ms=30_000)) for _ in range(3)]
    await settled()
    office.mailbox.stop()
    found = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)
    assert [type(each) for each in found] == [ConnectionForced] * 3
    with pytest.raises(ConnectionForced):
        await office.receive()


async def test_refusals_are_counted_where_they_belong(office: Office) -> None:
    office.mailbox.refused(ORDERS, MessageSizeExceeded("too large"))
    office.mailbox.refused(resolve_path("absent"), EntityNotFound("absent"))
    assert office.entity.meter.refusals == {"amqp:link:message-size-exceeded": 1}


async def test_who_waits_by_a_key_that_is_taken_away_waits_no_longer(office: Office) -> None:
    waiting = [asyncio.ensure_future(office.receive(wait_ms=30_000)) for _ in range(2)]
    await settled()
    office.mailbox.review()
    await settled()
    assert not any(each.done() for each in waiting), "the key is still good"
    office.refusal = Unauthorized("The key is gone.")
    office.mailbox.review()
    for each in waiting:
        with pytest.raises(Unauthorized, match="gone"):
            await asyncio.wait_for(each, 10)
    with pytest.raises(Unauthorized):
        await office.receive(wait_ms=30_000)


@pytest.mark.parametrize("deletes", [False, True])
async def test_what_is_on_its_way_to_a_key_that_is_taken_away_goes_back(
    office: Office, deletes: bool
) -> None:
    waiting = asyncio.ensure_future(office.receive(deletes, wait_ms=30_000))
    await settled()
    office.bed.store.open.clear()
    sending = asyncio.ensure_future(office.send(b"one"))
    await settled()
    office.refusal = Unauthorized("The key is gone.")
    office.mailbox.review()
    with pytest.raises(Unauthorized, match="gone"):
        await asyncio.wait_for(waiting, 10)
    office.bed.store.open.set()
    await sending
    office.refusal = None
    received = await office.receive(wait_ms=30_000)
    assert received is not None and received.message.body == b"one"
