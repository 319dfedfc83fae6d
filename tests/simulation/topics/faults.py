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
from tests.simulation.faults import SEEDS_MAX, Fault, nobody_told, nothing_done, patched
from tests.simulation.history import Violation
from tests.simulation.ledgers import FULL, REPLAY
from tests.simulation.playing import ENDS
from tests.simulation.topics import judge
from tests.simulation.topics.play import run_topic_seed


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


def _no_marks(accept: Any) -> Any:
    def faulty(engine: Engine, origin: int, *rest: Any) -> Any:
        marks = engine.ledger.marks
        mark = marks.pop(origin, None)
        receipt = accept(engine, origin, *rest)
        if mark is not None:
            marks.setdefault(origin, mark)
        return receipt

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


def _nothing_left(_: Any) -> Any:
    return lambda *_: False


TOPIC_FAULTS = [
    Fault(
        "copy lost at a slice boundary",
        frozenset({judge.LOST}),
        patched(Ledger, "change", _cursor_too_far),
    ),
    Fault(
        "cursor not written",
        frozenset({judge.ONCE, REPLAY, FULL, ENDS}),
        patched(Ledger, "change", _cursor_not_kept),
    ),
    Fault(
        "mark not looked at",
        frozenset({judge.ONCE, judge.ORDER}),
        patched(forwarding, "accept", _no_marks),
    ),
    Fault(
        "mark not in the checkpoint",
        frozenset({judge.ONCE, FULL}),
        patched(Ledger, "_state", _marks_not_summed_up),
    ),
    Fault(
        "one mark for all outboxes of a fragment",
        frozenset({judge.LOST}),
        patched(forwarder, "outbox_id", _one_mark_for_all),
    ),
    Fault(
        "outbox emptied before arrival",
        frozenset({judge.LOST}),
        patched(forwarding, "collect", _removed_at_once),
    ),
    Fault(
        "refused message dropped",
        frozenset({judge.LOST}),
        patched(forwarding, "returned", _refusal_forgotten),
    ),
    Fault(
        "staged message overtaken",
        frozenset({judge.ORDER}),
        patched(Topic, "_take_in", _overtaking),
    ),
    Fault(
        "dead letter taken out and not posted",
        frozenset({judge.LOST}),
        patched(resubmission.Posted, "place", nothing_done),
    ),
    Fault("wake-up lost", frozenset({judge.SERVED}), patched(chores, "fetch_bodies", nobody_told)),
    Fault("outbox not seen to", frozenset({ENDS}), patched(Queue, "placed", _outbox_not_noted)),
    Fault(
        "unfinished work not looked for at the start",
        frozenset({ENDS}),
        patched(loading, "_unfinished", _nothing_left),
    ),
]


def find_in_topics(fault: Fault) -> tuple[int, Violation] | None:
    """How many seeds it takes to notice, and what is said then."""
    with fault.plant():
        for seed in range(SEEDS_MAX):
            try:
                run_topic_seed(seed)
            except Violation as found:
                return seed + 1, found
    return None
