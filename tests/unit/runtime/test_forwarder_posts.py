"""The courier and messages that were sent through an entity: some wait, and others pass them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from postbus.broker import forwarding
from postbus.broker.engine import Engine
from postbus.broker.index_pages import Pages
from postbus.broker.message import OUTBOX, Message
from postbus.broker.policy import Policy
from postbus.broker.send_via import send_through
from postbus.broker.subqueue_numbers import MAIN, TRANSFER_DEAD_LETTER
from postbus.errors import InternalError, ServiceBusError, StoreUnavailable
from postbus.model.times import Instant
from postbus.runtime import forwarder as forwarders
from postbus.runtime.forwarder import Forwarder
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.requests import Call
from tests.support.bed import Bed
from tests.support.operations import Do
from tests.unit.runtime.test_forwarder import until

VIA, FULL, FREE = 1, 2, 3
BODY = b"body"


class Town:
    """A queue that messages are sent through, one that has no room, and one that has."""

    def __init__(self) -> None:
        self.bed = Bed()
        self.via = LoadedFragment(VIA, 0, 0, "via", Policy())
        self.full = LoadedFragment(FULL, 0, 0, "full", Policy(size_bytes_max=0))
        self.free = LoadedFragment(FREE, 0, 0, "free", Policy())
        fragments = {VIA: self.via, FULL: self.full, FREE: self.free}
        self.forwarder = Forwarder(fragments.get, lambda _: self.bed.runtime)
        self.forwarder.serve(self.via)

    async def ask(
        self, fragment: LoadedFragment, call: Callable[[Engine, Instant, Pages], Any]
    ) -> Any:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.bed.runtime.submit(Call(fragment, Do(call), done.set_result, done.set_exception))
        return await done

    async def post(self, destination: int, count: int) -> None:
        messages = [Message(BODY, f"m{number}") for number in range(count)]
        await self.ask(
            self.via, lambda engine, now, _: send_through(engine, destination, messages, now)
        )

    def count(self, fragment: LoadedFragment, subqueue: int = MAIN, lane: int = 0) -> int:
        return 0 if fragment.engine is None else fragment.engine.ledger.count(subqueue, lane)


@pytest.fixture
async def town() -> AsyncIterator[Town]:
    town = Town()
    yield town
    town.bed.store.open.set()
    await town.bed.thread.stop()


async def test_a_full_destination_is_asked_again_and_the_others_do_not_wait(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """semantics B §7: neither dead letter nor lost."""
    monkeypatch.setattr(forwarders, "TRY_AGAIN_S", 0.01)
    await town.post(FULL, 3)
    await town.post(FREE, 2)
    await until(lambda: town.count(town.free) == 2)
    await until(lambda: town.count(town.via, TRANSFER_DEAD_LETTER, OUTBOX) == 3)
    await town.post(FREE, 1)
    await until(lambda: town.count(town.free) == 3)
    assert town.count(town.via, TRANSFER_DEAD_LETTER) == 0

    roomy = Policy(size_bytes_max=2 * len(BODY))
    await town.ask(town.full, lambda engine, now, _: engine.own.update(roomy, now))
    await until(lambda: town.count(town.full) == 2)
    await town.ask(town.full, lambda engine, now, _: engine.own.update(Policy(), now))
    await until(lambda: town.count(town.full) == 3)
    await town.bed.runtime.quiet()
    assert town.count(town.via, TRANSFER_DEAD_LETTER, OUTBOX) == 0


async def test_a_full_destination_costs_no_turns_while_it_rests(town: Town) -> None:
    await town.post(FULL, 1)
    await until(lambda: bool(town.forwarder._full) and not town.forwarder._under_way)
    assert town.bed.runtime.idle and not town.forwarder._waiting


async def test_what_others_are_sent_does_not_wait_for_a_full_destination_to_be_asked_again(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarders, "TRY_AGAIN_S", 3_600)
    await town.post(FULL, 1)
    await until(lambda: bool(town.forwarder._full) and not town.forwarder._under_way)
    await town.post(FREE, 2)
    await until(lambda: town.count(town.free) == 2)


@pytest.mark.parametrize("error", [StoreUnavailable("not now"), InternalError("unreadable")])
async def test_a_destination_that_does_not_answer_keeps_nobody_else_waiting(
    town: Town, monkeypatch: pytest.MonkeyPatch, error: ServiceBusError
) -> None:
    monkeypatch.setattr(forwarders, "TRY_AGAIN_S", 0.01)
    monkeypatch.setattr(forwarders, "SEE_AGAIN_S", 0.01)
    accept, broken = forwarding.accept, True

    def failing(engine: Engine, *rest: Any) -> Any:
        if broken and engine.name == "full":
            raise error
        return accept(engine, *rest)

    monkeypatch.setattr(forwarding, "accept", failing)
    await town.ask(town.full, lambda engine, now, _: engine.own.update(Policy(), now))
    await town.post(FULL, 2)
    await town.post(FREE, 2)
    await until(lambda: town.count(town.free) == 2)
    await until(lambda: town.count(town.via, TRANSFER_DEAD_LETTER, OUTBOX) == 2)
    broken = False
    await until(lambda: town.count(town.full) == 2)
    assert town.count(town.via, TRANSFER_DEAD_LETTER) == 0


async def test_room_is_noticed_while_others_are_sent_more_and_more(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarders, "TRY_AGAIN_S", 0.01)
    await town.post(FULL, 3)
    await until(lambda: bool(town.forwarder._full))
    await town.ask(town.full, lambda engine, now, _: engine.own.update(Policy(), now))
    async with asyncio.timeout(10):
        while town.count(town.full) < 3:
            await town.post(FREE, 5)
    assert town.count(town.full) == 3


@pytest.mark.interpreted_only
async def test_asking_a_full_destination_again_costs_the_same_however_much_waits_for_it(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarders, "TRY_AGAIN_S", 0.01)
    monkeypatch.setattr(forwarding, "SHIPPED_AT_ONCE", 4)
    collected = refusals = 0
    collect, held_up = forwarding.collect, forwarding.held_up

    def counting(*given: Any) -> Any:
        nonlocal collected
        collected += 1
        return collect(*given)

    def refused(*given: Any) -> None:
        nonlocal refusals
        refusals += 1
        held_up(*given)

    monkeypatch.setattr(forwarding, "collect", counting)
    monkeypatch.setattr(forwarding, "held_up", refused)
    await town.post(FULL, 400)
    await until(lambda: refusals >= 1 and not town.forwarder._under_way)
    before, collected = refusals, 0
    await until(lambda: refusals >= before + 10)
    assert collected <= 10 * (refusals - before)
    assert town.count(town.via, TRANSFER_DEAD_LETTER, OUTBOX) == 400


async def test_what_waits_is_found_again_after_its_engine_was_lost(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarders, "TRY_AGAIN_S", 0.01)
    await town.post(FULL, 3)
    await until(lambda: bool(town.forwarder._full))
    town.bed.runtime.discard(town.via, StoreUnavailable("The disk is gone."))
    await town.post(FREE, 1)
    await until(lambda: town.count(town.free) == 1)
    await town.ask(town.full, lambda engine, now, _: engine.own.update(Policy(), now))
    await until(lambda: town.count(town.full) == 3)
    await town.bed.runtime.quiet()
    assert town.count(town.via, TRANSFER_DEAD_LETTER, OUTBOX) == 0
