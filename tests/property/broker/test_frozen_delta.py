"""A checkpoint that is under way while messages go on changing: index and delta stay the truth.

The model is a plain dictionary. The index takes a checkpoint some steps after it was made, or never
if a crash comes first.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.broker import records
from postbus.broker.ledger import Layout, Ledger
from postbus.broker.message import ACTIVE, DEFERRED, Message, to_row
from postbus.broker.record_kinds import RecordKind
from postbus.model.index_rows import Checkpoint, Row, RowKey

LAYOUT = Layout(32, 8)
LANES = (ACTIVE, DEFERRED)
SESSIONS = (None, "a", "b")
EVERYTHING = 1_000

pytestmark = pytest.mark.interpreted_only


class Fragment:
    """A ledger, the journal and the index below it, and the model."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.ledger = Ledger(LAYOUT, 0, 0, b"")
        self.journal: list[bytes] = []
        self.index: dict[RowKey, Row] = {}
        self.stored = 0, b""
        self.made: Checkpoint | None = None
        self.live: dict[int, Message] = {}
        self.model: dict[int, tuple[int, int, str | None]] = {}
        """By number: lane, delivery count, session."""

    def step(self) -> None:
        self.chance.choice([self.add, self.add, self.change, self.move, self.remove])()
        self.journal += self.ledger.seal()

    def add(self) -> None:
        message = Message(b"body", "id", self.chance.choice(SESSIONS))
        message.number = message.enqueue_number = self.ledger.next_number()
        self.ledger.add(RecordKind.ENQUEUED, message, b"body")
        self.live[message.number] = message
        self.note(message)

    def change(self) -> None:
        if message := self.any():
            message.delivery_count += 1
            self.ledger.change(RecordKind.ABANDONED, message)
            self.note(message)

    def move(self) -> None:
        message = self.any()
        if message is not None and message.lane == ACTIVE:
            self.ledger.move(RecordKind.DEFERRED, message, 0, DEFERRED, message.number)
            self.note(message)

    def remove(self) -> None:
        if message := self.any():
            self.ledger.remove(RecordKind.COMPLETED, message)
            del self.live[message.number], self.model[message.number]

    def any(self) -> Message | None:
        """One of the messages. It was read from the index, or is still in memory."""
        if not self.live:
            return None
        message = self.live[self.chance.choice(sorted(self.live))]
        if self.chance.random() < 0.3:
            rows = self.rows(message.lane)
            found, _ = self.ledger.delta.over_lane(rows, 0, message.lane, 0, EVERYTHING)
            [message] = [each for each in found if each.number == message.number]
            self.live[message.number] = message
        return message

    def note(self, message: Message) -> None:
        self.model[message.number] = message.lane, message.delivery_count, message.session_id

    def prepare(self) -> None:
        self.ledger.delta.prepare(self.chance.choice([1, 3, 50]))

    def freeze(self) -> None:
        if not self.ledger.delta.frozen:
            self.made = self.ledger.make_checkpoint()

    def land(self) -> None:
        """The store has the checkpoint."""
        if self.made is None:
            return
        for key in self.made.removed:
            self.index.pop(key, None)
        for row in self.made.rows:
            self.index[RowKey(row.subqueue, row.lane, row.number)] = row
        self.stored = self.made.offset, self.made.state
        self.ledger.checkpointed(self.made)
        self.made = None

    def fail(self) -> None:
        """The store refuses the checkpoint."""
        if self.made is not None:
            self.ledger.checkpoint_failed()
            self.made = None

    def crash(self) -> None:
        """The process ends, and with it a checkpoint that is under way."""
        offset, state = self.stored
        self.ledger = Ledger(LAYOUT, 0, offset, state)
        for record in self.journal[offset:]:
            self.ledger.replay(records.decode(record), 0, 0, 0)
        self.ledger.head = len(self.journal)
        self.made = None
        self.live = {each.number: each for lane in LANES for each in self.read(lane)}

    def rows(self, lane: int) -> list[Row]:
        return [self.index[key] for key in sorted(self.index) if key.lane == lane]

    def read(self, lane: int) -> list[Message]:
        return self.ledger.delta.over_lane(self.rows(lane), 0, lane, 0, EVERYTHING)[0]

    def check(self) -> None:
        delta = self.ledger.delta
        for lane in LANES:
            expected = {n: each for n, each in self.model.items() if each[0] == lane}
            rows = self.rows(lane)
            found = self.read(lane)
            assert [each.number for each in found] == sorted(expected)
            for each in found:
                assert (each.lane, each.delivery_count, each.session_id) == expected[each.number]
            assert self.ledger.count(0, lane) == len(expected)
            for session in ("a", "b"):
                numbers = [n for n in sorted(expected) if expected[n][2] == session]
                own = [row for row in rows if row.group == session.encode()]
                got, _ = delta.over_group(own, 0, lane, session, 0, EVERYTHING)
                assert [each.number for each in got] == numbers
                if numbers and not delta.has_group(0, lane, session):
                    assert own, "only the index can have them"
                if own and not numbers:
                    assert delta.may_have_left(0, lane, session)


@given(st.integers(0, 2**32))
def test_index_and_delta_are_the_truth_while_a_checkpoint_is_under_way(seed: int) -> None:
    chance = random.Random(seed)
    fragment = Fragment(chance)
    weights = [10, *(chance.choice([1, 4]) for _ in range(4)), chance.choice([0, 0.3])]
    steps = [fragment.step, fragment.prepare, fragment.freeze, fragment.land, fragment.fail]
    steps.append(fragment.crash)
    for _ in range(chance.randint(1, 80)):
        chance.choices(steps, weights)[0]()
        fragment.check()
    fragment.land()
    fragment.freeze()
    fragment.land()
    assert fragment.ledger.delta.size == 0
    assert {key.number for key in fragment.index} == set(fragment.model)
    fragment.crash()
    fragment.check()


@given(st.integers(0, 2**32))
def test_a_checkpoint_says_what_was_true_when_it_was_made(seed: int) -> None:
    """Messages change while it is written, and the changes are of the next checkpoint."""
    fragment = Fragment(random.Random(seed))
    for _ in range(20):
        fragment.step()
        fragment.prepare()
    rows = {n: to_row(message) for n, message in fragment.live.items()}
    fragment.freeze()
    for _ in range(20):
        fragment.step()
    assert fragment.made is not None
    assert {row.number: row for row in fragment.made.rows} == rows
    fragment.land()
    fragment.crash()
    fragment.check()
