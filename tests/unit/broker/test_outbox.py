"""An outbox with destinations that have no room: the others pass, and nobody looks twice."""

from __future__ import annotations

import random

import pytest

from postbus.broker import forwarding
from postbus.broker.destination import NOWHERE
from postbus.broker.forwarding import ForwardBatch, ForwardResult
from postbus.broker.index_pages import LanePage, Need, Pages
from postbus.broker.message import Message
from postbus.broker.policy import Policy
from postbus.broker.send_via import send_through
from postbus.broker.subqueue_numbers import TRANSFER_DEAD_LETTER
from postbus.errors import QuotaExceeded
from postbus.store.memory.store import MemoryStore
from tests.support.topics import Place, outbox

HERE, THERE, ELSEWHERE = 1, 2, 3
VIA = TRANSFER_DEAD_LETTER
BODY = b"body"


class Via(Place):
    """The entity that messages are sent through, and how often its index is read."""

    pages_read = 0

    def load(self, need: Need, pages: Pages) -> None:
        self.pages_read += sum(isinstance(page, LanePage) for page in need.pages)
        super().load(need, pages)

    def post(self, destination: int, *names: str) -> None:
        messages = [Message(BODY, name) for name in names]
        self.turn(lambda: send_through(self.engine, destination, messages, self.now))

    def deliver(self, shipment: ForwardBatch, destination: Place) -> ForwardResult:
        """As the courier does it."""
        receipt = destination.accept(self, VIA, shipment)
        destination.commit()
        numbers = [message.number for message, _ in shipment.messages[: receipt.arrived]]
        self.paged(lambda pages: forwarding.shipped(self.engine, VIA, numbers, pages))
        if receipt.refusal is None:
            forwarding.has_room(self.engine, VIA, shipment.destination)
        else:
            assert isinstance(receipt.refusal, QuotaExceeded)
            number = shipment.messages[receipt.arrived][0].number
            forwarding.held_up(self.engine, VIA, shipment.destination, number)
        return receipt


def room_for(count: int) -> Policy:
    return Policy(size_bytes_max=count * len(BODY))


def of(shipment: ForwardBatch | None) -> list[str]:
    return [] if shipment is None else [message.message_id for message, _ in shipment.messages]


def blocked(count: int, checkpoint_every: int = 64) -> tuple[Via, Place, Place]:
    """So many messages wait for room, and all of them have been passed."""
    store = MemoryStore()
    here = Via(store, HERE, checkpoint_every=checkpoint_every)
    there, elsewhere = Place(store, THERE, room_for(0)), Place(store, ELSEWHERE)
    here.post(THERE, *[f"full{number}" for number in range(count)])
    shipment = here.collect(VIA)
    assert shipment is not None
    assert here.deliver(shipment, there).refusal is not None
    assert here.collect_but(VIA, THERE) is None
    return here, there, elsewhere


@pytest.mark.interpreted_only
@pytest.mark.parametrize("checkpoint_every", [1, 64, 100_000])
def test_messages_that_wait_for_room_are_passed_once(
    checkpoint_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "SHIPPED_AT_ONCE", 10)
    here, there, elsewhere = blocked(1_000, checkpoint_every)
    assert here.pages_read <= 110
    here.pages_read = 0
    for number in range(20):
        here.post(ELSEWHERE, f"passes{number}")
        shipment = here.collect_but(VIA, THERE)
        assert of(shipment) == [f"passes{number}"] and shipment is not None
        here.deliver(shipment, elsewhere)
        assert here.collect_but(VIA, THERE) is None
        assert here.deliver(here.collect(VIA) or shipment, there).refusal is not None
    assert here.pages_read <= 20 * 6
    assert len(outbox(here, kind=VIA)) == 1_000


@pytest.mark.interpreted_only
def test_one_search_reads_one_page_of_the_outbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it can be left off, and holds no more than that in memory."""
    monkeypatch.setattr(forwarding, "SHIPPED_AT_ONCE", 10)
    here = Via(MemoryStore(), HERE, checkpoint_every=1)
    here.post(THERE, *[f"full{number}" for number in range(100)])
    found = here.paged(lambda pages: forwarding.collect(here.engine, VIA, here.now, pages, {THERE}))
    assert found == ForwardBatch(NOWHERE, []) and here.pages_read == 1


def test_a_full_destination_is_tried_with_its_first_message() -> None:
    here, there, _ = blocked(300, checkpoint_every=0)
    for _ in range(3):
        shipment = here.collect(VIA)
        assert of(shipment) == ["full0"] and shipment is not None
        here.deliver(shipment, there)
    there.update(room_for(5))
    for names in (["full0"], [f"full{number}" for number in range(1, 257)]):
        shipment = here.collect(VIA)
        assert of(shipment) == names and shipment is not None
        here.deliver(shipment, there)
    assert there.names() == [f"full{number}" for number in range(5)]
    assert of(here.collect(VIA)) == ["full5"]


def test_what_is_posted_behind_those_that_wait_comes_after_them() -> None:
    here, there, _ = blocked(3)
    here.post(THERE, "later")
    assert here.collect_but(VIA, THERE) is None
    there.update(Policy())
    here.post(THERE, "last")
    while (shipment := here.collect(VIA)) is not None:
        here.deliver(shipment, there)
    assert there.names() == ["full0", "full1", "full2", "later", "last"]
    assert not here.engine.shared.outboxes


@pytest.mark.interpreted_only
def test_one_that_catches_up_takes_turns_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "SHIPPED_AT_ONCE", 5)
    here, there, elsewhere = blocked(50)
    there.update(Policy())
    here.post(ELSEWHERE, *[f"passes{number}" for number in range(20)])
    places = {THERE: there, ELSEWHERE: elsewhere}
    order: list[int] = []
    while (shipment := here.collect(VIA)) is not None:
        here.deliver(shipment, places[shipment.destination])
        order.append(shipment.destination)
    assert order.index(ELSEWHERE) <= 2 and order[:8].count(ELSEWHERE) >= 3
    assert there.names() == [f"full{number}" for number in range(50)]
    assert elsewhere.names() == [f"passes{number}" for number in range(20)]


@pytest.mark.interpreted_only
@pytest.mark.parametrize("seed", range(60))
def test_each_destination_gets_all_of_its_messages_once_and_in_order(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(forwarding, "SHIPPED_AT_ONCE", chance.choice([1, 2, 3, 7]))
    store = MemoryStore()
    here = Via(store, HERE, checkpoint_every=chance.choice([0, 1, 5]))
    places = {number: Place(store, number, room_for(0)) for number in (2, 3, 4)}
    sent: dict[int, list[str]] = {number: [] for number in places}
    full: set[int] = set()
    for step in range(150):
        if step == 120:
            full.clear()
            for place in places.values():
                place.update(Policy())
        destination = chance.choice(list(places))
        match chance.choice(["post", "post", "ship", "ship", "ship", "room", "ask", "crash"]):
            case "post" if step < 120:
                names = [f"{step}.{part}" for part in range(chance.randint(1, 6))]
                here.post(destination, *names)
                sent[destination] += names
            case "room" if step < 120:
                places[destination].update(room_for(chance.randint(0, 60)))
            case "ask":
                full.clear()
            case "crash" if chance.random() < 0.3:
                here.crash()
            case _:
                shipment = here.collect_but(VIA, *full)
                if shipment is not None:
                    receipt = here.deliver(shipment, places[shipment.destination])
                    full |= {shipment.destination} if receipt.refusal else set()
    while (shipment := here.collect(VIA)) is not None:
        assert here.deliver(shipment, places[shipment.destination]).refusal is None
    assert {number: place.names() for number, place in places.items()} == sent
    assert outbox(here, kind=VIA) == [] and not here.engine.shared.outboxes
