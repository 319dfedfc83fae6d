"""Browsing: a receiver whose source has the distribution mode `copy` sees messages, takes none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from postbus.amqp.codec.types import Described, Symbol, ULong
from postbus.amqp.deliveries import IncomingDelivery
from postbus.amqp.events import Event, LinkDetached, MessageReceived
from postbus.amqp.frames.outcomes import Accepted, Modified, Outcome, Rejected, Released
from postbus.amqp.frames.performatives import ROLE_RECEIVER, SND_SETTLED, SND_UNSETTLED, Attach
from postbus.amqp.frames.terminus import Source, Target
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sections import (
    encode_data,
    read_annotations,
    read_data,
    read_delivery_annotations,
    read_header,
    scan,
)
from tests.support.access import Caller, Refused, sas
from tests.support.administration import Administration
from tests.support.bus import DEAD_LETTERS, Bus, Subscription, Topic, gather_messages, receive_one
from tests.support.server import Server
from tests.support.waiting import until_past

COPY = Symbol("copy")
SESSIONS = {Symbol("com.microsoft:session-filter"): "s"}


class Browsing(Caller):
    """A client that browses one entity; what it is shown piles up in `shown`."""

    def __init__(self, server: Server) -> None:
        super().__init__(server, "RootManageSharedAccessKey", "SAS_KEY_VALUE")
        self.shown: list[IncomingDelivery] = []

    def read(self) -> list[Event]:
        events = super().read()
        self.shown += [each.delivery for each in events if isinstance(each, MessageReceived)]
        return events

    def browse(self, address: str, mode: int = SND_SETTLED) -> ReceiverLink:
        source = Source(address, distribution_mode=COPY)
        attach = Attach(f"b-{time.monotonic_ns()}", 0, ROLE_RECEIVER, source=source)
        attach.target, attach.snd_settle_mode = Target("t"), mode
        link = self.session.attach(ReceiverLink, attach)
        self.write()
        while not link.attached:
            self.read()
        assert link.source is not None and link.source.distribution_mode == COPY
        return link

    def wait(self, count: int) -> list[str]:
        """The bodies of what was shown, once there are so many."""
        deadline = time.monotonic() + 20
        while len(self.shown) < count and time.monotonic() < deadline:
            self.read()
        return self.bodies()

    def bodies(self) -> list[str]:
        return [read_data(d.payload, scan(d.payload)).decode() for d in self.shown]

    def drain(self, link: ReceiverLink, credit: int) -> list[str]:
        """What there is: returns when all credit is used or was given back."""
        self.shown.clear()
        link.grant(credit)
        link.request_drain()
        self.write()
        while link.credit:
            self.read()
        return self.bodies()


@pytest.fixture
def browsing(server: Server) -> Iterator[Browsing]:
    with Browsing(server) as client:
        yield client


@pytest.mark.parametrize("mode", [SND_SETTLED, SND_UNSETTLED])
@pytest.mark.parametrize("outcome", [Accepted(), Rejected(), Released(), Modified(True, True)])
async def test_whatever_a_browser_says_of_messages_they_stay_as_they_are(
    bus: Bus, browsing: Browsing, queue: str, mode: int, outcome: Outcome
) -> None:
    await bus.send(queue, *(ServiceBusMessage(f"{n}") for n in range(3)))
    link = browsing.browse(queue, mode)
    link.grant(10)
    browsing.write()
    assert browsing.wait(3) == ["0", "1", "2"]
    for delivery in browsing.shown:
        sections = scan(delivery.payload)
        assert delivery.settled is (mode == SND_SETTLED)
        assert len(delivery.tag) != 16, "no lock token"
        assert read_delivery_annotations(delivery.payload, sections) == {}
        assert "x-opt-locked-until" not in read_annotations(delivery.payload, sections)
        assert read_header(delivery.payload, sections).delivery_count == 0
        link.settle(delivery, outcome)
    browsing.write()
    assert browsing.drain(link, 10) == [], "each is shown once on a link"
    async with bus.receiver(queue) as receiver:
        messages = await gather_messages(receiver, 3)
        assert [each.delivery_count for each in messages] == [0, 0, 0]
        assert browsing.drain(browsing.browse(queue), 10) == ["0", "1", "2"], "locked ones, too"
        for message in messages:
            await receiver.complete_message(message)
    assert browsing.drain(browsing.browse(queue), 10) == []


@pytest.mark.parametrize(("count", "size", "credit"), [(600, 1, 1000), (20, 60_000, 7), (5, 1, 1)])
async def test_a_browser_goes_through_pages_as_its_credit_allows(
    bus: Bus, browsing: Browsing, queue: str, count: int, size: int, credit: int
) -> None:
    """More than fit into one look, by number and by bytes, and more than there is credit for."""
    sender = browsing.sender(queue)
    for n in range(count):
        sender.send(b"%d" % n, encode_data(f"{n}".rjust(size).encode()), settled=True)
        browsing.write()
        while not sender.sendable:
            browsing.read()
    while len(await bus.peek(queue, 250)) < min(count, 4):
        pass
    wanted = [f"{n}".rjust(size) for n in range(count)]
    link = browsing.browse(queue)
    seen: list[str] = []
    while len(seen) < count:
        more = browsing.drain(link, credit)
        assert len(more) <= credit
        seen += more
    assert seen == wanted
    assert browsing.drain(link, credit) == []


async def test_a_browser_that_waits_is_shown_what_comes_later(
    bus: Bus, browsing: Browsing, queue: str
) -> None:
    link = browsing.browse(queue)
    link.grant(10)
    browsing.write()
    for n in range(3):
        await bus.send(queue, ServiceBusMessage(f"{n}"))
        assert browsing.wait(n + 1) == [f"{m}" for m in range(n + 1)]


async def test_a_browser_sees_neither_deferred_nor_scheduled_nor_expired_messages(
    bus: Bus, browsing: Browsing, queue: str
) -> None:
    """What a receiver could not be given is not shown; by peek it is."""
    later = datetime.now(UTC) + timedelta(hours=1)
    soon = timedelta(seconds=1)
    await bus.send(
        queue,
        ServiceBusMessage("deferred"),
        ServiceBusMessage("scheduled", scheduled_enqueue_time_utc=later),
        ServiceBusMessage("expired", time_to_live=soon),
        ServiceBusMessage("there"),
    )
    async with bus.receiver(queue) as receiver:
        await receiver.defer_message(await receive_one(receiver))
    await until_past(datetime.now(UTC) + soon)
    assert browsing.drain(browsing.browse(queue), 10) == ["there"]


async def test_subscriptions_and_dead_letters_are_browsed_as_queues_are(
    bus: Bus, browsing: Browsing, topic: Topic, subscription: Subscription
) -> None:
    await bus.send(topic, ServiceBusMessage("a"), ServiceBusMessage("b"))
    path = f"{topic}/Subscriptions/{subscription.name}"
    assert browsing.drain(browsing.browse(path), 10) == ["a", "b"]
    async with bus.receiver(subscription) as receiver:
        await receiver.dead_letter_message(await receive_one(receiver), reason="r")
    assert browsing.drain(browsing.browse(path), 10) == ["b"]
    assert browsing.drain(browsing.browse(f"{path}/$DeadLetterQueue"), 10) == ["a"]
    assert len(await bus.peek(subscription, sub_queue=DEAD_LETTERS)) == 1


async def test_all_sessions_are_browsed_together_and_none_is_held(
    bus: Bus, browsing: Browsing, make_queue: Callable[..., str]
) -> None:
    queue = make_queue(requires_session=True)
    await bus.send(queue, *(ServiceBusMessage(f"{n}", session_id=f"{n % 2}") for n in range(4)))
    assert browsing.drain(browsing.browse(queue), 10) == ["0", "1", "2", "3"]
    async with bus.receiver(queue, session_id="1") as receiver:
        assert len(await gather_messages(receiver, 2)) == 2
        assert browsing.drain(browsing.browse(queue), 10) == ["0", "1", "2", "3"]


def test_a_browser_is_detached_when_its_queue_is_deleted(
    browsing: Browsing, administration: Administration
) -> None:
    queue = administration.make_queue()
    link = browsing.browse(queue)
    link.grant(5)
    browsing.write()
    administration.client.delete_queue(queue)
    assert browsing.detached(link).condition == "amqp:not-found"


REFUSALS = {
    "dynamic": (Source(dynamic=True), "amqp:not-implemented", "Dynamic nodes are not supported"),
    "dynamic and named": (Source("q", dynamic=True), "amqp:not-implemented", "Dynamic nodes"),
    "selector": (
        {Symbol("jms-selector"): Described(Symbol("apache.org:selector-filter:string"), "a = 1")},
        "amqp:not-implemented",
        "Selectors are not supported",
    ),
    "selector by its number": (
        {Symbol("mine"): Described(ULong(0x0000468C00000004), "a = 1")},
        "amqp:not-implemented",
        "Selectors are not supported",
    ),
    "selector without a descriptor": (
        {Symbol("apache.org:selector-filter:string"): "a = 1"},
        "amqp:not-implemented",
        "Selectors are not supported",
    ),
    "no-local": (
        {Symbol("no-local"): Described(ULong(0x0000468C00000003), [])},
        "amqp:not-implemented",
        "leave out their own messages",
    ),
    "any other filter": (
        {Symbol("com.example:colour"): Described(Symbol("com.example:colour"), "red")},
        "amqp:not-implemented",
        "The filter 'com.example:colour' is not supported",
    ),
    "a mode that nobody knows": (
        Source("q", distribution_mode=Symbol("share")),
        "com.microsoft:argument-error",
        "'share' is neither 'move' nor 'copy'",
    ),
    "a durable subscription": (
        Source("q", distribution_mode=COPY, durable=2),
        "amqp:not-implemented",
        "Durable subscriptions are not made by a link",
    ),
    "browsing a session": (
        Source("q", distribution_mode=COPY, filter=SESSIONS),
        "amqp:not-implemented",
        "cannot ask for one",
    ),
    "no address": (Source(), "com.microsoft:argument-error", "names no address"),
}


@pytest.mark.parametrize("case", REFUSALS)
@pytest.mark.parametrize("node", ["", "/$management"])
def test_what_a_source_asks_for_and_is_not_there_is_refused_by_name(
    browsing: Browsing, queue: str, case: str, node: str
) -> None:
    """Never echoed and ignored: many clients do not look at what is in force."""
    asked, condition, text = REFUSALS[case]
    source: Any = Source("q", filter=asked) if isinstance(asked, dict) else asked
    if node and case == "browsing a session":
        text = "The answers of a node cannot be browsed"
    if source.address is not None:
        source = Source(
            queue + node,
            dynamic=source.dynamic,
            distribution_mode=source.distribution_mode,
            filter=source.filter,
            durable=source.durable,
        )
    refused = browsing.attach("receive", source)
    assert isinstance(refused, Refused)
    assert refused.condition == condition
    assert text in refused.text and "TrackingId:" in refused.text


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (Target(dynamic=True), "Dynamic nodes are not supported"),
        (Target(), "anonymous relay"),
    ],
)
def test_senders_without_a_target_of_their_own_are_refused_by_name(
    browsing: Browsing, target: Target, text: str
) -> None:
    refused = browsing.attach("send", target)
    assert isinstance(refused, Refused)
    assert refused.condition == "amqp:not-implemented"
    assert text in refused.text


def test_a_client_that_says_move_receives(browsing: Browsing, queue: str) -> None:
    link = browsing.attach("receive", Source(queue, distribution_mode=Symbol("move")))
    assert isinstance(link, ReceiverLink)
    sender = browsing.sender(queue)
    sender.send(b"t", encode_data(b"x"), settled=True)
    link.grant(1)
    browsing.write()
    assert browsing.wait(1) == ["x"]
    assert len(browsing.shown[0].tag) == 16, "a lock token"


@pytest.mark.parametrize(
    ("default", "count"), [(None, 0), (Released(), 0), (Modified(True), 1), (Rejected(), None)]
)
async def test_what_is_settled_without_a_verdict_has_the_outcome_that_its_client_named(
    bus: Bus, browsing: Browsing, queue: str, default: Outcome | None, count: int | None
) -> None:
    """AMQP 3.5.3: a default outcome that is echoed is in force."""
    await bus.send(queue, ServiceBusMessage("x"))
    link = browsing.attach("receive", Source(queue, default_outcome=default))
    assert isinstance(link, ReceiverLink)
    link.grant(1)
    browsing.write()
    browsing.wait(1)
    link.settle(browsing.shown[0], None)
    browsing.write()
    where = DEAD_LETTERS if count is None else None
    async with bus.receiver(queue, sub_queue=where) as receiver:
        message = await receive_one(receiver)
    assert message.delivery_count == (count or 0)


def test_a_browser_needs_the_right_to_listen_for_as_long_as_it_is_there(
    server: Server, queue: str
) -> None:
    with Caller(server) as caller:
        source = Source(queue, distribution_mode=COPY)
        refused = caller.attach("receive", source)
        assert isinstance(refused, Refused)
        assert refused.condition == "amqp:unauthorized-access"
        token = sas("RootManageSharedAccessKey", "SAS_KEY_VALUE", lasts_s=2)
        assert caller.put_token(f"sb://localhost/{queue}", token).status == 202
        link = caller.attach("receive", source)
        assert isinstance(link, ReceiverLink)
        lost = caller.detached(link)
        assert lost.condition == "amqp:unauthorized-access"
        assert "'Listen' claim(s) are required" in lost.text


def test_a_browser_may_leave_while_it_is_looked_for(browsing: Browsing, queue: str) -> None:
    for _ in range(20):
        link = browsing.browse(queue)
        link.grant(5)
        link.detach()
        browsing.write()
        while not any(isinstance(e, LinkDetached) and e.link is link for e in browsing.seen):
            browsing.read()
    assert browsing.drain(browsing.browse(queue), 5) == []
