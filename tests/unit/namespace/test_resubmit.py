"""Dead letters sent again in slices: each a commit, each message told what became of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from postbus.broker.index_pages import Pages
from postbus.broker.message import Message
from postbus.broker.queue import Queue
from postbus.broker.record_kinds import RecordKind
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN
from postbus.errors import OutcomeUnknown, StoreUnavailable
from postbus.messages.translation import to_message
from postbus.model.address import resolve_path
from postbus.model.plain_message import Edits, PlainMessage
from postbus.model.times import Instant
from postbus.namespace import resubmit
from postbus.namespace.entities import QueueEntity
from postbus.namespace.resubmit import Resubmission
from postbus.settings import Settings
from postbus.store.ports.catalog import EntityRecord, FragmentRecord
from tests.support.bed import Bed

DEAD = resolve_path("orders/$DeadLetterQueue")


class Cemetery:
    """A queue with dead letters."""

    def __init__(self) -> None:
        self.bed = Bed()
        fragment = self.bed.fragment
        record = EntityRecord("orders", "queue", {}, 0, 0, (FragmentRecord(fragment.id, 0, 0),))
        self.entity: Any = QueueEntity(record, Settings(), 0)
        self.entity.fragments = (fragment,)
        fragment.meter = self.entity.meter
        namespace: Any = SimpleNamespace(
            name="ns",
            settings=Settings(),
            at=lambda address: self.entity,
            runtime=lambda fragment: self.bed.runtime,
        )
        self.office = Resubmission(namespace, lambda: self.bed.now)

    async def move_to_dead_letters(self, count: int) -> list[int]:
        made = [
            to_message(PlainMessage(b"%d" % n, message_id=f"m{n}"), 1_000) for n in range(count)
        ]

        def move_to_dead_letters(queue: Queue, now: Instant, pages: Pages) -> list[int]:
            return [self._bury(queue, message, now) for message in made]

        numbers: list[int] = await self.bed.ask(move_to_dead_letters)
        return numbers

    def _bury(self, queue: Queue, message: Message, now: Instant) -> int:
        raw = message.raw
        assert raw is not None
        message.number = message.enqueue_number = queue.ledger.next_number()
        message.enqueued_at = now
        queue.route_dead_letter(message, "broken", "in a test")
        queue.ledger.add(RecordKind.ENQUEUED, message, raw)
        queue.placed(message)
        return message.number

    def counts(self) -> tuple[int, int]:
        """How many are in the queue, and how many are dead."""
        engine = self.bed.fragment.engine
        assert engine is not None
        return engine.ledger.count(MAIN), engine.ledger.count(DEAD_LETTER)


@pytest.fixture
async def cemetery(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cemetery]:
    monkeypatch.setattr(resubmit, "AT_ONCE", 4)
    cemetery = Cemetery()
    yield cemetery
    await cemetery.bed.thread.stop()


async def test_a_long_request_is_carried_out_slice_by_slice_in_order(cemetery: Cemetery) -> None:
    numbers = await cemetery.move_to_dead_letters(10)
    before = cemetery.bed.store.commits
    told = await cemetery.office.resubmit(DEAD, None, [(n, Edits()) for n in numbers])
    assert told == [("moved", "")] * 10
    assert cemetery.bed.store.commits == before + 3
    assert cemetery.counts() == (10, 0)
    assert cemetery.entity.meter.resubmissions == 10
    engine = cemetery.bed.fragment.engine
    assert engine is not None
    rows = engine.ledger.delta.lane(MAIN, 0)
    found = [message for _, message in sorted(rows.items()) if message is not None]
    assert [message.message_id for message in found] == [f"m{n}" for n in range(10)]


async def test_a_slice_is_over_when_enough_was_read_for_it(
    cemetery: Cemetery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resubmit, "DECODED_MAX", 0)
    numbers = await cemetery.move_to_dead_letters(5)
    before = cemetery.bed.store.commits
    edits = Edits(properties={"a": 1})
    await cemetery.office.resubmit(DEAD, None, [(n, edits) for n in numbers[:1]])
    edited = Edits(texts={"subject": "again"})
    told = await cemetery.office.resubmit(DEAD, None, [(n, edited) for n in numbers[1:]])
    assert told == [("moved", "")] * 4
    assert cemetery.bed.store.commits == before + 5
    assert cemetery.counts() == (5, 0)


async def test_when_the_store_fails_between_all_are_told_and_asking_again_mends_it(
    cemetery: Cemetery,
) -> None:
    numbers = await cemetery.move_to_dead_letters(10)
    asked = [(number, Edits()) for number in numbers]
    commit, count = cemetery.bed.store.commit, 0

    def fails_second(parts: Any) -> Any:
        nonlocal count
        count += 1
        if count == 2:
            raise StoreUnavailable("disk full")
        return commit(parts)

    cemetery.bed.store.commit = fails_second  # type: ignore[method-assign]
    told = await cemetery.office.resubmit(DEAD, None, asked)
    assert told == [("moved", "")] * 4 + [("refused", "disk full")] * 6
    told = await cemetery.office.resubmit(DEAD, None, asked)
    assert told == [("not found", "")] * 4 + [("moved", "")] * 6
    assert cemetery.counts() == (10, 0)


async def test_what_nobody_knows_is_not_told_as_refused(cemetery: Cemetery) -> None:
    numbers = await cemetery.move_to_dead_letters(10)
    commit, count = cemetery.bed.store.commit, 0

    def second_sync_fails(parts: Any) -> Any:
        nonlocal count
        count += 1
        passed = commit(parts)
        if count == 2:
            raise OutcomeUnknown("The sync failed.")
        return passed

    cemetery.bed.store.commit = second_sync_fails  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown):
        await cemetery.office.resubmit(DEAD, None, [(number, Edits()) for number in numbers])
    await cemetery.bed.ask(lambda queue, now, pages: None)
    assert cemetery.counts() == (8, 2), "asked again, the engine has what the store has"


async def test_when_the_store_fails_at_once_the_request_is_refused(cemetery: Cemetery) -> None:
    numbers = await cemetery.move_to_dead_letters(1)
    cemetery.bed.store.failure = StoreUnavailable("disk full")
    with pytest.raises(StoreUnavailable, match="disk full"):
        await cemetery.office.resubmit(DEAD, None, [(numbers[0], Edits())])


async def test_dead_letters_are_thrown_away_slice_by_slice(cemetery: Cemetery) -> None:
    numbers = await cemetery.move_to_dead_letters(6)
    told = await cemetery.office.discard(DEAD, [*numbers, 99])
    assert told == [("removed", "")] * 6 + [("not found", "")]
    assert cemetery.counts() == (0, 0)
    assert cemetery.entity.meter.deletions == 6
