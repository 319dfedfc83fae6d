"""Somebody has dead letters of queues sent again, some of them with another body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from postbus.broker.engine import Engine
from postbus.broker.index_pages import Need, Pages
from postbus.broker.message import Message
from postbus.broker.resubmission import Back, Outcome, Repair, Result, resubmit
from postbus.broker.subqueue_numbers import DEAD_LETTER
from tests.simulation.history import Violation
from tests.simulation.parts import Part
from tests.simulation.promises import RESUBMITTED
from tests.simulation.queues.messages import name_of
from tests.simulation.queues.model import Asked, QueueModel
from tests.simulation.queues.queues import Queues


class Resubmission(Part):
    """Sends dead letters back to their queue."""

    def __init__(self, queues: Queues) -> None:
        super().__init__(queues.world, queues.scheduler)
        self._queues = queues
        self.habits({self.resubmit: 2})

    def resubmit(self) -> None:
        """Some of the dead letters of one queue, and among them a number that may be none."""
        queues, chance = self._queues, self.chance
        model = chance.choice(list(queues.models.values()))
        entries = list(model.live.entries.values())
        dead = sorted(entry.number for entry in entries if entry.subqueue == DEAD_LETTER)
        numbers = chance.sample(dead, min(len(dead), chance.choice([1, 2, 5])))
        other = chance.choice([1, *(entry.number for entry in entries)])
        numbers.insert(chance.randint(0, len(numbers)), other)
        repairs = [Repair(number, self._revise) for number in numbers]

        def call(engine: Engine, now: int, pages: Pages) -> Any:
            queue = engine.own
            found = resubmit(queue, DEAD_LETTER, repairs, Back(queue, queue), now, pages)
            if not isinstance(found, Need):
                _check_results(model, numbers, found)
            return found

        queues.ask(model.id, Asked("resubmit", numbers=tuple(numbers)), call, exclusive=True)

    def _revise(self, dead: Message, raw: bytes) -> Message:
        if self.chance.random() < 0.3:
            name = name_of(raw)
            raw = f"{name}|{'+' * self.chance.randrange(40)}".encode()
            self._queues.messages.by_name[name].revised.append(raw)
        return Message(raw, dead.message_id, dead.session_id, dead.ttl)


def _check_results(model: QueueModel, numbers: Sequence[int], results: Sequence[Result]) -> None:
    """Each was told what has become of it. The model has not read the records of it yet."""
    entries = model.live.entries.values()
    dead = {entry.number: entry for entry in entries if entry.subqueue == DEAD_LETTER}
    for number, result in zip(numbers, results, strict=False):
        entry = dead.pop(number, None)
        if entry is None:
            expected = {Outcome.NOT_FOUND}
        elif entry.name in model.locks:
            expected = {Outcome.LOCKED}
        else:
            expected = {Outcome.MOVED, Outcome.REFUSED}
        if result.outcome not in expected:
            name = None if entry is None else entry.name
            raise Violation(RESUBMITTED, name, f"number {number} of {entry} was told {result}")
        if entry is not None and result.outcome is not Outcome.MOVED:
            dead[number] = entry
