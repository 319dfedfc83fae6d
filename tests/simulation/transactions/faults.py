"""Faults planted in transactions, and in sending through another queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from postbus.broker import forwarding, transaction
from postbus.broker.engine import Engine
from postbus.broker.message import Message
from postbus.broker.transaction import Transaction
from postbus.runtime import loading
from tests.simulation.faults import Fault, does_nothing, patched, says_no
from tests.simulation.promises import ATOMIC, ENDS, LOCK, LOST, ONCE, ORDER, SESSION_ORDER
from tests.simulation.queues.faults import mark_not_looked_at


def _settled_in_part(carry_out: Any) -> Any:
    def faulty(ruling: Any, now: int) -> None:
        if ruling.settlement.token[-1] % 2:
            carry_out(ruling, now)

    return faulty


def _locks_given_up(roll_back: Any) -> Any:
    def faulty(work: Transaction, engine: Engine) -> None:
        settlements = list(work._settlements)
        roll_back(work, engine)
        for each in settlements:
            queue = engine.at(each.subqueue)
            message = queue.locked(each.token)
            if message is not None and message.token is not None and queue.sessions is None:
                del queue.locks[each.token]
                queue.end_lock(message, False, 0)

    return faulty


def _sent_before(settle: Any) -> Any:
    """What a transaction sends is stored as soon as it is asked for."""

    def faulty(work: Transaction, engine: Engine, messages: Sequence[Message]) -> None:
        settle(work, engine, messages)
        work._sends.clear()
        for each in messages:
            each.number = 0
        (engine.own if engine.topic is None else engine.topic).store(messages, 1)

    return faulty


TRANSACTION_FAULTS = [
    Fault(
        "transaction done in part", {ATOMIC}, patched(transaction, "_carry_out", _settled_in_part)
    ),
    Fault("posts forgotten", {ATOMIC}, patched(transaction, "post", does_nothing)),
    Fault("sent before the commit", {ATOMIC}, patched(Transaction, "send", _sent_before)),
    Fault(
        "locks lost by a rollback",
        {LOCK, SESSION_ORDER, ORDER, LOST},
        patched(Transaction, "roll_back", _locks_given_up),
    ),
    Fault("mark not looked at", {ONCE}, patched(forwarding, "accept", mark_not_looked_at)),
    # A message that arrived before the crash is also still in the outbox.
    Fault(
        "outbox not looked for at the start",
        {ENDS, ONCE},
        patched(loading, "_unfinished", says_no),
    ),
]
