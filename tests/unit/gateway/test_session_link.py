"""Session receivers where things go wrong in between: locks that run out, links and stores that go
away before an answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from postbus.amqp.frames.terminus import Source
from postbus.amqp.sections import Properties, encode_data, encode_properties
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import MAIN
from postbus.errors import ServiceBusError, SessionLockLost, StoreUnavailable
from postbus.gateway.session_link import ClientSessionReceiver, SessionFilter
from postbus.messages.envelope import read_message
from postbus.observe.meters import EntityMeter
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.sessions import AcceptNext
from tests.support.bed import Bed, settled

# The stand-ins below are not the classes that a compiled SessionOutlet insists on.
pytestmark = pytest.mark.interpreted_only
LOCK_MS = 30_000


class Link:
    """The sending end of a link that waits for its answer."""

    def __init__(self) -> None:
        self.session = SimpleNamespace(owner=None, senders=list)
        self.snd_settle_mode = 0
        self.source = Source("orders")
        self.properties = None
        self.credit = 0
        self.drain = False
        self.attached = False
        self.tags: list[bytes] = []

    @property
    def session_id(self) -> Any:
        return (self.source.filter or {}).get("filter")

    def accept(self, source: Source, properties: Any) -> list[Any]:
        self.attached = True
        return []

    def room_beside(self, promised: int, promised_in_session: int) -> int:
        return max(0, self.credit - promised) if self.attached else 0

    def send(self, tag: bytes, *_: Any, **__: Any) -> None:
        self.tags.append(tag)
        self.credit -= 1


class Client:
    """A gateway with one session receiver."""

    id = 1
    promised_bytes = 0

    def __init__(self, bed: Bed, session_id: str | None) -> None:
        self._bed = bed
        self.held_back: dict[Any, None] = {}
        self.session_holders: set[int] = set()
        self.now = bed.now
        self.told: ServiceBusError | None = None
        settings = SimpleNamespace(session_wait_max_ms=60_000, session_waits_max=10)
        self.service = SimpleNamespace(
            settings=settings, clock=lambda: bed.now, link_properties=dict
        )
        entity = SimpleNamespace(
            path="orders",
            prefetch=SimpleNamespace(credited=lambda _: None),
            touch=lambda _: None,
            meter=EntityMeter(),
        )
        self.link = Link()
        wanted = SessionFilter("filter", None, session_id)
        self.receiver = ClientSessionReceiver(
            cast(Any, self), cast(Any, self.link), cast(Any, entity), bed.fragment, MAIN, wanted
        )
        self.receiver.open()

    def runtime(self, _: Any) -> Any:
        return self._bed.runtime

    def touch(self) -> None: ...

    def heard(self, events: list[Any]) -> None: ...

    def holds_back(self, _: Any) -> bool:
        return False

    def detach(self, link: Link, error: ServiceBusError, entity: str) -> None:
        self.told = error
        self.leave()

    def leave(self) -> None:
        self.link.attached = False
        self.receiver.close()

    def grant(self, credit: int) -> None:
        self.link.credit = credit
        self.receiver.credited()


@pytest.fixture
async def bed() -> Any:
    bed = Bed()
    bed.fragment.policy = Policy(requires_session=True, lock_ms=LOCK_MS)
    yield bed
    bed.store.open.set()
    await bed.thread.stop()


async def send(bed: Bed, *sessions: str) -> None:
    messages = [
        read_message(encode_properties(Properties(group_id=each)) + encode_data(b"x"), 1_000)
        for each in sessions
    ]
    await bed.ask(lambda queue, now, pages: queue.send(messages, now))


async def test_who_has_lost_a_session_hears_of_it_though_another_has_it_by_now(bed: Bed) -> None:
    await send(bed, "mine")
    first = Client(bed, "mine")
    await settled()
    first.grant(1)
    await settled()
    assert len(first.link.tags) == 1

    bed.now += LOCK_MS  # and nobody has looked at the clock when the next one asks
    second = Client(bed, "mine")
    await settled()
    assert isinstance(first.told, SessionLockLost)
    assert second.link.attached and second.told is None
    second.grant(1)
    await settled()
    assert len(second.link.tags) == 1


async def test_who_has_nothing_to_settle_hears_of_a_lost_session_when_it_wants_more(
    bed: Bed,
) -> None:
    client = Client(bed, "mine")
    await settled()
    bed.now += LOCK_MS
    bed.runtime.wake(bed.fragment)
    await settled()
    assert client.told is None and bed.fragment.waiters_of(MAIN).held_count == 0
    client.grant(1)
    assert isinstance(client.told, SessionLockLost)


@pytest.mark.parametrize("session_id", ["mine", None])
async def test_who_leaves_before_the_answer_holds_nothing(bed: Bed, session_id: str | None) -> None:
    await send(bed, "mine")
    bed.store.open.clear()
    behind = bed.ask(lambda queue, now, pages: queue.send([_message("other")], now))
    gone = Client(bed, session_id)
    await settled()
    gone.leave()
    bed.store.open.set()
    await behind
    await settled()
    assert not gone.link.attached

    next_one = Client(bed, "mine")
    await settled()
    assert next_one.link.session_id == "mine" and next_one.told is None


async def test_who_leaves_before_the_answer_and_comes_again_finds_the_session_free(
    bed: Bed,
) -> None:
    await send(bed, "mine")
    bed.store.open.clear()
    gone = Client(bed, "mine")
    beside = bed.ask(lambda queue, now, pages: queue.send([_message("other")], now))
    await settled()
    assert gone.receiver.promised is not None and not gone.link.attached, "it waits for the commit"
    gone.leave()
    again = Client(bed, "mine")
    bed.store.open.set()
    await beside
    await settled()
    assert again.link.session_id == "mine" and again.told is None


async def test_a_store_that_fails_ends_waiting_and_holding_and_the_next_are_served(
    bed: Bed,
) -> None:
    holding, waiting = Client(bed, "mine"), Client(bed, None)
    await settled()
    assert holding.link.attached and not waiting.link.attached
    bed.store.failure = StoreUnavailable("disk full")
    with pytest.raises(StoreUnavailable):
        await bed.ask(lambda queue, now, pages: queue.send([_message("other")], now))
    await settled()
    assert isinstance(holding.told, StoreUnavailable)
    assert isinstance(waiting.told, StoreUnavailable)

    bed.store.failure = None
    again = Client(bed, None)
    await send(bed, "new")
    await settled()
    assert again.link.session_id == "new"


async def test_those_who_wait_are_served_in_order(bed: Bed) -> None:
    waiting = [Client(bed, None) for _ in range(3)]
    await settled()
    waiting[0].leave()
    await send(bed, "a", "b")
    await settled()
    assert [each.link.session_id for each in waiting] == [None, "a", "b"]


def _message(session_id: str) -> Any:
    return read_message(encode_properties(Properties(group_id=session_id)) + encode_data(b""), 99)


def test_one_receiver_that_cannot_be_told_does_not_keep_the_others_from_it() -> None:
    told: list[str] = []

    def fails(session: str) -> None:
        raise RuntimeError(session)

    fragment = LoadedFragment(1, 0, 0, "orders", Policy())
    asked: Any = AcceptNext(fragment, MAIN, fragment.waiters_of(MAIN))
    asked._found += [(SimpleNamespace(accepted=fails), "a")]
    asked._found += [(SimpleNamespace(accepted=told.append), "b")]
    asked.answer()
    assert told == ["b"]
