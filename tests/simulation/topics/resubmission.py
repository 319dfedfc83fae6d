"""Somebody has dead letters sent again: to where they came from, or to the queue at the end."""

from __future__ import annotations

from postbus.broker.destination import Destination
from postbus.broker.engine import Engine
from postbus.broker.index_pages import Need, Pages
from postbus.broker.message import ACTIVE, Message
from postbus.broker.queue import Queue
from postbus.broker.resubmission import Back, Posted, Repair, ResubmitTarget, Result, resubmit
from postbus.runtime.loaded_fragment import LoadedFragment
from tests.simulation.parts import Part
from tests.simulation.topics.part import Topics
from tests.simulation.topics.routes import END, NAMES


class TopicResubmission(Part):
    """Sends dead letters of subscriptions and of the queues beside the topic again."""

    def __init__(self, topics: Topics) -> None:
        super().__init__(topics.world, topics.scheduler)
        self._routes = topics.routes
        self.habits({self.resubmit: 20})

    def resubmit(self) -> None:
        """Some of the dead letters of one queue or subscription, and a number that is none."""
        world, chance = self.world, self.chance
        fragments = [fragment for fragment in world.fragments.values() if fragment.id in NAMES]
        found = [
            (fragment, queue) for fragment in fragments for queue in _with_dead_letters(fragment)
        ]
        if not found:
            return
        fragment, queue = chance.choice(found)
        numbers = _dead_letters(queue)
        chosen = chance.sample(numbers, min(len(numbers), chance.choice([1, 2, 5])))
        repairs = [Repair(number, _same) for number in [*chosen, 1 << 40]]
        elsewhere = fragment.id != END and chance.random() < 0.5
        if elsewhere and queue.owner:
            self._routes.subscriptions[queue.owner].targets.add(END)
        subqueue = queue.dead_letters

        def call(engine: Engine, now: int, pages: Pages) -> list[Result] | Need:
            found = engine.at(subqueue)
            target: ResubmitTarget = Back(found, engine.own)
            if elsewhere:
                target = Posted(engine, END, "Queue", NAMES[END], world.policy_of(END))
            elif found.policy.forward_to not in (None, Destination((END,))):
                return []  # it would go round and round: what is sent again has all its hops
            return resubmit(found, subqueue, repairs, target, now, pages)

        world.ask(fragment.id, call)


def _with_dead_letters(fragment: LoadedFragment) -> list[Queue]:
    """The queues and subscriptions of an entity that have dead letters."""
    queues = [] if fragment.engine is None else list(fragment.engine.queues.values())
    return [queue for queue in queues if queue.ledger.count(queue.dead_letters)]


def _dead_letters(queue: Queue) -> list[int]:
    known = set(queue.windows[queue.dead_letters].live)
    lane = queue.ledger.delta.lane(queue.dead_letters, ACTIVE)
    return sorted(known | {number for number, message in lane.items() if message is not None})


def _same(dead: Message, raw: bytes) -> Message:
    return Message(raw, dead.message_id, dead.session_id, dead.ttl, dead.enqueued_at)
