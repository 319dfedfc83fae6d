"""Whatever clients do, a crash at any moment leaves exactly what was committed.

Random histories on windows so small that every page boundary is crossed; index + tail must equal
a full replay, and both must equal the live engine.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from postbus.broker.message import Message, NewProperties
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN
from postbus.broker.window_budget import WindowBudget
from postbus.errors import ServiceBusError
from tests.support.engine import Engine

Snapshot = list[tuple[int, int, int, str, int, str | None]]


def snapshot(engine: Engine) -> tuple[Snapshot, int]:
    """All there is, as a client can see it, and its size."""
    found: Snapshot = []
    found_bytes = 0
    for subqueue in (MAIN, DEAD_LETTER):
        start = 0
        while page := engine.peek(start, 250, subqueue):
            found += [
                (m.subqueue, m.lane, m.number, m.message_id, m.delivery_count, m.reason)
                for m in page
            ]
            found_bytes += sum(m.weight for m in page)
            start = page[-1].number + 1
    return found, found_bytes


def totals(engine: Engine) -> tuple[dict[tuple[int, int], int], int]:
    ledger = engine.queue.ledger
    return {place: n for place, n in ledger.counts.items() if n}, ledger.size_bytes


def counted(seen: tuple[Snapshot, int]) -> tuple[dict[tuple[int, int], int], int]:
    found, size = seen
    return dict(Counter((row[0], row[1]) for row in found)), size


class Client:
    """Does one random thing after the other."""

    def __init__(self, engine: Engine, chance: random.Random) -> None:
        self.engine = engine
        self.chance = chance
        self.held: list[Message] = []
        self.deferred: list[int] = []
        self.scheduled: list[int] = []
        self.sent = 0

    def step(self) -> None:
        actions = [self.send] * 4 + [self.receive] * 4 + [self.settle] * 5
        actions += [self.schedule, self.cancel, self.fetch, self.dead, self.wait, self.delete]
        with suppress(ServiceBusError):  # a refusal is an answer, and must change nothing
            self.chance.choice(actions)()

    def _body(self) -> bytes:
        self.sent += 1
        return b"%d-" % self.sent + b"x" * self.chance.randrange(30)

    def send(self) -> None:
        ttl = self.chance.choice([-1, -1, 500, 5_000])
        self.engine.send(*(self._body() for _ in range(self.chance.randint(1, 5))), ttl=ttl)

    def schedule(self) -> None:
        due = self.engine.now + self.chance.choice([100, 1_000, 10_000])
        self.scheduled += self.engine.send(self._body(), scheduled_at=due)

    def cancel(self) -> None:
        if self.scheduled:
            self.engine.cancel(self.chance.choice(self.scheduled))

    def receive(self) -> None:
        message = self.engine.receive(self.chance.choice([MAIN, MAIN, MAIN, DEAD_LETTER]))
        if message is not None:
            self.held.append(message)

    def settle(self) -> None:
        if not self.held:
            return
        message = self.held.pop(self.chance.randrange(len(self.held)))
        if message.token is None:
            return
        number = message.number
        action = self.chance.choice(["complete", "complete", "abandon", "defer", "dead_letter"])
        if action == "abandon" and self.chance.random() < 0.5:
            section = b"p" * self.chance.randrange(20)
            self.engine.abandon(message, NewProperties(section, len(section)))
        else:
            getattr(self.engine, action)(message)
        if action == "defer":
            self.deferred.append(number)

    def fetch(self) -> None:
        if self.deferred:
            number = self.chance.choice(self.deferred)
            self.held += self.engine.receive_deferred(number, delete=self.chance.random() < 0.2)

    def dead(self) -> None:
        self.engine.receive_and_delete(DEAD_LETTER)

    def wait(self) -> None:
        self.engine.wait(self.chance.choice([1, 100, 1_000, 6_000]), self.chance.randrange(2))

    def delete(self) -> None:
        self.engine.delete_batch(self.chance.randint(1, 4))


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.sampled_from([0, 1, 7, 40]), st.booleans())
def test_a_crash_leaves_what_was_committed(
    seed: int, checkpoint_every: int, dead_letters: bool
) -> None:
    chance = random.Random(seed)
    policy = Policy(lock_ms=5_000, max_delivery_count=3, dead_letter_on_expiry=dead_letters)
    limits = WindowBudget(0, messages_min=8, body_bytes_min=80)
    engine = Engine(policy, limits, checkpoint_every=checkpoint_every)
    client = Client(engine, chance)
    for _ in range(chance.randint(1, 150)):
        client.step()
        if chance.random() < 0.05:
            live = snapshot(engine)
            assert counted(live) == totals(engine)
            engine.crash()
            client.held.clear()
            assert snapshot(engine) == live
            assert totals(engine) == counted(live)
    live = snapshot(engine)
    engine.commit(checkpoint=True)
    assert snapshot(engine) == live
    engine.crash()
    assert snapshot(engine) == live


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_nothing_is_delivered_twice_under_one_lock_or_after_it_was_completed(seed: int) -> None:
    chance = random.Random(seed)
    engine = Engine(
        Policy(lock_ms=5_000, max_delivery_count=1_000),
        WindowBudget(0, messages_min=8, body_bytes_min=80),
        checkpoint_every=chance.choice([1, 5, 30]),
    )
    sent: set[str] = set()
    done: set[str] = set()
    held: dict[str, Message] = {}
    for _ in range(chance.randint(1, 200)):
        action = chance.randrange(5)
        if action == 0:
            name = b"%d" % len(sent)
            engine.send(name)
            sent.add(f"id-{name.decode()}")
        elif action in (1, 2):
            message = engine.receive()
            if message is not None:
                assert message.message_id not in done, "completed, and back"
                assert message.message_id not in held, "two holders of one lock"
                held[message.message_id] = message
        elif action == 3 and held:
            name_of = chance.choice(sorted(held))
            message = held.pop(name_of)
            if chance.random() < 0.5:
                engine.complete(message)
                done.add(name_of)
            else:
                engine.abandon(message)
        elif chance.random() < 0.1:
            engine.crash()
            held.clear()
    engine.wait(5_000)
    left = set()
    while (message := engine.receive()) is not None:
        assert message.message_id not in left
        left.add(message.message_id)
    assert left == sent - done, "nothing acknowledged is lost"
