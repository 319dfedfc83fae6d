"""On a full disk new messages are refused, by every way they come; all else goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import apsw
import pytest

from postbus.broker import browse
from postbus.broker.engine import Engine
from postbus.broker.index_pages import Pages
from postbus.broker.message import OUTBOX, Message
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN
from postbus.broker.transaction import Settlement, Transaction, Verdict
from postbus.broker.window_budget import WindowBudget
from postbus.errors import ServiceBusError, StoreFull, TransactionRolledBack
from postbus.model.plain_message import Edits
from postbus.observe.meters import StoreMeter
from postbus.runtime import forwarder as forwarders
from postbus.runtime import upkeep as upkeeps
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.loading import Loader
from postbus.runtime.requests import Call
from postbus.runtime.runtime import Runtime
from postbus.runtime.store_thread import StoreThread
from postbus.runtime.upkeep import Upkeep, keep_up
from postbus.store.sqlite.store import SqliteStore
from tests.contract.quota import QuotaDisk, quota_disk
from tests.support.operations import Do
from tests.unit.gateway.test_transactions import Desk, desk
from tests.unit.http.test_mailbox import ORDERS, Office, office
from tests.unit.namespace.test_resubmit import DEAD, Cemetery, cemetery
from tests.unit.runtime.test_forwarder import Town, town, until

__all__ = ["cemetery", "desk", "office", "town"]

RESERVE = 1 << 20


async def test_messages_over_http_are_refused_and_what_is_there_can_be_had(office: Office) -> None:
    await office.send(b"one", b"two")
    office.bed.store.has_room = False
    with pytest.raises(StoreFull, match="no room for new messages") as refusal:
        await office.send(b"three")
    assert refusal.value.condition == "com.microsoft:server-busy" and refusal.value.transient
    number, token = await office.lock()
    await office.mailbox.complete(ORDERS, number, token)
    assert await office.receive(deletes=True) is not None
    office.bed.store.has_room = True
    await office.send(b"three")


async def test_forwarding_waits_for_room_without_dead_letters(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarders, "TRY_AGAIN_S", 0.05)
    collected = 0
    collect = forwarders.Forwarder._collect

    def counting(forwarder: forwarders.Forwarder, fragment: LoadedFragment, subqueue: int) -> None:
        nonlocal collected
        collected += 1
        collect(forwarder, fragment, subqueue)

    monkeypatch.setattr(forwarders.Forwarder, "_collect", counting)
    await town.publish(1)
    town.bed.store.has_room = False
    await until(lambda: collected >= 36)
    # It rests between two tries of all outboxes: the loop is free meanwhile.
    gaps = []
    for _ in range(36):
        looks, before = 0, collected
        while collected == before and looks < 10_000:
            await asyncio.sleep(0)
            looks += 1
        gaps.append(looks)
    assert max(gaps) > 10
    town.bed.store.has_room = True
    await until(lambda: town.arrived == 12)
    await town.bed.runtime.quiet()
    assert (town.count(DEAD_LETTER), town.count(MAIN, OUTBOX)) == (0, 0)


async def test_a_transaction_that_sends_is_rolled_back_and_one_that_settles_is_not(
    desk: Desk,
) -> None:
    await desk.bed.send(b"there")
    sends = desk.declare()
    await desk.send(sends, "x")
    desk.bed.store.has_room = False
    with pytest.raises(TransactionRolledBack, match="no room"):
        await desk.discharge(sends)

    def take(engine: Engine, now: int, pages: Pages) -> bytes:
        taken = engine.own.take(MAIN, 1, now)
        assert taken is not None
        return next(iter(engine.own.locks))

    done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    desk.bed.runtime.submit(Call(desk.bed.fragment, Do(take), done.set_result, done.set_exception))
    token = await done
    settles = desk.declare()

    def settle(work: Transaction, engine: Engine, now: int, pages: Any) -> None:
        work.settle(engine, [Settlement(MAIN, token, Verdict.COMPLETE)], now)

    await desk.ask(settles, settle)
    await desk.discharge(settles)
    assert desk.stored == 0


async def test_a_scheduled_message_comes_when_it_is_due(desk: Desk) -> None:
    bed = desk.bed
    message = Message(b"later", "m", None, -1, bed.now + 5)
    await bed.ask(lambda queue, now, pages: queue.send([message], now))
    bed.store.has_room = False
    bed.now += 10
    bed.runtime.wake(bed.fragment)
    await until(
        lambda: bed.fragment.engine is not None and bed.fragment.engine.ledger.count(MAIN) == 1
    )


async def test_dead_letters_can_be_thrown_away_and_not_sent_again(cemetery: Cemetery) -> None:
    numbers = await cemetery.move_to_dead_letters(2)
    cemetery.bed.store.has_room = False
    with pytest.raises(StoreFull):
        await cemetery.office.resubmit(DEAD, None, [(numbers[0], Edits())])
    assert await cemetery.office.discard(DEAD, numbers) == [("removed", "")] * 2


class Cellar:
    """A runtime and its upkeep on a real store, on a disk of eight megabytes."""

    def __init__(self, disk: QuotaDisk, folder: Path) -> None:
        self.now = 1_700_000_000_000
        self.reserve = disk.reserve(RESERVE)
        self.store = SqliteStore(
            str(folder / "store.db"), vfs=disk.name, wal_pages_max=50, reserve=self.reserve
        )
        self.thread = StoreThread("store", asyncio.get_running_loop())
        limits = WindowBudget(0, messages_min=1_000, body_bytes_min=64 << 20)
        loader = Loader(self.store, self.thread, "test", limits, lambda: 7)
        self.meter = StoreMeter()
        clock = lambda: self.now  # noqa: E731
        self.runtime = Runtime(self.store, self.thread, clock, loader, self.meter)
        self.upkeep = Upkeep(self.store, self.thread, self.runtime, loader, self.meter)
        self.fragment = LoadedFragment(1, 0, 0, "orders", Policy())
        self.lost: list[ServiceBusError] = []
        self.sent = 0

    async def ask(self, call: Any, grows: bool = False) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        request = Call(
            self.fragment, Do(call), future.set_result, future.set_exception, grows=grows
        )
        self.runtime.submit(request)
        return await future

    async def send_until_refused(self) -> None:
        with suppress(StoreFull):
            while True:
                await self.ask(self._send, grows=True)
                self.sent += 1
                self.fragment.on_lost[self.lost.append] = None

    def _send(self, engine: Engine, now: int, pages: Pages) -> Any:
        return engine.send([Message(bytes(20_000), f"m{self.sent}")], now)

    async def complete_one(self) -> str:
        def call(engine: Engine, now: int, pages: Pages) -> str:
            taken = engine.own.take(MAIN, 1, now)
            assert taken is not None and taken[0].token is not None
            engine.own.complete(taken[0].token, now)
            return taken[0].message_id

        found: str = await self.ask(call)
        return found

    async def tidy(self) -> bool:
        await self.upkeep.tidy(self.fragment, self.now, 0)
        await self.runtime.quiet()
        await self.upkeep.tidy(self.fragment, self.now, 0)
        return await self.upkeep.look_for_room()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[QuotaDisk]:
    with quota_disk(tmp_path, 8 << 20) as made:
        yield made


@pytest.fixture
async def cellar(disk: QuotaDisk, tmp_path: Path) -> AsyncIterator[Cellar]:
    cellar = Cellar(disk, tmp_path)
    yield cellar
    await cellar.runtime.quiet()
    await cellar.thread.stop()
    with suppress(apsw.FullError):
        cellar.store.close()
    cellar.reserve.close()


@pytest.mark.parametrize("filled", [False, True], ids=["by messages", "by others too"])
async def test_a_full_disk_is_drained_without_losing_the_engine(
    cellar: Cellar, disk: QuotaDisk, filled: bool
) -> None:
    await cellar.send_until_refused()
    assert cellar.sent > 100
    if filled:
        disk.fill()
    assert [await cellar.complete_one() for _ in range(cellar.sent)] == [
        f"m{each}" for each in range(cellar.sent)
    ]
    assert cellar.lost == [], "no lock was lost, and nobody had to attach again"
    assert cellar.meter.failures == 0
    disk.clean()
    for _ in range(5):
        if await cellar.tidy():
            break
    before = cellar.sent
    await cellar.send_until_refused()
    assert cellar.sent > before + 50, "most of the room is there again"


async def test_an_engine_comes_back_where_nothing_can_be_written(
    cellar: Cellar, disk: QuotaDisk
) -> None:
    await cellar.send_until_refused()
    disk.fill()
    while cellar.reserve.give_up():
        disk.fill()
    with pytest.raises(StoreFull):
        await complete_on(cellar, disk)
    assert cellar.fragment.engine is None

    def peek(engine: Engine, now: int, pages: Pages) -> Any:
        return browse.peek(engine.own, MAIN, 0, 1, 1 << 20, pages)

    assert len(await cellar.ask(peek)) == 1, "it was loaded without a write"
    disk.clean()
    for _ in range(5):
        if await cellar.tidy():
            break
    before = cellar.sent
    await cellar.send_until_refused()
    assert cellar.sent > before


async def test_upkeep_takes_no_engine_away_where_nothing_can_be_written(
    cellar: Cellar, disk: QuotaDisk
) -> None:
    await cellar.send_until_refused()
    disk.fill()
    while cellar.reserve.give_up():
        disk.fill()
    with pytest.raises(StoreFull):
        await complete_on(cellar, disk)
    cellar.lost.clear()

    await cellar.ask(lambda engine, now, pages: None)
    cellar.fragment.on_lost[cellar.lost.append] = None
    for _ in range(3):
        with suppress(StoreFull):
            await cellar.upkeep.tidy(cellar.fragment, cellar.now, 0)
        await cellar.runtime.quiet()
    assert cellar.lost == [], "receivers keep their links and locks"
    disk.clean()
    assert cellar.fragment.engine is not None
    while not await cellar.tidy():
        pass
    assert cellar.fragment.engine.ledger.checkpoint == cellar.fragment.engine.ledger.head


async def complete_on(cellar: Cellar, disk: QuotaDisk) -> None:
    """While somebody else takes whatever there is."""
    for _ in range(cellar.sent):
        disk.fill()
        await cellar.complete_one()


@pytest.mark.interpreted_only  # its stand-in for an engine is no compiled one
@pytest.mark.parametrize("read", [False, True], ids=["nobody reads", "readers are known"])
async def test_history_goes_before_its_time_on_a_full_disk_but_not_from_known_readers(
    read: bool,
) -> None:
    trimmed: list[tuple[int, int]] = []
    looked = asyncio.Event()

    class Watched(Upkeep):
        async def look_for_room(self) -> bool:
            return False

        async def tidy(self, fragment: LoadedFragment, older_than: int, bytes_max: int) -> None:
            trimmed.append((older_than, bytes_max))
            looked.set()

    nothing: Any = None
    fragment = LoadedFragment(1, 0, 0, "orders", Policy())
    fragment.engine = SimpleNamespace()  # type: ignore[assignment]
    entity: Any = SimpleNamespace(name="orders", fragments=(fragment,), retention=(1, 1))
    watched = Watched(nothing, nothing, nothing, nothing, StoreMeter())
    now = 1_700_000_000_000
    with mock.patch.object(upkeeps, "LOOK_S", 0.001):
        task = asyncio.create_task(
            keep_up(
                lambda: [entity], [watched], lambda: now, nothing, lambda _: None, lambda _: read
            )
        )
        async with asyncio.timeout(10):
            await looked.wait()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert trimmed[0] == ((now - 3_600_000, 1 << 20) if read else (now, 0))
