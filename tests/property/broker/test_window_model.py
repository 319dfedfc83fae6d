"""Windows that share a budget, against plain lists of messages: order, completeness and memory."""

from __future__ import annotations

import random
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.broker import window as window_module
from postbus.broker import window_budget
from postbus.broker.message import Message
from postbus.broker.window import Window
from postbus.broker.window_budget import MESSAGE_BYTES, WindowBudget
from tests.support.windows import audit

pytestmark = pytest.mark.interpreted_only
PAGE = 4
PAGE_MIN = 3
BODY_MAX = 900


class Subqueue:
    """All messages of a subqueue, and the window in front of them."""

    def __init__(self, chance: random.Random, budget: WindowBudget) -> None:
        self.chance = chance
        self.budget = budget
        self.stirred: dict[object, None] = {}
        self.window = Window(budget, True, 0, self.stirred)
        self.bodies: dict[int, bytes] = {}
        """By number: the truth."""
        self.locked: dict[int, Message] = {}
        self.last = 100

    def send(self) -> None:
        self.last += self.chance.choice([1, 1, 2, 5])
        self._add(self.last)

    def come_in_before(self) -> None:
        """As dead letters do."""
        number = self.chance.randint(1, self.last)
        if number not in self.bodies:
            self._add(number)

    def _add(self, number: int) -> None:
        body = bytes(self.chance.choice([1, 50, BODY_MAX]))
        self.bodies[number] = body
        message = self._message(number)
        if self.chance.random() < 0.8:
            message.raw = body
        self.window.add(message)

    def _message(self, number: int) -> Message:
        """As the index has it. Each is in a batch of its own, with some bytes before it."""
        message = Message(None)
        message.number, message.base, message.position = number, number, 5
        message.length = len(self.bodies[number])
        return message

    def take(self) -> None:
        head = self.window.head()
        if head is not None and head.raw is not None:
            assert head.raw == self.bodies[head.number]
            self.window.pop_head()
            head.token = b"locked"
            self.locked[head.number] = head
            self.window.release_body(head)

    def give_back(self) -> None:
        if message := self._any_locked():
            message.token = None
            self.window.give_back(message)

    def complete(self) -> None:
        if message := self._any_locked():
            self.window.forget(message)
            del self.bodies[message.number]

    def _any_locked(self) -> Message | None:
        if not self.locked:
            return None
        return self.locked.pop(self.chance.choice(sorted(self.locked)))

    def sweep(self) -> None:
        """A message leaves from anywhere, in the window or not."""
        free = sorted(set(self.bodies) - set(self.locked))
        if free:
            number = self.chance.choice(free)
            message = self.window.live.get(number)
            if message is not None:
                self.window.withdraw(message)
            del self.bodies[number]

    def refill(self) -> None:
        if not self.window.low:
            return
        limit = min(PAGE, self.window.page)
        behind = [number for number in sorted(self.bodies) if number > self.window.end]
        page = behind[:limit]
        self.window.extend(
            [self._message(number) for number in page],
            None if len(behind) <= limit else page[-1],
        )

    def fetch(self) -> None:
        head = self.window.head()
        if head is None or head.raw is not None:
            return
        if self.chance.random() < 0.5:
            for base in self.window.missing_bodies()[:2]:
                if base in self.bodies:
                    self.window.fill_bodies(base, bytes(5) + self.bodies[base])
        else:
            for message in self.window.bodiless()[:2]:
                self.window.fill_body(message, self.bodies[message.number])
        assert head.has_body, "the head gets its body, whatever room there is"

    def check(self) -> None:
        window = self.window
        waiting = sorted(set(self.bodies) - set(self.locked))
        head = window.head()
        if head is not None:
            assert head.number == waiting[0], "the first message is the next"
        elif window.complete:
            assert not waiting, "nothing lies beyond the window"
        inside = [number for number in waiting if number <= window.end]
        assert set(inside) <= set(window.live), "every message up to the end is here"
        assert all(number in self.bodies for number in window.live)

    @property
    def excess(self) -> int:
        """Bytes beyond those that a window may hold in any case."""
        budget = self.budget
        messages = max(2 * budget.messages_min, PAGE_MIN) + PAGE + len(self.locked)
        bodies = budget.body_bytes_min + BODY_MAX * (1 + len(self.locked))
        return max(0, self.window.held - messages * MESSAGE_BYTES - bodies)


def drain(subqueue: Subqueue) -> list[int]:
    """Receive everything; returns the numbers in the order in which they came."""
    for number in list(subqueue.locked):
        message = subqueue.locked.pop(number)
        message.token = None
        subqueue.window.give_back(message)
    came = []
    for _ in range(5_000):
        subqueue.fetch()
        head = subqueue.window.head()
        if head is not None and head.raw is not None:
            came.append(head.number)
            subqueue.take()
            subqueue.complete()
        elif subqueue.window.complete and head is None:
            return came
        else:
            subqueue.refill()
    raise AssertionError("the window never gets to the end")


@given(st.integers(0, 2**32))
def test_windows_that_share_a_budget_are_in_order_and_within_it(seed: int) -> None:
    chance = random.Random(seed)
    budget = WindowBudget(
        chance.choice([0, 4_000, 20_000, 200_000]), chance.choice([4, 8]), chance.choice([0, 500])
    )
    small = {"LOW_MESSAGES": chance.choice([2, 50]), "PAGE_MIN": PAGE_MIN}
    idle = mock.patch.object(window_budget, "IDLE_TAKES", chance.choice([0, 3, 1_000]))
    with mock.patch.multiple(window_module, **small), idle:
        places = [Subqueue(chance, budget) for _ in range(chance.choice([1, 2, 4]))]
        for _ in range(chance.randint(1, 250)):
            place = chance.choice(places)
            steps = [place.send, place.come_in_before, place.take, place.give_back, place.complete]
            chance.choices(
                [*steps, place.sweep, place.refill, place.fetch], [12, 2, 6, 2, 4, 2, 4, 4]
            )[0]()
            audit(budget, [each.window for each in places])
            for each in places:
                each.check()
            assert sum(each.excess for each in places) <= budget.bytes_max
        for place in places:
            waiting = sorted(place.bodies)
            assert drain(place) == waiting
        assert budget.used == 0
