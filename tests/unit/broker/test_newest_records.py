"""A message is durable when the store has its newest record, whatever that record is of."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from postbus.broker import chores
from postbus.broker.index_pages import Pages
from postbus.broker.message import Message
from postbus.broker.policy import Policy
from postbus.broker.record_kinds import RecordKind
from postbus.broker.subqueue_numbers import MAIN
from tests.support.engine import Engine


class Place:
    """An engine with one message, which is durable and locked."""

    def __init__(self) -> None:
        self.engine = Engine(Policy(max_delivery_count=2))
        self.queue = self.engine.queue
        self.ledger = self.queue.ledger
        self.engine.turn(lambda: self.queue.send([Message(b"body")], self.engine.now))
        self.message, self.raw = self.lock()

    def lock(self) -> tuple[Message, bytes]:
        taken = self.queue.take(MAIN, 1, self.engine.now)
        assert taken is not None
        return taken

    @property
    def token(self) -> bytes:
        assert self.message.token is not None
        return self.message.token

    @property
    def now(self) -> int:
        return self.engine.now

    def fail(self) -> None:
        self.queue.abandon(self.token, self.now)

    def abandon_too_often(self) -> None:
        self.engine.turn(self.fail)
        self.lock()
        self.fail()

    def defer(self) -> None:
        self.queue.defer(self.token, self.now)

    def dead_letter(self) -> None:
        self.queue.dead_letter(self.token, self.now, "why")

    def expire_lock(self) -> None:
        self.queue.lose(self.token, self.now)

    def complete(self) -> None:
        self.queue.complete(self.token, self.now)

    def put_back(self) -> None:
        self.engine.turn(self.complete)
        self.queue.put_back(self.message, self.raw)

    def copy(self) -> None:
        self.ledger.copy(self.message, self.raw)


CHANGES = [
    Place.fail,
    Place.abandon_too_often,
    Place.defer,
    Place.dead_letter,
    Place.expire_lock,
    Place.complete,
    Place.put_back,
    Place.copy,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_message_is_not_durable_before_its_newest_record(change: Callable[[Place], None]) -> None:
    place = Place()
    assert place.ledger.is_durable(place.message)
    change(place)
    assert not place.ledger.is_durable(place.message)
    place.engine.commit()
    assert place.ledger.is_durable(place.message)


def test_a_lock_changes_nothing_that_lasts() -> None:
    place = Place()
    place.queue.renew(place.token, place.now)
    assert place.ledger.is_durable(place.message)
    place.queue.release(place.token, place.now)
    assert place.ledger.is_durable(place.message)


def test_a_scheduled_message_is_durable_again_when_its_activation_is() -> None:
    engine = Engine()
    later = Message(b"later", scheduled_at=engine.now + 1_000)
    engine.turn(lambda: engine.queue.send([later], engine.now))
    ledger = engine.queue.ledger
    assert ledger.is_durable(later)
    engine.now += 1_000
    pages = Pages()
    need = chores.activate(engine.engine, engine.now, engine.now, pages)
    assert need is not None
    engine.load(need, pages)
    assert chores.activate(engine.engine, engine.now, engine.now, pages) is None
    assert not ledger.is_durable(later)
    engine.commit()
    assert ledger.is_durable(later)


def test_every_message_of_a_load_is_durable_and_a_later_record_is_not() -> None:
    engine = Engine(checkpoint_every=2)
    for body in (b"0", b"1", b"2"):
        engine.send(body)
    engine.crash()
    engine.paged(lambda pages: chores.refill(engine.queue, MAIN, pages))
    window = engine.queue.windows[MAIN]
    ledger = engine.queue.ledger
    assert len(window.live) == 3, "of the index and of the journal behind it"
    assert all(ledger.is_durable(message) for message in window.live.values())
    message = next(iter(window.live.values()))
    ledger.change(RecordKind.ABANDONED, message)
    assert not ledger.is_durable(message)
    engine.commit()
    assert ledger.is_durable(message)
