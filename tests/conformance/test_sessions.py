"""Message sessions: one receiver for each, in order, with state; accepted by name or as they come.

What holds is in wire §3.3, §6.2 and semantics B §1.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusMessage,
    ServiceBusMessageState,
)
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from tests.support.administration import Administration
from tests.support.bus import (
    DEAD_LETTERS,
    Bus,
    Subscription,
    Topic,
    gather_messages,
    receive_none,
    receive_one,
    text,
    texts,
)
from tests.support.rest import RestClient
from tests.support.server import Server
from tests.support.waiting import until, until_past

pytestmark = pytest.mark.both_kinds

NEXT = NEXT_AVAILABLE_SESSION


def message(body: str, session: str | None, **options: Any) -> ServiceBusMessage:
    return ServiceBusMessage(body, session_id=session, **options)


@pytest.fixture
def queue(make_queue: Callable[..., str]) -> str:
    return make_queue(requires_session=True)


async def test_a_session_gives_its_own_messages_in_order(bus: Bus, queue: str) -> None:
    await bus.send(queue, *(message(f"{n}", f"s{n % 3}") for n in range(12)))

    async with bus.receiver(queue, session_id="s1") as receiver:
        session = bus.session(receiver)
        assert session.session_id == "s1"
        left = session.locked_until_utc - datetime.now(UTC)
        assert timedelta(0) < left <= timedelta(seconds=60)
        got = await gather_messages(receiver, 4)
        assert texts(got) == ["1", "4", "7", "10"]
        assert {each.session_id for each in got} == {"s1"}
        for each in got:
            await receiver.complete_message(each)
        await receive_none(receiver)

    assert await bus.sessions(queue) == ["s0", "s2"]


async def test_next_sessions_come_to_all_who_ask(bus: Bus, queue: str) -> None:
    await bus.send(queue, *(message("x", f"s{n}") for n in range(3)))

    held = [await bus.open_receiver(queue, session_id=NEXT) for _ in range(3)]
    assert sorted(bus.session(each).session_id for each in held) == ["s0", "s1", "s2"]
    with pytest.raises(OperationTimeoutError):
        async with bus.receiver(queue, session_id=NEXT, max_wait_time=1):
            pass


async def test_a_next_session_is_waited_for(bus: Bus, queue: str) -> None:
    """And other links of the client go on meanwhile (wire §10.35)."""

    async def accept() -> str:
        async with bus.receiver(queue, session_id=NEXT, max_wait_time=20) as receiver:
            assert text(await receive_one(receiver)) == "late"
            return str(bus.session(receiver).session_id)

    began = time.monotonic()
    waiting = asyncio.create_task(accept())
    await asyncio.sleep(0.5)
    assert not waiting.done()
    await bus.send(queue, message("late", "new"))
    assert await waiting == "new"
    assert time.monotonic() - began < 15


async def test_a_wait_for_a_session_ends_in_time(bus: Bus, queue: str) -> None:
    began = time.monotonic()
    with pytest.raises(OperationTimeoutError, match="did not complete within the allotted timeout"):
        async with bus.receiver(queue, session_id=NEXT, max_wait_time=2):
            pass
    assert 1.5 < time.monotonic() - began < 8


@pytest.mark.parametrize("session", ["never seen", ""])
async def test_a_named_session_may_be_empty(bus: Bus, queue: str, session: str) -> None:
    async with bus.receiver(queue, session_id=session) as receiver:
        assert bus.session(receiver).session_id == session
        await receive_none(receiver)
        await bus.send(queue, message("x", session), message("y", "another"))
        assert text(await receive_one(receiver)) == "x"
        await receive_none(receiver)


async def test_a_session_has_one_receiver(
    bus: Bus, queue: str, open_bus: Callable[..., Bus]
) -> None:
    await bus.send(queue, message("x", "mine"))
    async with bus.receiver(queue, session_id="mine") as receiver:
        for other in (bus, open_bus()):
            with pytest.raises(SessionCannotBeLockedError, match="'mine' cannot be accepted"):
                async with other.receiver(queue, session_id="mine"):
                    pass
        await receiver.complete_message(await receive_one(receiver))

    # free at once when it is closed
    async with open_bus().receiver(queue, session_id="mine") as receiver:
        await receive_none(receiver)


async def test_the_wrong_kind_of_receiver_is_refused(
    bus: Bus, queue: str, make_queue: Callable[..., str]
) -> None:
    with pytest.raises(ServiceBusError, match="create a non-sessionful message receiver"):
        async with bus.receiver(queue) as receiver:
            await receiver.receive_messages(max_wait_time=1)
    with pytest.raises(ServiceBusError, match="sessionful message receiver cannot be created"):
        async with bus.receiver(make_queue(), session_id="mine"):
            pass
    # dead letters are in no session
    with pytest.raises(ServiceBusError, match="sessionful message receiver cannot be created"):
        async with bus.receiver(f"{queue}/$DeadLetterQueue", session_id="mine"):
            pass


async def test_a_message_without_a_session_is_refused(bus: Bus, queue: str) -> None:
    with pytest.raises(ServiceBusError, match="The SessionId was not set on a message"):
        await bus.send(queue, ServiceBusMessage("x"))
    soon = datetime.now(UTC) + timedelta(seconds=60)
    async with bus.sender(queue) as sender:
        with pytest.raises(ServiceBusError, match="The SessionId was not set on a message"):
            await sender.schedule_messages(ServiceBusMessage("x"), soon)


async def test_a_partition_key_must_be_the_session(bus: Bus, queue: str) -> None:
    """R-PART-12. The SDK itself refuses the difference when it is set, so it is set behind it."""
    odd = message("x", "mine")
    odd._raw_amqp_message.annotations = {b"x-opt-partition-key": "other"}
    with pytest.raises(ServiceBusError, match="PartitionKey of the message differs"):
        await bus.send(queue, odd)
    async with bus.sender(queue) as sender:
        with pytest.raises(ServiceBusError, match="PartitionKey of the message differs"):
            await sender.schedule_messages(odd, datetime.now(UTC) + timedelta(seconds=60))


async def test_the_session_with_the_empty_name_is_one_like_any_other(bus: Bus, queue: str) -> None:
    """R-PART-12: it contradicts no partition key."""
    keyed = message("keyed", "")
    keyed._raw_amqp_message.annotations = {b"x-opt-partition-key": "other"}
    await bus.send(queue, keyed, message("x", "another"), message("second", ""))
    async with bus.receiver(queue, session_id="") as receiver:
        session = bus.session(receiver)
        await session.set_state(b"mine")
        await session.renew_lock()
        assert texts(await receiver.peek_messages(5)) == ["keyed", "second"]
        first = await receive_one(receiver)
        assert (text(first), first.session_id, first.partition_key) == ("keyed", "", "other")
        await receiver.defer_message(first)
        [first] = await receiver.receive_deferred_messages([first.sequence_number])
        await receiver.complete_message(first)
        await receiver.dead_letter_message(await receive_one(receiver), reason="")
    async with bus.receiver(queue, session_id="") as receiver:
        assert await bus.session(receiver).get_state() == b"mine"
        await receive_none(receiver)


async def test_receive_and_delete_in_a_session(
    bus: Bus, queue: str, administration: Administration
) -> None:
    await bus.send(queue, *(message(f"{n}", "mine") for n in range(5)), message("x", "other"))
    got = await bus.receive(queue, 5, session_id="mine")
    assert texts(got) == [f"{n}" for n in range(5)]
    assert administration.counts(queue).active_message_count == 1


async def test_an_abandoned_message_comes_again_before_the_next(bus: Bus, queue: str) -> None:
    await bus.send(queue, message("1", "mine"), message("2", "mine"))
    async with bus.receiver(queue, session_id="mine") as receiver:
        first = await receive_one(receiver)
        await receiver.abandon_message(first)
        again = await receive_one(receiver)
        assert (text(again), again.delivery_count) == ("1", 1)
        await receiver.complete_message(again)
        assert text(await receive_one(receiver)) == "2"


async def test_a_close_gives_back_what_was_not_settled_uncounted(bus: Bus, queue: str) -> None:
    await bus.send(queue, message("1", "mine"), message("2", "mine"))
    async with bus.receiver(queue, session_id="mine") as receiver:
        kept = await gather_messages(receiver, 2)
        await receiver.complete_message(kept[0])
    async with bus.receiver(queue, session_id="mine") as receiver:
        again = await receive_one(receiver)
        assert (text(again), again.delivery_count) == ("2", 0)


async def test_a_lock_that_runs_out_ends_the_receiver_and_counts(
    bus: Bus, make_queue: Callable[..., str]
) -> None:
    queue = make_queue(requires_session=True, lock_s=5)
    await bus.send(queue, message("x", "mine"))
    receiver = await bus.open_receiver(queue, session_id="mine")
    late = await receive_one(receiver)
    await until_past(bus.session(receiver).locked_until_utc)
    with pytest.raises(SessionLockLostError):
        await receiver.complete_message(late)
    with pytest.raises(SessionLockLostError):
        await bus.session(receiver).renew_lock()

    async def accept() -> Any:
        try:
            return await bus.open_receiver(queue, session_id="mine")
        except SessionCannotBeLockedError:
            return None

    again = await receive_one(await until("the session is free", accept))
    assert (text(again), again.delivery_count) == ("x", 1)


async def test_renewing_keeps_the_session(bus: Bus, make_queue: Callable[..., str]) -> None:
    queue = make_queue(requires_session=True, lock_s=5)
    await bus.send(queue, message("x", "mine"))
    async with bus.receiver(queue, session_id="mine") as receiver:
        held = await receive_one(receiver)
        session = bus.session(receiver)
        first = session.locked_until_utc
        await asyncio.sleep(2)
        until_when = await session.renew_lock()
        assert until_when >= first + timedelta(seconds=1)
        await until_past(first)
        await receiver.complete_message(held)


async def test_state_stays_with_the_session(bus: Bus, queue: str) -> None:
    async with bus.receiver(queue, session_id="mine") as receiver:
        session = bus.session(receiver)
        assert await session.get_state() is None
        await session.set_state(b"one")
        await session.set_state("two")
        assert await session.get_state() == b"two"
    assert await bus.sessions(queue) == ["mine"]
    async with bus.receiver(queue, session_id="mine") as receiver:
        session = bus.session(receiver)
        assert await session.get_state() == b"two"
        for nothing in (b"", None):  # Go says null by an empty binary, and Azure answers null
            await session.set_state(b"three")
            await session.set_state(nothing)
            assert await session.get_state() is None
    assert await bus.sessions(queue) == []


async def test_state_has_the_size_of_a_message_at_most(bus: Bus, queue: str) -> None:
    async with bus.receiver(queue, session_id="mine") as receiver:
        session = bus.session(receiver)
        await session.set_state(b"x" * 256 * 1024)
        with pytest.raises(MessageSizeExceededError, match="262144 bytes are allowed"):
            await session.set_state(b"x" * (256 * 1024 + 1))
        assert await session.get_state() == b"x" * 256 * 1024


async def test_sessions_are_listed_by_state_or_message(bus: Bus, queue: str) -> None:
    assert await bus.sessions(queue) == []
    await bus.send(queue, *(message("x", f"s{n:03d}") for n in range(130)))
    before = datetime.now(UTC) - timedelta(minutes=1)
    assert await bus.sessions(queue, state_updated_after=before) == []
    async with bus.receiver(queue, session_id="stateful") as receiver:
        await bus.session(receiver).set_state(b"x")

    # In the order of ids within a fragment.
    found = await bus.sessions(queue)
    assert sorted(found) == [*(f"s{n:03d}" for n in range(130)), "stateful"]
    assert await bus.sessions(queue, state_updated_after=before) == ["stateful"]
    later = datetime.now(UTC) + timedelta(hours=1)
    assert await bus.sessions(queue, state_updated_after=later) == []


async def test_deferred_messages_are_fetched_within_their_session(bus: Bus, queue: str) -> None:
    await bus.send(queue, message("1", "mine"), message("2", "mine"), message("3", "other"))
    async with bus.receiver(queue, session_id="mine") as receiver:
        first = await receive_one(receiver)
        await receiver.defer_message(first)
        assert text(await receive_one(receiver)) == "2"
        [fetched] = await receiver.receive_deferred_messages(first.sequence_number)
        assert text(fetched) == "1" and fetched.state is ServiceBusMessageState.DEFERRED
        await receiver.complete_message(fetched)
    async with bus.receiver(queue, session_id="other") as receiver:
        await receiver.defer_message(await receive_one(receiver))
    assert len(await bus.peek(queue, session_id="other")) == 1


async def test_a_peek_shows_one_session(bus: Bus, queue: str) -> None:
    await bus.send(queue, *(message(f"{n}", f"s{n % 2}") for n in range(6)))
    assert texts(await bus.peek(queue, session_id="s0")) == ["0", "2", "4"]
    assert texts(await bus.peek(queue, session_id="s1")) == ["1", "3", "5"]


async def test_scheduled_messages_join_their_session_when_due(bus: Bus, queue: str) -> None:
    due = datetime.now(UTC) + timedelta(seconds=2)
    async with bus.sender(queue) as sender:
        await sender.schedule_messages(message("later", "mine"), due)
        await sender.send_messages(message("now", "mine"))
    async with bus.receiver(queue, session_id="mine") as receiver:
        assert text(await receive_one(receiver)) == "now"
        assert text(await receive_one(receiver)) == "later"
        assert datetime.now(UTC) >= due


async def test_dead_letters_of_a_session_queue_are_plain(bus: Bus, queue: str) -> None:
    await bus.send(queue, message("x", "mine"))
    async with bus.receiver(queue, session_id="mine") as receiver:
        await receiver.dead_letter_message(await receive_one(receiver), reason="why")
    async with bus.receiver(queue, sub_queue=DEAD_LETTERS) as receiver:
        dead = await receive_one(receiver)
        assert (dead.session_id, dead.dead_letter_reason) == ("mine", "why")
        await receiver.complete_message(dead)


async def test_a_subscription_with_sessions(
    bus: Bus, topic: Topic, administration: Administration
) -> None:
    sessional: Subscription = administration.make_subscription(topic, requires_session=True)
    plain = administration.make_subscription(topic)
    await bus.send(topic, message("a", "mine"), message("b", None), message("c", "mine"))

    assert await bus.sessions(sessional) == ["mine"]
    async with bus.receiver(sessional, session_id=NEXT) as receiver:
        assert texts(await gather_messages(receiver, 2)) == ["a", "c"]
    assert sorted(texts(await bus.receive(plain, 3))) == ["a", "b", "c"]
    [dead] = await bus.receive(sessional, sub_queue=DEAD_LETTERS)
    assert text(dead) == "b" and dead.dead_letter_reason == "Session ID is null"


async def test_two_receivers_never_hold_one_session(bus: Bus, queue: str) -> None:
    """Many receivers go round few sessions; each message comes to one, and in order."""
    count, sessions = 60, 4
    await bus.send(queue, *(message(f"{n}", f"s{n % sessions}") for n in range(count)))
    held: set[str] = set()
    got: dict[str, list[int]] = {}

    async def work() -> None:
        while sum(map(len, got.values())) < count:
            try:
                async with bus.receiver(queue, session_id=NEXT, max_wait_time=2) as receiver:
                    session = str(bus.session(receiver).session_id)
                    assert session not in held
                    held.add(session)
                    for each in await gather_messages(receiver, 5, wait_s=1):
                        await receiver.complete_message(each)
                        got.setdefault(session, []).append(int(text(each)))
                    held.discard(session)
            except (OperationTimeoutError, SessionCannotBeLockedError):
                continue

    await asyncio.wait_for(asyncio.gather(*(work() for _ in range(6))), 60)
    for number in range(sessions):
        assert got[f"s{number}"] == list(range(number, count, sessions))


async def test_an_update_lets_go_of_sessions_and_keeps_their_state(
    bus: Bus, queue: str, administration: Administration
) -> None:
    await bus.send(queue, message("x", "mine"))
    receiver = await bus.open_receiver(queue, session_id="mine")
    await bus.session(receiver).set_state(b"kept")
    await receive_one(receiver)
    administration.update(queue, max_delivery_count=7)

    async def accept() -> Any:
        try:
            return await bus.open_receiver(queue, session_id="mine")
        except SessionCannotBeLockedError:
            return None

    again = await until("the session is free", accept)
    assert await bus.session(again).get_state() == b"kept"
    redelivered = await receive_one(again)
    assert redelivered.delivery_count == 0


async def test_over_http_sessions_are_sent_to_and_not_received_from(
    server: Server, queue: str, open_bus: Callable[..., Bus]
) -> None:
    """semantics A §7."""
    with RestClient(server.connection_string) as rest:
        assert rest.send(queue, b"x", broker={"SessionId": "mine"}).status == 201
        same = {"SessionId": "mine", "PartitionKey": "mine"}
        assert rest.send(queue, b"y", broker=same).status == 201
        without = rest.send(queue, b"x")
        assert without.status == 403 and "The SessionId was not set" in without.detail
        differs = rest.send(queue, b"x", broker={**same, "PartitionKey": "other"})
        assert differs.status == 400 and "both set and not equal" in differs.detail
        for reply in (rest.lock(queue), rest.take(queue)):
            assert reply.status == 405
            assert "create a non-sessionful message receiver" in reply.detail
        assert rest.take(f"{queue}/$DeadLetterQueue", timeout_s=0).status == 204
    assert texts(await open_bus().receive(queue, 2, session_id="mine")) == ["x", "y"]
