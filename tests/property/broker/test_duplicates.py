"""Whatever is sent again, and whatever crashes meanwhile: an id comes once in a window."""

from __future__ import annotations

import random
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postbus.broker import duplicate_history
from postbus.broker.duplicates import recall
from postbus.broker.message import Message
from postbus.broker.policy import Policy
from postbus.store.memory.store import MemoryStore
from tests.support.engine import Engine

# Constants are made small, and in machine code they are fixed.
pytestmark = pytest.mark.interpreted_only

WINDOW_MS = 1_000


class Model:
    """When each id was first seen, and the ids that should have come, in order."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}
        self.kept: list[str] = []
        self.window_ms = WINDOW_MS

    def send(self, ids: list[str], now: int) -> None:
        for each in ids:
            at = self.seen.get(each)
            if not each or at is None or at + self.window_ms <= now:
                self.kept.append(each)
                self.seen[each] = now


def drop_expired(engine: Engine) -> None:
    """As upkeep does, whether a checkpoint has it or not."""
    ids = engine.queue.ledger.history
    assert ids is not None
    engine.store.index.drop_seen(engine.fragment, ids.expire(engine.now), 3)


def read_some(engine: Engine) -> None:
    ids = engine.queue.ledger.history
    assert ids is not None
    engine.paged(lambda pages: recall(ids, pages))


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.sampled_from([0, 1, 5, 30]), st.sampled_from([4, 12]))
def test_an_id_comes_once_in_a_window(seed: int, checkpoint_every: int, segment: int) -> None:
    chance = random.Random(seed)
    engine = Engine(
        Policy(duplicate_window_ms=WINDOW_MS),
        store=MemoryStore(),
        checkpoint_every=checkpoint_every,
    )
    model = Model()
    with (
        mock.patch.object(duplicate_history, "SEGMENT_IDS", segment),
        mock.patch.object(duplicate_history, "PART_IDS", 5),
        mock.patch.object(duplicate_history, "CAPACITY_MIN", 2),
        mock.patch("postbus.broker.duplicates.RECALLED_AT_ONCE", 3),
    ):
        for _ in range(120):
            act = chance.random()
            if act < 0.6:
                ids = chance.choices(["", *"abcdefghijklmnopqrst"], k=chance.randint(1, 4))
                later = engine.now + chance.choice([0, 0, 0, 50])
                engine.send_messages(*(Message(b"x", each, scheduled_at=later) for each in ids))
                model.send(ids, engine.now)
            elif act < 0.75:
                engine.wait(chance.choice([1, 100, 400, 700, 1_000]))
            elif act < 0.82:
                engine.commit(checkpoint=True)
            elif act < 0.9:
                engine.crash()
            elif act < 0.95:
                read_some(engine)
            else:
                drop_expired(engine)
        engine.wait(100)
        assert sorted(m.message_id for m in engine.peek(0, 1_000)) == sorted(model.kept)
