"""Faults planted on purpose in topics and forwarding."""

from __future__ import annotations

from typing import Any
from unittest import mock

from postbus.broker import chores, forwarding, resubmission
from postbus.broker.engine import Engine
from postbus.broker.forwarding import ForwardBatch
from postbus.broker.index_pages import Pages
from postbus.broker.ledger import Ledger
from postbus.broker.message import PUBLISHING, Message
from postbus.broker.queue import Queue
from postbus.broker.record_kinds import RecordKind
from postbus.broker.topic import Topic
from postbus.runtime import forwarder, loading
from tests.simulation.faults import Fault, does_nothing, patched, says_no
from tests.simulation.promises import (
    COPY_ORDER,
    ENDS,
    FULL,
    LOST,
    MEMORY,
    ONCE,
    REPLAY,
    SERVED,
    TAKEN_OUT,
)
from tests.simulation.queues.faults import mark_not_looked_at, wake_up_lost


def _cursor_too_far(change: Any) -> Any:
    def faulty(ledger: Ledger, kind: RecordKind, message: Message) -> None:
        if kind is RecordKind.ADVANCED and message.trail is not None:
            message.trail.cursor += 1
        change(ledger, kind, message)

    return faulty


def _cursor_not_kept(change: Any) -> Any:
    def faulty(ledger: Ledger, kind: RecordKind, message: Message) -> None:
        if kind is not RecordKind.ADVANCED:
            change(ledger, kind, message)

    return faulty


def _marks_not_summed_up(state: Any) -> Any:
    def faulty(ledger: Ledger) -> bytes:
        with mock.patch.object(ledger, "marks", {}):
            return bytes(state(ledger))

    return faulty


def _one_mark_for_all(_: Any) -> Any:
    return lambda fragment, subqueue: fragment


def _removed_at_once(collect: Any) -> Any:
    def faulty(engine: Engine, *rest: Any) -> Any:
        shipment = collect(engine, *rest)
        if isinstance(shipment, ForwardBatch):
            for message, _ in shipment.messages:
                engine.ledger.remove(RecordKind.FORWARDED, message)
        return shipment

    return faulty


def _overtaking(_: Any) -> Any:
    def faulty(self: Topic, message: Message) -> None:
        raw = message.raw
        assert raw is not None
        ledger = self._own.ledger
        copies, whole = self.matcher.copies(message, raw)
        if not whole or len(copies) > self.room:
            self.keep(message)
            message.lane = PUBLISHING
            ledger.add(RecordKind.STAGED, message, raw)
            message.raw = None
            return
        self.room -= len(copies)
        ledger.pass_on(message, raw)
        self._place(message, raw, copies)

    return faulty


def _outbox_not_noted(placed: Any) -> Any:
    def faulty(queue: Queue, message: Message) -> None:
        outboxes_with_work = dict(queue.shared.outboxes_with_work)
        placed(queue, message)
        if message.subqueue != queue.main:
            queue.shared.outboxes_with_work = outboxes_with_work

    return faulty


def _refusal_forgotten(_: Any) -> Any:
    def faulty(engine: Engine, subqueue: int, number: int, refusal: Exception, pages: Pages) -> Any:
        return forwarding.shipped(engine, subqueue, [number], pages)

    return faulty


def _still_counted(remove: Any) -> Any:
    """The windows of a deleted subscription are still counted."""

    def faulty(engine: Engine, owner: int) -> None:
        used = engine.shared.budget.used
        remove(engine, owner)
        engine.shared.budget.used = used

    return faulty


TOPIC_FAULTS = [
    Fault(
        "memory of a subscription not given back",
        {MEMORY},
        patched(Engine, "remove_subscription", _still_counted),
    ),
    Fault("copy lost at a slice boundary", {LOST}, patched(Ledger, "change", _cursor_too_far)),
    Fault(
        "cursor not written",
        {ONCE, REPLAY, FULL, ENDS},
        patched(Ledger, "change", _cursor_not_kept),
    ),
    Fault(
        "mark not looked at", {ONCE, COPY_ORDER}, patched(forwarding, "accept", mark_not_looked_at)
    ),
    Fault(
        "mark not in the checkpoint", {ONCE, FULL}, patched(Ledger, "_state", _marks_not_summed_up)
    ),
    Fault(
        "one mark for all outboxes of a fragment",
        {LOST},
        patched(forwarder, "outbox_id", _one_mark_for_all),
    ),
    Fault(
        "outbox emptied before arrival", {LOST}, patched(forwarding, "collect", _removed_at_once)
    ),
    Fault("refused message dropped", {LOST}, patched(forwarding, "returned", _refusal_forgotten)),
    Fault("staged message overtaken", {COPY_ORDER}, patched(Topic, "_take_in", _overtaking)),
    Fault(
        "dead letter taken out and not posted",
        {LOST},
        patched(resubmission.Posted, "place", does_nothing),
    ),
    Fault("wake-up lost", {SERVED, TAKEN_OUT}, patched(chores, "fetch_bodies", wake_up_lost)),
    Fault("outbox not seen to", {ENDS}, patched(Queue, "placed", _outbox_not_noted)),
    Fault(
        "unfinished work not looked for at the start",
        {ENDS},
        patched(loading, "_unfinished", says_no),
    ),
]
