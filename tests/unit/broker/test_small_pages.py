"""Whatever is read in pages is read whole, also where pages hold little but what is gone."""

from __future__ import annotations

from itertools import combinations

import pytest

from tests.support.engine import Engine
from tests.support.sessions import SessionEngine

pytestmark = [pytest.mark.usefixtures("small_limits"), pytest.mark.interpreted_only]

COUNT = 6
SUBSETS = [some for size in range(COUNT + 1) for some in combinations(range(COUNT), size)]


def peek_all(engine: Engine, start: int = 0) -> list[int]:
    """From one answer to the next, as clients do."""
    found: list[int] = []
    while some := engine.peek(start):
        found += [message.number for message in some]
        start = found[-1] + 1
    return found


def test_peeks_find_all_that_is_left_of_an_index() -> None:
    """Pages are of the checkpoint, and the messages of a page may all be gone, but for its last."""
    for gone in SUBSETS:
        engine = Engine()
        numbers = engine.send(*(b"%d" % n for n in range(COUNT)))
        engine.commit(checkpoint=True)
        received = [engine.receive() for _ in range(COUNT)]
        for place, message in enumerate(received):
            assert message is not None
            if place in gone:
                engine.complete(message)
            elif place % 2:
                engine.defer(message)
        left = [number for place, number in enumerate(numbers) if place not in gone]
        for start in (0, *numbers):
            assert peek_all(engine, start) == [each for each in left if each >= start], gone


def test_lists_of_sessions_are_whole() -> None:
    for gone in SUBSETS:
        engine = SessionEngine()
        names = [f"s{n}" for n in range(COUNT)]
        for name in names:
            engine.put(name, b"x")
        engine.commit(checkpoint=True)
        for place in gone:
            engine.drain(engine.accept(names[place]))
        found: list[str] = []
        while some := engine.listed(None, len(found), 2):
            found += some
        assert found == [name for place, name in enumerate(names) if place not in gone], gone
