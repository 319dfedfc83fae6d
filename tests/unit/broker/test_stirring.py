"""Whoever waits is looked at only where something happened, so all that matters must say so."""

from __future__ import annotations

from postbus.broker import chores
from postbus.broker.index_pages import Need, Pages
from postbus.broker.message import Message
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN
from postbus.broker.window_budget import WindowBudget
from postbus.runtime.dispatch import serve
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.loading import load_page
from postbus.runtime.receivers import OutgoingMessage
from postbus.runtime.turn import Turn
from tests.support.engine import FRAGMENT, Engine


class Waiting:
    """A receiver with credit for one message."""

    deletes = False
    holder = 1
    draining = False

    def __init__(self) -> None:
        self.reserved: list[str] = []

    def capacity(self) -> int:
        return 1 - len(self.reserved)

    def reserve(self, message: Message, raw: bytes) -> OutgoingMessage:
        self.reserved.append(message.message_id)
        return OutgoingMessage(message, raw, None)

    def deliver(self, messages: list[OutgoingMessage]) -> None: ...

    def drained(self) -> None: ...


def test_a_message_beyond_a_window_full_of_locked_ones_is_noticed() -> None:
    engine = Engine(limits=WindowBudget(0, messages_min=2))
    engine.send(b"1", b"2")
    assert engine.receive() and engine.receive()
    ready_subqueues = engine.engine.shared.ready_subqueues
    ready_subqueues.clear()
    engine.send(b"3")
    assert MAIN in ready_subqueues, "the window has to be filled for whoever waits"


def test_a_head_that_leaves_while_its_body_is_read_lets_the_next_be_looked_for() -> None:
    engine = Engine(limits=WindowBudget(0, messages_min=8, body_bytes_min=0))
    engine.send(b"1")
    pages = Pages()
    need = chores.fetch_bodies(engine.queue, MAIN, pages)
    assert isinstance(need, Need)
    engine.delete_batch(1)
    for page in need.pages:
        pages.add(page, load_page(engine.store, FRAGMENT, page))
    engine.engine.shared.ready_subqueues.clear()
    assert chores.fetch_bodies(engine.queue, MAIN, pages) is None
    assert MAIN in engine.engine.shared.ready_subqueues


def test_new_properties_let_everybody_be_looked_at() -> None:
    engine = Engine(Policy(receives=False))
    engine.send(b"1")
    ready_subqueues = engine.engine.shared.ready_subqueues
    ready_subqueues.clear()
    engine.turn(lambda: engine.queue.update(Policy(), engine.now))
    assert {MAIN, DEAD_LETTER} <= ready_subqueues.keys()


def test_what_expires_in_one_line_is_handed_out_in_the_other() -> None:
    engine = Engine(Policy(dead_letter_on_expiry=True))
    engine.send(b"1", ttl=10)
    fragment = LoadedFragment(FRAGMENT, 0, 0, "orders", engine.policy)
    fragment.engine = engine.engine
    receivers = {subqueue: Waiting() for subqueue in (DEAD_LETTER, MAIN)}
    for subqueue, receiver in receivers.items():
        fragment.receivers_of(subqueue).join(receiver)
        fragment.receivers_of(subqueue).wants(receiver)
    engine.now += 10
    turn = Turn(1, 0, engine.now)
    serve(fragment, turn)
    assert engine.queue.ledger.count(DEAD_LETTER) == 1
    assert DEAD_LETTER in fragment.waiting_subqueues
