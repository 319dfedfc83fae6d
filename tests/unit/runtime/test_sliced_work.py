"""Work that takes several turns leaves each turn to the others, too, and keeps a peer's order."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import cast

import pytest

from postbus.amqp.events import Event
from postbus.gateway.input_queue import InputQueue
from postbus.observe.turns import CLIENT, TurnMeter
from postbus.runtime.sliced_work import SlicedWork


async def test_one_piece_of_all_is_done_in_each_turn() -> None:
    done: list[str] = []
    sliced_work = SlicedWork(TurnMeter())

    def step(name: str) -> bool:
        done.append(name)
        return done.count(name) < 3

    sliced_work.add(partial(step, "a"))
    sliced_work.add(partial(step, "b"))
    for count in range(1, 7):
        await asyncio.sleep(0)
        assert len(done) == count
    assert done == ["a", "b"] * 3
    assert sliced_work.turns.longest()[CLIENT] > 0
    sliced_work.add(partial(step, "c"))
    await asyncio.sleep(0)
    assert done[6:] == ["c"]


async def test_one_that_fails_does_not_keep_the_others() -> None:
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: failures.append(what))
    sliced_work = SlicedWork(TurnMeter())
    done: list[str] = []

    def fail() -> bool:
        raise ValueError("broken")

    sliced_work.add(fail)
    sliced_work.add(lambda: bool(done.append("other")))
    for _ in range(4):
        await asyncio.sleep(0)
    assert done == ["other"]
    assert len(failures) == 1


class InputHandler:
    """Takes one event at a time, and understands two bytes."""

    def __init__(self, backlog: InputQueue) -> None:
        self.backlog = backlog
        self.heard: list[object] = []
        self._left = b""

    @property
    def unheard(self) -> bool:
        return bool(self._left)

    def listen(self, data: bytes) -> None:
        data = self._left + data
        self.heard.append(data[:2])
        self._left = data[2:]

    def handle(self, events: list[Event]) -> None:
        self.heard.append(events[0])
        if events[1:]:
            self.backlog.events.extend(events[1:])
            self.backlog.begin()


def test_what_came_is_listened_to_in_its_order() -> None:
    backlog = InputQueue()
    ear = InputHandler(backlog)
    steps = iter([True, False])
    backlog.work = lambda: next(steps)
    assert backlog.begin()
    assert not backlog.begin()
    events = [cast(Event, object()), cast(Event, object())]
    backlog.events.extend(events)
    backlog.data.extend([b"abc", b"d"])
    turns = 1
    while backlog.go_on(ear):
        turns += 1
        assert backlog.waiting
    assert ear.heard == [*events, b"ab", b"cd"]
    assert turns == 6
    assert not backlog.waiting
    assert backlog.begin()


@pytest.mark.parametrize("data", [[], [b"ab"]])
def test_it_is_over_when_nothing_is_left(data: list[bytes]) -> None:
    backlog = InputQueue()
    backlog.work = lambda: False
    backlog.data.extend(data)
    backlog.begin()
    assert backlog.go_on(InputHandler(backlog)) == bool(data)
