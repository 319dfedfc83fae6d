"""Somebody has dead letters sent again: to where they came from, or to the queue at the end."""

from __future__ import annotations

from postbus.broker.engine import Engine
from postbus.broker.index_pages import Need, Pages
from postbus.broker.message import ACTIVE, Message
from postbus.broker.policy import NOWHERE
from postbus.broker.queue import Queue
from postbus.broker.resubmission import Back, Posted, Repair, ResubmitTarget, Result, resubmit
from postbus.runtime.loaded_fragment import LoadedFragment
from tests.simulation.topics.plan import END, NAMES
from tests.simulation.topics.world import World


def send_again(world: World) -> None:
    """Some of the dead letters of one entity, and a number that is none."""
    chance = world.chance
    graves = [
        (fragment, queue) for fragment in world.fragments.values() for queue in _graves(fragment)
    ]
    if not graves:
        return
    fragment, queue = chance.choice(graves)
    numbers = _dead_letters(queue)
    chosen = chance.sample(numbers, min(len(numbers), chance.choice([1, 2, 5])))
    repairs = [Repair(number, _same) for number in [*chosen, 1 << 40]]
    elsewhere = fragment.id != END and chance.random() < 0.5
    if elsewhere and queue.owner:
        world.plan.subscriptions[queue.owner].targets.add(END)
    subqueue = queue.dead_letters

    def call(engine: Engine, now: int, pages: Pages) -> list[Result] | Need:
        found = engine.at(subqueue)
        target: ResubmitTarget = Back(found, engine.own)
        if elsewhere:
            target = Posted(engine, END, "Queue", NAMES[END], world.policies[END])
        elif found.policy.forward_to not in (NOWHERE, END):
            return []  # it would go round and round: what is sent again has all its hops
        return resubmit(found, subqueue, repairs, target, now, pages)

    world.ask(fragment.id, call, lambda _: None)


def _graves(fragment: LoadedFragment) -> list[Queue]:
    """The queues and subscriptions of an entity that have dead letters."""
    queues = [] if fragment.engine is None else list(fragment.engine.queues.values())
    return [queue for queue in queues if queue.ledger.count(queue.dead_letters)]


def _dead_letters(queue: Queue) -> list[int]:
    known = set(queue.windows[queue.dead_letters].live)
    lane = queue.ledger.delta.lane(queue.dead_letters, ACTIVE)
    return sorted(known | {number for number, message in lane.items() if message is not None})


def _same(dead: Message, raw: bytes) -> Message:
    return Message(raw, dead.message_id, dead.session_id, dead.ttl, dead.enqueued_at)
