"""Those who use queues: each does one small thing at a time, and remembers what it was told."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from postbus.broker import browse, send_via
from postbus.broker.engine import Engine
from postbus.broker.index_pages import Need, Pages
from postbus.broker.message import NO_TTL, STATE, Message, NewProperties
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER
from postbus.errors import ServiceBusError
from postbus.gateway.settlement import Send
from tests.simulation.history import Violation
from tests.simulation.parts import Part
from tests.simulation.promises import PEEK
from tests.simulation.queues.messages import SESSIONS, SentMessage
from tests.simulation.queues.model import Asked
from tests.simulation.queues.queues import Delivery, Queues

SENDERS = 2
LARGE = 1 << 20
"""Room for all messages of a history, in bytes."""
VERBS = ["complete", "abandon", "defer", "dead_letter", "release", "lose", "forget"]
Written = tuple[list[SentMessage], list[Message]]


class Senders(Part):
    """They send on links and over the management node, and through another queue."""

    def __init__(self, queues: Queues) -> None:
        super().__init__(queues.world, queues.scheduler)
        self._queues = queues
        self.scheduled: list[tuple[int, SentMessage, int]] = []
        """Each with its queue and its number."""
        self.habits({self.send: 10, self.schedule: 2, self.cancel: 2, self.send_through: 3})
        self.actions[self.send] += 4

    def any_queue(self) -> int:
        queues = list(self._queues.models)
        # Messages of sessions are divided among many receivers.
        return self.chance.choice([*queues, *filter(self._queues.requires_session, queues)])

    def write(self, queue: int, counts: Sequence[int], due: int = 0, ttl: int = NO_TTL) -> Written:
        in_session = self._queues.requires_session(queue)
        count = self.chance.choice(counts)
        written = [self._queues.messages.write(queue, in_session, due, ttl) for _ in range(count)]
        return [sent for sent, _ in written], [message for _, message in written]

    def send(self) -> None:
        """On a link, without waiting for the answer to the last transfer."""
        self.send_to(self.any_queue(), self.chance.choice([1, 1, 1, 3]))

    def send_to(self, queue: int, transfers: int) -> None:
        sender = self.chance.randrange(SENDERS)
        for _ in range(transfers):
            if not self._queues.messages.enough:
                self._transfer(queue, sender)

    def _transfer(self, queue: int, sender: int) -> None:
        queues = self._queues
        ttl = self.chance.choice([NO_TTL, NO_TTL, NO_TTL, NO_TTL, 300, 4_000])
        sent, messages = self.write(queue, [1, 1, 1, 2, 5], ttl=ttl)
        for each in sent:
            each.sender = sender

        def settle(_: object, outcome: object) -> None:
            if isinstance(outcome, ServiceBusError):
                queues.refuse(sent, outcome)
            else:
                queues.acknowledge(queues.models[queue], sent)

        link: Any = SimpleNamespace(settle=settle)
        delivery: Any = SimpleNamespace(payload=b"".join(each.body for each in sent))
        refusals: Any = SimpleNamespace(rejected=lambda error, _: error)
        client: Any = SimpleNamespace(answered=lambda: None)
        fragment = self.world.fragments[queue]
        self.world.runtime_of(fragment).submit(
            Send(fragment, messages, link, delivery, refusals, client)
        )

    def schedule(self) -> None:
        """Over the management node, which answers with numbers."""
        queues, queue = self._queues, self.any_queue()
        if queues.messages.enough:
            return
        due = self.world.now + self.chance.choice([0, 50, 1_000, 9_000])
        ttl = self.chance.choice([NO_TTL, NO_TTL, 500])
        sent, messages = self.write(queue, [1, 1, 2], due, ttl)

        def done(numbers: list[int]) -> None:
            queues.acknowledge(queues.models[queue], sent)
            self.scheduled += [
                (queue, each, number) for each, number in zip(sent, numbers, strict=True)
            ]

        queues.ask(
            queue,
            Asked("schedule"),
            lambda engine, now, pages: engine.send(messages, now, pages),
            done,
            lambda error: queues.refuse(sent, error),
        )

    def cancel(self) -> None:
        if not self.scheduled:
            return
        recent = self.scheduled[-4:]
        queue, _, _ = self.chance.choice(recent)
        known = [each for each in recent if each[0] == queue]
        chosen = self.chance.sample(known, min(len(known), self.chance.randint(1, 2)))
        numbers = tuple(number for _, _, number in chosen)
        model, names = self._queues.models[queue], [sent.name for _, sent, _ in chosen]
        self._queues.ask(
            queue,
            Asked("cancel", numbers=numbers),
            lambda engine, _, pages: browse.cancel_scheduled(engine.own, numbers, pages),
            lambda _: self._queues.confirm(model, "cancel", names),
        )

    def send_through(self) -> None:
        """To one queue through another, outside of any transaction."""
        queues = self._queues
        if len(queues.models) < 2 or queues.messages.too_many:
            return
        via, to = self.chance.sample(list(queues.models), 2)
        sent, messages = self.write(to, [1, 1, 2])
        queues.ask(
            via,
            Asked("send_through"),
            lambda engine, now, _: send_via.send_through(engine, to, messages, now),
            lambda _: queues.acknowledge(queues.models[via], sent),
            lambda error: queues.refuse(sent, error),
        )


class Receivers(Part):
    """They come, wait with credit and go, and settle what they receive."""

    def __init__(self, queues: Queues) -> None:
        super().__init__(queues.world, queues.scheduler)
        self._queues = queues
        self._deferred: list[tuple[int, str | None, int]] = []
        self._verbs = [*self.chance.choices(VERBS, k=5), "complete", "complete"]
        self.habits(
            {
                self.receive: 10,
                self.hang_up: 8,
                self.settle: 20,
                self.settle_late: 1,
                self.renew: 10,
                self.fetch_deferred: 3,
            }
        )
        self.actions[self.receive] += 5

    def receive(self) -> None:
        """Come, grant credit or go."""
        world, chance = self.world, self.chance
        receivers = self._own
        if len(receivers) > 1 + 2 * len(self._queues.models) and chance.random() < 0.9:
            receiver = chance.choice(receivers)
            if chance.random() < 0.2:
                world.detach(receiver)
            else:
                receiver.draining = chance.random() < 0.2
                receiver.grant(chance.choice([1, 1, 5]))
            return
        queue = chance.choice(list(self._queues.models))
        subqueue = MAIN
        if self._queues.requires_session(queue) or chance.random() < 0.25:
            others = [DEAD_LETTER] if len(self._queues.models) == 1 else [TRANSFER_DEAD_LETTER]
            subqueue = chance.choice([DEAD_LETTER, DEAD_LETTER, *others])
        world.attach(queue, subqueue, chance.random() < 0.25, chance.choice([1, 2, 5, 10]))

    @property
    def _own(self) -> list[Any]:
        models = self._queues.models
        return [each for each in self.world.receivers if each.fragment.id in models]

    def hang_up(self) -> None:
        """Go while something is on its way."""
        expecting = [receiver for receiver in self._own if receiver.reserved]
        if expecting:
            self.world.detach(self.chance.choice(expecting))

    def desert(self, queue: int) -> None:
        """All receivers of a queue go."""
        for receiver in [each for each in self.world.receivers if each.fragment.id == queue]:
            self.world.detach(receiver)

    # -- settling --------------------------------------------------------------------------------

    def settle(self) -> None:
        deliveries, chance = self._queues.deliveries, self.chance
        if not deliveries:
            return
        delivery = deliveries.pop(-chance.randint(1, min(4, len(deliveries))))
        verb = chance.choice(self._verbs)
        if verb == "forget" or chance.random() < 0.1:
            self._queues.old_deliveries.append(delivery)
        if verb != "forget":
            self.settle_as(delivery, verb)
        elif delivery.session_id is None and chance.random() < 0.5:
            self.settle_as(delivery, "renew")

    def settle_late(self) -> None:
        """With a token that may have run out, or has been used, or is of an earlier engine."""
        if self._queues.old_deliveries:
            verb = self.chance.choice(["complete", "abandon", "defer", "release", "dead_letter"])
            self.settle_as(self.chance.choice(self._queues.old_deliveries), verb)

    def renew(self) -> None:
        """One lock, or all of them, as an automatic renewer does."""
        plain = [each for each in self._queues.deliveries if each.session_id is None]
        if plain:
            one = self.chance.choice(plain[-5:])
            for delivery in self.chance.choice([[one], plain]):
                self.settle_as(delivery, "renew")

    def settle_as(self, delivery: Delivery, verb: str) -> None:
        queues, model = self._queues, self._queues.models[delivery.queue]
        token, extra = delivery.token, self._extra(verb)

        def call(engine: Engine, now: int, _: Pages) -> None:
            result = getattr(engine.at(delivery.subqueue), verb)(token, now, *extra)
            if verb == "release":
                model.unlock(token)
            elif verb == "renew":
                model.renewed(token, result)

        def done(_: object) -> None:
            queues.confirm(model, verb, [delivery.name])
            if verb == "defer" and delivery.subqueue == MAIN:
                self._deferred.append((delivery.queue, delivery.session_id, delivery.number))

        queues.ask(delivery.queue, Asked(verb, {token: verb}), call, done)

    def _extra(self, verb: str) -> tuple[Any, ...]:
        if verb in ("abandon", "defer") and self.chance.random() < 0.3:
            section = b"p%d" % self.chance.randrange(100)
            return (NewProperties(section, len(section)),)
        if verb == "dead_letter":
            return self.chance.choice([None, "broken"]), "because"
        return ()

    def fetch_deferred(self) -> None:
        if self._deferred:
            queue, session_id, _ = self.chance.choice(self._deferred)
            known = [number for *owner, number in self._deferred if owner == [queue, session_id]]
            numbers = self.chance.sample(known, min(len(known), self.chance.choice([1, 1, 2])))
            deletes = self.chance.random() < 0.3
            self.receive_deferred(queue, MAIN, session_id, numbers, deletes)

    def receive_deferred(
        self,
        queue: int,
        subqueue: int,
        session_id: str | None,
        numbers: Sequence[int],
        deletes: bool,
    ) -> None:
        queues, model = self._queues, self._queues.models[queue]

        def call(engine: Engine, now: int, pages: Pages) -> Any:
            found = browse.receive_deferred(
                engine.at(subqueue), subqueue, numbers, deletes, 99, now, pages, session_id
            )
            if isinstance(found, Need) or deletes:
                return found
            if session_id is not None:
                model.check_holder(session_id, found[0][0].holder, now)
            for message, raw in found:
                model.lock(message, queues.shown(message, raw))
            return [(message, raw, message.token) for message, raw in found]

        def done(found: Any) -> None:
            for message, raw, *tokens in found:
                name = queues.shown(message, raw)
                if deletes:
                    queues.confirm(model, "complete", [name])
                for token in tokens:
                    queues.deliveries.append(
                        Delivery(queue, subqueue, token, name, message.number, session_id)
                    )

        asked = Asked("deferred", numbers=tuple(numbers))
        queues.ask(queue, asked, call, done, exclusive=True)


class Browsers(Part):
    """They look, clean up, and describe queues anew."""

    def __init__(self, queues: Queues) -> None:
        super().__init__(queues.world, queues.scheduler)
        self._queues = queues
        self.habits({self.peek: 3, self.purge: 0.7, self.update: 0.7})

    def _somewhere(self) -> tuple[int, int, str | None]:
        """A queue, one of its subqueues and, where it has sessions, perhaps a session."""
        queue = self.chance.choice(list(self._queues.models))
        subqueue = self.chance.choice([MAIN, MAIN, DEAD_LETTER])
        session_id = None
        if subqueue == MAIN and self._queues.requires_session(queue):
            session_id = self.chance.choice([None, *SESSIONS])
        return queue, subqueue, session_id

    def peek(self) -> None:
        chance, queues = self.chance, self._queues
        queue, subqueue, session_id = self._somewhere()
        entries = queues.models[queue].live.entries
        start = chance.choice([0, *(place[2] for place in entries)])
        start = max(0, start + chance.randint(-5, 5))
        count = chance.randint(1, 9)

        def call(engine: Engine, _: int, pages: Pages) -> Any:
            found = browse.peek(engine.own, subqueue, start, count, 120, pages, session_id)
            if not isinstance(found, Need):
                numbers = [message.number for message, _ in found]
                self._check_peek(queue, subqueue, session_id, start, numbers)
            return found

        def done(found: browse.Found) -> None:
            for message, raw in found:
                queues.shown(message, raw)

        queues.ask(queue, Asked("peek"), call, done, exclusive=True)

    def _check_peek(
        self, queue: int, subqueue: int, session_id: str | None, start: int, numbers: list[int]
    ) -> None:
        model = self._queues.models[queue]
        model.absorb(self.world.fragments[queue])
        there = sorted(
            entry.number
            for entry in model.live.entries.values()
            if entry.subqueue == subqueue
            and entry.lane != STATE
            and entry.number >= start
            and session_id in (None, entry.session_id)
        )
        if numbers != there[: len(numbers)] or (there and not numbers):
            raise Violation(PEEK, None, f"{numbers} of {session_id!r}, not {there}")

    def purge(self) -> None:
        queue, subqueue, session_id = self._somewhere()
        count = self.chance.randint(1, 6)
        before = self.world.now - self.chance.choice([0, 0, 1_000])
        self._queues.ask(
            queue,
            Asked("purge"),
            lambda engine, _, pages: browse.delete_batch(
                engine.own, subqueue, count, before, pages, session_id
            ),
        )

    def update(self) -> None:
        """Other limits; at times the queue takes no messages, or gives none."""
        queue = self.chance.choice(list(self._queues.models))
        before = self.world.policy_of(queue)
        policy = self._queues.random_policy[queue]()
        if before.duplicate_window_ms is None or self.chance.random() < 0.7:
            policy = policy._replace(duplicate_window_ms=before.duplicate_window_ms)
        elif policy.duplicate_window_ms is None:
            policy = policy._replace(duplicate_window_ms=2 * before.duplicate_window_ms)
        sends, receives = self.chance.random() < 0.85, self.chance.random() < 0.9
        self._queues.update(queue, policy._replace(sends=sends, receives=receives))


def random_policy(queues: Queues, requires_session: bool = False) -> Policy:
    chance = queues.chance
    return Policy(
        lock_ms=chance.choice([200, 2_000, 20_000, 60_000]),
        max_delivery_count=chance.choice([1, 2, 4, 10]),
        default_ttl_ms=chance.choice([None, None, None, None, 3_000]),
        dead_letter_on_expiry=chance.random() < 0.7,
        size_bytes_max=chance.choice([400, 4_000, LARGE]),
        requires_session=requires_session,
    )
