"""Those who send, receive and settle: each does one small thing at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from postbus.broker import browse, send_via
from postbus.broker.engine import Engine
from postbus.broker.index_pages import Need, Pages
from postbus.broker.message import Message
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER
from postbus.errors import (
    MessageLockLost,
    OutcomeUnknown,
    ServiceBusError,
    SessionLockLost,
)
from postbus.gateway.settlement import Send
from postbus.runtime.receivers import OutgoingMessage
from tests.simulation.history import Violation
from tests.simulation.sessions.guests import Guest
from tests.simulation.sessions.letters import FAR, NAMES, ONCE, WORK, Letter, name_of
from tests.simulation.sessions.promises import BODY
from tests.simulation.sessions.world import World, random_policy

SENDERS = 2
VERBS = ["complete", "complete", "complete", "abandon", "defer", "dead_letter", "release", "forget"]
LOST = MessageLockLost, SessionLockLost


@dataclass
class Held:
    """A delivery that its receiver has not settled yet."""

    fragment: int
    subqueue: int
    token: bytes
    name: str
    number: int
    session_id: str | None


class People:
    """Does one random thing after the other."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = chance = world.chance
        self.held: list[Held] = []
        self.deferred: list[tuple[int, str | None, int]] = []
        self.scheduled: list[tuple[int, Letter, int]] = []
        self._old: list[Held] = []
        world.on_delivery = self._delivered
        usual: dict[Callable[[], None], float] = {
            self.send: 10,
            self.schedule: 2,
            self.cancel: 1,
            self.send_through: 3,
            self.take: 10,
            self.hang_up: 12,
            self.settle: 10,
            self.settle_late: 1,
            self.fetch_deferred: 3,
            self.renew: 2,
            self.change: 0.4,
        }
        self.weights = {act: often * chance.choice([0, 1, 1, 4]) for act, often in usual.items()}
        self.weights[self.send] += 4
        self._verbs = [*chance.choices(VERBS, k=4), "complete"]

    def forget(self, fragment_id: int) -> None:
        """The engine is gone, and all locks with it."""
        self._old += [held for held in self.held if held.fragment == fragment_id]
        del self._old[:-20]
        self.held = [held for held in self.held if held.fragment != fragment_id]

    # -- senders -------------------------------------------------------------------------------

    def _letters(self, to: int, due: int = 0) -> tuple[list[Letter], list[Message]]:
        count = self._chance.choice([1, 1, 1, 2, 4])
        ttl = self._chance.choice([-1, -1, -1, -1, -1, 300])
        written = [self._world.letters.write(to, due, ttl) for _ in range(count)]
        return [letter for letter, _ in written], [message for _, message in written]

    def send(self) -> None:
        """On a link, and without waiting for what became of the last one."""
        fragment_id = self._chance.choice([WORK, WORK, ONCE, ONCE, FAR])
        sender = self._chance.randrange(SENDERS)
        for _ in range(self._chance.choice([1, 1, 1, 3])):
            self._send(fragment_id, sender)

    def _send(self, fragment_id: int, sender: int) -> None:
        if self._world.letters.enough:
            return
        letters, messages = self._letters(fragment_id)
        for letter in letters:
            letter.sender = sender

        def settle(_: object, outcome: object) -> None:
            if isinstance(outcome, ServiceBusError):
                refused(letters, outcome)
            else:
                acknowledge(letters)

        link: Any = SimpleNamespace(settle=settle)
        delivery: Any = SimpleNamespace(payload=b"".join(each.body for each in letters))
        refusals: Any = SimpleNamespace(rejected=lambda error, _: error)
        client: Any = SimpleNamespace(answered=lambda: None)
        fragment = self._world.fragments[fragment_id]
        self._world.runtime.submit(Send(fragment, messages, link, delivery, refusals, client))

    def schedule(self) -> None:
        """Over the management node, which answers with numbers."""
        if self._world.letters.enough:
            return
        fragment_id = self._chance.choice([WORK, ONCE, FAR])
        due = self._world.now + self._chance.choice([0, 50, 1_000, 9_000])
        letters, messages = self._letters(fragment_id, due)

        def done(numbers: list[int]) -> None:
            acknowledge(letters)
            self.scheduled += [
                (fragment_id, letter, n) for letter, n in zip(letters, numbers, strict=True)
            ]

        self._world.watch(
            fragment_id,
            lambda engine, now, pages: engine.send(messages, now, pages),
            done,
            lambda error: refused(letters, error),
        )

    def cancel(self) -> None:
        if self.scheduled:
            fragment_id, _, number = self._chance.choice(self.scheduled)
            self._world.watch(
                fragment_id,
                lambda engine, _, pages: browse.cancel_scheduled(engine.own, [number], pages),
            )

    def send_through(self) -> None:
        """To one entity through another, outside of any transaction."""
        if self._world.letters.too_many:
            return
        via, to = self._chance.choice([(ONCE, FAR), (ONCE, WORK), (WORK, FAR), (WORK, ONCE)])
        letters, messages = self._letters(to)
        self._world.watch(
            via,
            lambda engine, now, _: send_via.send_through(engine, to, messages, now),
            lambda _: acknowledge(letters),
            lambda error: refused(letters, error),
        )

    # -- receivers -----------------------------------------------------------------------------

    def take(self) -> None:
        """Come, grant credit or go, where there are no sessions."""
        world, chance = self._world, self._chance
        if len(world.takers) > 3 and chance.random() < 0.8:
            taker = chance.choice(world.takers)
            if chance.random() < 0.3:
                world.detach(taker)
            else:
                world.refresh(taker, chance.choice([1, 5]))
            return
        fragment_id = chance.choice([WORK, ONCE, ONCE, FAR, FAR])
        subqueue = MAIN
        if fragment_id == WORK or chance.random() < 0.3:
            subqueue = chance.choice([DEAD_LETTER, DEAD_LETTER, TRANSFER_DEAD_LETTER])
        world.attach(
            world.fragments[fragment_id], subqueue, chance.random() < 0.3, chance.randint(1, 9)
        )

    def hang_up(self) -> None:
        """Go while something is on its way."""
        expecting = [taker for taker in self._world.takers if taker.reserved]
        if expecting:
            self._world.detach(self._chance.choice(expecting))

    def _delivered(self, taker: Any, outgoing: OutgoingMessage) -> None:
        name = self._check_body(outgoing.message, outgoing.raw)
        if outgoing.token is not None:
            session_id = taker.session_id if isinstance(taker, Guest) else None
            message = outgoing.message
            self.held.append(
                Held(taker.fragment.id, taker.subqueue, outgoing.token, name, message.number,
                     session_id)
            )  # fmt: skip

    def _check_body(self, message: Message, raw: bytes) -> str:
        name = name_of(raw)
        letter = self._world.letters.by_name.get(name)
        if letter is None or letter.body != raw or letter.message_id != message.message_id:
            raise Violation(BODY, name, f"{raw!r} of {message.message_id}")
        return name

    def settle(self) -> None:
        if self.held:
            held = self.held.pop(-self._chance.randint(1, min(4, len(self.held))))
            verb = self._chance.choice(self._verbs)
            if verb == "forget":
                self._old.append(held)
            else:
                self.settle_as(held, verb)

    def settle_late(self) -> None:
        """With a token that may have run out, or has been used, or is of an earlier engine."""
        if self._old:
            self.settle_as(self._chance.choice(self._old), self._chance.choice(VERBS[:-1]))

    def settle_as(self, held: Held, verb: str) -> None:
        live = self._world.lives[held.fragment]

        def call(engine: Engine, now: int, _: Pages) -> None:
            try:
                getattr(engine.at(held.subqueue), verb)(held.token, now)
            except LOST:
                live.check_lost(held.token, now)
                raise
            if verb == "release":
                live.unlock(held.token)

        def done(_: object) -> None:
            self._world.note(held.name, f"client was told: {verb} done")
            if verb == "defer":
                self.deferred.append((held.fragment, held.session_id, held.number))

        self._world.watch(held.fragment, call, done)

    def renew(self) -> None:
        plain = [held for held in self.held if held.session_id is None]
        if plain:
            held = self._chance.choice(plain)
            live = self._world.lives[held.fragment]

            def call(engine: Engine, now: int, _: Pages) -> None:
                try:
                    until = engine.at(held.subqueue).renew(held.token, now)
                except LOST:
                    live.check_lost(held.token, now)
                    raise
                live.renewed(held.token, until)

            self._world.watch(held.fragment, call)

    def fetch_deferred(self) -> None:
        if self.deferred:
            fragment_id, session_id, number = self._chance.choice(self.deferred)
            deletes = self._chance.random() < 0.3
            self.receive_deferred(fragment_id, MAIN, session_id, number, deletes)

    def receive_deferred(
        self, fragment_id: int, subqueue: int, session_id: str | None, number: int, deletes: bool
    ) -> None:
        live = self._world.lives[fragment_id]

        def call(engine: Engine, now: int, pages: Pages) -> Any:
            queue = engine.at(subqueue)
            found = browse.receive_deferred(
                queue, subqueue, [number], deletes, 99, now, pages, session_id
            )
            if isinstance(found, Need) or deletes:
                return found
            if session_id is not None:
                live.check_holder(session_id, found[0][0].holder, now)
            for message, raw in found:
                live.lock(message, name_of(raw))
            return [(message, raw, message.token) for message, raw in found]

        def done(found: Any) -> None:
            for message, raw, *tokens in found:
                name = self._check_body(message, raw)
                for token in tokens:
                    self.held.append(Held(fragment_id, subqueue, token, name, number, session_id))

        self._world.watch(fragment_id, call, done)

    # -- administrators ------------------------------------------------------------------------

    def change(self) -> None:
        """An entity is updated: its locks are lost. One that others send to is full, or closed."""
        world, chance = self._world, self._chance
        fragment_id = chance.choice(list(NAMES))
        before = world.policies[fragment_id]
        policy = random_policy(chance, fragment_id)
        if before.duplicate_window_ms is None or chance.random() < 0.7:
            policy = policy._replace(duplicate_window_ms=before.duplicate_window_ms)
        elif policy.duplicate_window_ms is None:
            policy = policy._replace(duplicate_window_ms=2 * before.duplicate_window_ms)
        open_ = 0.7 if fragment_id == FAR else 0.9
        sends, receives = chance.random() < open_, chance.random() < 0.9
        world.set_policy(fragment_id, policy._replace(sends=sends, receives=receives))


def acknowledge(letters: list[Letter]) -> None:
    for letter in letters:
        letter.acknowledged = True


def refused(letters: list[Letter], error: ServiceBusError) -> None:
    """What the store did with it nobody knows, where it did not answer."""
    for letter in letters:
        letter.refused = not isinstance(error, OutcomeUnknown)
