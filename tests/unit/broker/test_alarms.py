"""Alarms: the first of many times, and none that was brought forward or taken back."""

from __future__ import annotations

from random import Random

from postbus.broker.alarms import Alarms
from postbus.model.times import NEVER


def test_the_first_is_told_and_each_comes_once() -> None:
    alarms = Alarms()
    assert alarms.first() == NEVER and alarms.due(10) == []
    for owner, at in ((1, 30), (2, 20), (3, NEVER)):
        alarms.set(owner, at)
    assert alarms.first() == 20
    assert alarms.due(19) == []
    assert alarms.due(30) == [2, 1]
    assert alarms.first() == NEVER and alarms.due(99) == []


def test_a_time_is_only_ever_brought_forward() -> None:
    alarms = Alarms()
    for at in (50, 40, 60):
        alarms.set(1, at)
    assert alarms.due(39) == [] and alarms.due(40) == [1]
    assert alarms.due(60) == [], "the later ones count no more"


def test_a_forgotten_owner_is_not_told_of() -> None:
    alarms = Alarms()
    alarms.set(1, 5)
    alarms.set(2, 7)
    alarms.forget(1)
    assert alarms.first() == 7 and alarms.due(9) == [2]


def test_what_was_brought_forward_over_and_over_takes_no_more_room() -> None:
    alarms = Alarms()
    for at in range(10_000, 0, -1):
        alarms.set(at % 3, at)
    assert len(alarms._heap) <= 2 * 3 + 64
    assert sorted(alarms.due(3)) == [0, 1, 2]


def test_they_say_what_a_plain_table_would() -> None:
    chance = Random(5)
    alarms, table, now = Alarms(), dict[int, int](), 0
    for _ in range(5_000):
        owner, at = chance.randrange(20), now + chance.randrange(40)
        match chance.randrange(8):
            case 0:
                alarms.forget(owner)
                table.pop(owner, None)
            case 1 | 2:
                now += chance.randrange(5)
                assert sorted(alarms.due(now)) == sorted(o for o, at in table.items() if at <= now)
                table = {o: at for o, at in table.items() if at > now}
            case _:
                alarms.set(owner, at)
                table[owner] = min(at, table.get(owner, NEVER))
        assert alarms.first() == min(table.values(), default=NEVER)
