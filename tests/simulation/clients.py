"""Those who use the queue: each does one small thing at a time, and remembers what it was told."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from postbus.broker import browse
from postbus.broker.index_pages import Need, Pages
from postbus.broker.message import NO_TTL, Message, NewProperties
from postbus.broker.policy import Policy
from postbus.broker.queue import Queue
from postbus.broker.resubmission import Back, Repair, Result, resubmit
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN
from tests.simulation.model import Asked, Sent

VERBS = ["complete", "abandon", "defer", "dead_letter", "release", "lose", "forget"]


class Broker(Protocol):
    """What a client can do to the simulation."""

    chance: random.Random

    @property
    def now(self) -> int: ...

    def ask(
        self,
        asked: Asked,
        call: Callable[[Queue, int, Pages], Any],
        done: Callable[[Any], None],
    ) -> None: ...

    def sending(self, name: str, sent: Sent) -> None: ...
    def confirm(self, verb: str, names: Sequence[str]) -> None: ...
    def show(self, name: str, raw: bytes) -> None: ...
    def locked(self, message: Message) -> None: ...
    def dead_letters(self) -> list[int]: ...
    def editing(self, name: str, body: bytes) -> None: ...
    def check_resubmitted(self, numbers: Sequence[int], results: Sequence[Result]) -> None: ...
    def check_peek(self, subqueue: int, start: int, found: list[Message]) -> None: ...
    def update(self, policy: Policy) -> None: ...


@dataclass
class Held:
    """A delivery that its receiver has not settled yet."""

    name: str
    number: int
    token: bytes


@dataclass
class Known:
    """What the clients tell each other: numbers of set-aside messages, and deliveries."""

    scheduled: list[tuple[str, int]] = field(default_factory=list)
    deferred: list[int] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    old_tokens: list[bytes] = field(default_factory=list)
    numbers: list[int] = field(default_factory=lambda: [1])
    sent: int = 0


class Clients:
    """Does one random thing after the other."""

    def __init__(self, broker: Broker, known: Known) -> None:
        self._broker = broker
        self._chance = broker.chance
        self.known = known
        # Every seed has habits of its own: what all do all the time hides what few do often.
        usual: dict[Callable[[], None], int] = {
            self.send: 8,
            self.schedule: 2,
            self.cancel: 1,
            self.settle: 40,
            self.renew: 10,
            self.settle_late: 1,
            self.fetch_deferred: 3,
            self.peek: 3,
            self.purge: 1,
            self.resubmit: 2,
            self.update: 1,
        }
        self._weights = {
            act: often * self._chance.choice([0, 1, 1, 4]) for act, often in usual.items()
        }
        self._weights[self.send] += 4
        self._verbs = [*self._chance.choices(VERBS, k=4), "complete"]

    def act(self) -> None:
        self._chance.choices(list(self._weights), list(self._weights.values()))[0]()

    # -- senders ----------------------------------------------------------------------------

    def _message(self, ttl: int, scheduled_at: int = 0) -> Message:
        self.known.sent += 1
        name = f"m{self.known.sent}"
        body = name.encode() + b"." * self._chance.randrange(40)
        self._broker.sending(name, Sent(body, scheduled_at))
        return Message(body, name, None, ttl, scheduled_at)

    def send(self) -> None:
        chance = self._chance
        ttl = chance.choice([NO_TTL, NO_TTL, NO_TTL, 300, 4_000])
        self._send([self._message(ttl) for _ in range(chance.choice([1, 1, 1, 2, 7]))])

    def schedule(self) -> None:
        due = self._broker.now + self._chance.choice([0, 50, 1_000, 9_000])
        ttl = self._chance.choice([NO_TTL, 500])
        self._send([self._message(ttl, due)], due > self._broker.now)

    def _send(self, messages: list[Message], scheduled: bool = False) -> None:
        names = [message.message_id for message in messages]

        def done(numbers: list[int]) -> None:
            self._broker.confirm("send", names)
            self.known.numbers.append(numbers[-1])
            if scheduled:
                self.known.scheduled += zip(names, numbers, strict=True)

        asked = Asked("send", names=tuple(names))
        self._broker.ask(asked, lambda q, now, _: q.send(messages, now), done)

    def cancel(self) -> None:
        if self.known.scheduled:
            count = min(len(self.known.scheduled), self._chance.randint(1, 2))
            chosen = self._chance.sample(self.known.scheduled, count)
            numbers = tuple(number for _, number in chosen)
            self._broker.ask(
                Asked("cancel", numbers=numbers),
                lambda q, _, pages: browse.cancel_scheduled(q, numbers, pages),
                lambda _: self._broker.confirm("cancel", [name for name, _ in chosen]),
            )

    # -- those who hold a lock ----------------------------------------------------------------

    def settle(self) -> None:
        known, chance = self.known, self._chance
        if not known.held:
            return
        held = known.held.pop(chance.randrange(len(known.held)))
        verb = chance.choice(self._verbs)
        if verb == "forget":
            known.old_tokens.append(held.token)
            if chance.random() < 0.5:
                self._settle("renew", held.token)
            return
        if verb == "defer":
            known.deferred.append(held.number)
        if chance.random() < 0.1:
            known.old_tokens.append(held.token)
        self._settle(verb, held.token, [held.name])

    def settle_late(self) -> None:
        """With a token that may have run out, or has been used, or is of an earlier engine."""
        if self.known.old_tokens:
            token = self._chance.choice(self.known.old_tokens)
            self._settle(self._chance.choice(["complete", "abandon", "release", "renew"]), token)

    def renew(self) -> None:
        """One lock, or all of them, as an automatic renewer does."""
        if self.known.held:
            one = self._chance.choice(self.known.held[-5:])
            for held in self._chance.choice([[one], list(self.known.held)]):
                self._settle("renew", held.token)

    def _settle(self, verb: str, token: bytes, names: Sequence[str] = ()) -> None:
        extra: tuple[Any, ...] = ()
        if verb in ("abandon", "defer") and self._chance.random() < 0.3:
            section = b"p%d" % self._chance.randrange(100)
            extra = (NewProperties(section, len(section)),)
        elif verb == "dead_letter":
            extra = (self._chance.choice([None, "broken"]), "because")
        self._broker.ask(
            Asked(verb, token),
            lambda q, now, _: getattr(q, verb)(token, now, *extra),
            lambda _: self._broker.confirm(verb, names),
        )

    def fetch_deferred(self) -> None:
        if not self.known.deferred:
            return
        count = min(len(self.known.deferred), self._chance.choice([1, 1, 2]))
        self.receive_deferred(
            MAIN, self._chance.sample(self.known.deferred, count), self._chance.random() < 0.3
        )

    def receive_deferred(self, subqueue: int, numbers: Sequence[int], delete: bool) -> None:
        broker = self._broker

        def call(queue: Queue, now: int, pages: Pages) -> Any:
            result = browse.receive_deferred(queue, subqueue, numbers, delete, 99, now, pages)
            if isinstance(result, Need) or delete:
                return result
            for message, _ in result:
                broker.locked(message)
            return [(message, raw, message.token) for message, raw in result]

        def done(found: Any) -> None:
            for message, raw, *token in found:
                broker.show(message.message_id, raw)
                if delete:
                    broker.confirm("complete", [message.message_id])
                else:
                    self.known.held.append(Held(message.message_id, message.number, *token))

        self._broker.ask(Asked("deferred", numbers=tuple(numbers)), call, done)

    # -- those who look, and those who clean up ----------------------------------------------

    def peek(self) -> None:
        chance, broker = self._chance, self._broker
        subqueue = chance.choice([MAIN, MAIN, DEAD_LETTER])
        start = max(0, chance.choice(self.known.numbers) + chance.randint(-5, 5))
        count = chance.randint(1, 9)

        def call(queue: Queue, _: int, pages: Pages) -> Any:
            found = browse.peek(queue, subqueue, start, count, 120, pages)
            if not isinstance(found, Need):
                broker.check_peek(subqueue, start, [message for message, _ in found])
            return found

        def done(found: browse.Found) -> None:
            for message, raw in found:
                broker.show(message.message_id, raw)

        broker.ask(Asked("peek"), call, done)

    def purge(self) -> None:
        chance = self._chance
        subqueue, count = chance.choice([MAIN, DEAD_LETTER]), chance.randint(1, 6)
        before = self._broker.now - chance.choice([0, 0, 1_000])
        self._broker.ask(
            Asked("purge"),
            lambda q, _, pages: browse.delete_batch(q, subqueue, count, before, pages),
            lambda _: None,
        )

    def resubmit(self) -> None:
        """Have some of the dead letters sent again, and among them a number that is none."""
        broker, chance = self._broker, self._chance
        dead = broker.dead_letters()
        numbers = chance.sample(dead, min(len(dead), chance.choice([1, 2, 5])))
        numbers.insert(chance.randint(0, len(numbers)), chance.choice(self.known.numbers))
        repairs = [Repair(number, self._revise) for number in numbers]

        def call(queue: Queue, now: int, pages: Pages) -> Any:
            found = resubmit(queue, DEAD_LETTER, repairs, Back(queue, queue), now, pages)
            if not isinstance(found, Need):
                broker.check_resubmitted(numbers, found)
            return found

        broker.ask(Asked("resubmit", numbers=tuple(numbers)), call, lambda _: None)

    def _revise(self, dead: Message, raw: bytes) -> Message:
        if self._chance.random() < 0.3:
            raw = dead.message_id.encode() + b"+" * self._chance.randrange(40)
            self._broker.editing(dead.message_id, raw)
        return Message(raw, dead.message_id, None, dead.ttl)

    def update(self) -> None:
        self._broker.update(random_policy(self._chance))


def random_policy(chance: random.Random) -> Policy:
    return Policy(
        lock_ms=chance.choice([200, 2_000, 20_000]),
        max_delivery_count=chance.choice([1, 2, 4, 10]),
        default_ttl_ms=chance.choice([None, None, None, 3_000]),
        dead_letter_on_expiry=chance.random() < 0.5,
        size_bytes_max=chance.choice([400, 4_000, 1 << 20]),
        sends=chance.random() < 0.95,
        receives=chance.random() < 0.95,
    )
