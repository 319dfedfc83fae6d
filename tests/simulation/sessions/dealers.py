"""Those who work in transactions: they send, send through and settle, and commit it or do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from postbus.broker.engine import Engine
from postbus.broker.index_pages import Need, Pages
from postbus.broker.message import Message
from postbus.broker.transaction import Settlement, Transaction, Verdict
from postbus.errors import MessageLockLost, OutcomeUnknown, ServiceBusError, SessionLockLost
from tests.simulation.sessions.deals import Deal, connect
from tests.simulation.sessions.letters import FAR, ONCE, WORK, Letter
from tests.simulation.sessions.people import People
from tests.simulation.sessions.world import World
from tests.support.operations import EnlistBy

OPEN_AT_ONCE = 3
_TARGETS = {WORK: [ONCE, FAR], ONCE: [WORK, FAR], FAR: [ONCE]}


class Dealers:
    """The clients of one connection."""

    def __init__(self, world: World, people: People) -> None:
        self._world = world
        self._people = people
        self._chance = chance = world.chance
        self._connection = connect(world)
        self.open: list[Deal] = []
        self.all: list[Deal] = []
        usual: dict[Callable[[], None], float] = {
            self.begin: 3,
            self.send: 3,
            self.send_through: 3,
            self.schedule: 0.7,
            self.cancel: 0.5,
            self.settle: 4,
            self.move: 5,
            self.commit: 3,
            self.roll_back: 0.7,
            self.break_off: 0.2,
        }
        busy = chance.choice([0, 1, 1, 3])
        self.weights = {
            act: busy * often * chance.choice([0, 1, 1, 3]) for act, often in usual.items()
        }

    def restarted(self) -> None:
        """The process is another: whatever was open nobody can discharge."""
        self._connection = connect(self._world)
        self.open.clear()

    # -- beginning and end ---------------------------------------------------------------------

    def begin(self) -> None:
        self._begin(self._chance.choice([WORK, WORK, ONCE, ONCE, FAR]))

    def _begin(self, fragment_id: int) -> None:
        if len(self.open) < OPEN_AT_ONCE:
            number = self._connection.declare(self)
            deal = Deal(
                f"t{len(self.all)}", fragment_id, self._world, self._connection.find(number)
            )
            self.open.append(deal)
            self.all.append(deal)

    def _some(self) -> Deal | None:
        if not self.open and self._chance.random() < 0.5:
            self.begin()
        return self._chance.choice(self.open) if self.open else None

    def _on(self, fragment_id: int) -> Deal | None:
        if all(deal.fragment != fragment_id for deal in self.open):
            self._begin(fragment_id)
        found = [deal for deal in self.open if deal.fragment == fragment_id]
        return self._chance.choice(found) if found else None

    def commit(self) -> None:
        self._discharge(fail=False)

    def roll_back(self) -> None:
        self._discharge(fail=True)

    def _discharge(self, fail: bool) -> None:
        deal = self._some()
        if deal is None:
            return
        self.open.remove(deal)

        def done() -> None:
            if fail:
                back()
            else:
                self._world.note(deal.name, "client was told: committed")
                deal.committed()

        def failed(error: ServiceBusError) -> None:
            if isinstance(error, OutcomeUnknown):
                self._world.note(deal.name, f"client was told: unknown, {error}")
                return
            self._world.note(deal.name, f"client was told: rolled back, {error}")
            back()

        def back() -> None:
            deal.rolled_back()
            # What it would have settled is still locked, and can be settled by others.
            self._people.held += deal.holding

        try:
            deal.open.discharge(fail, done, failed)
        except ServiceBusError:
            back()  # it took too long

    def break_off(self) -> None:
        """The connection is lost."""
        self._connection.let_go(self)
        for deal in self.open:
            deal.rolled_back()
            self._people.held += deal.holding
        self.open.clear()

    # -- operations ----------------------------------------------------------------------------

    def _ask(self, deal: Deal, operation: Any) -> None:
        world = self._world
        fragment = world.fragments[deal.fragment]

        def decide(work: Transaction, engine: Engine, now: int, pages: Pages) -> Any:
            world.absorb(fragment)
            return operation(work, engine, now, pages)

        try:
            deal.open.ask(fragment, EnlistBy(decide), lambda _: None, lambda _: None)
        except ServiceBusError as error:
            world.note(deal.name, f"refused: {error}")

    def _write(self, deal: Deal, to: int, due: int = 0) -> tuple[list[Letter], list[Message]]:
        count = self._chance.choice([1, 1, 2])
        written = [self._world.letters.write(to, due) for _ in range(count)]
        for letter, _ in written:
            letter.deal = deal
        return [letter for letter, _ in written], [message for _, message in written]

    def send(self) -> None:
        self._send(0)

    def schedule(self) -> None:
        self._send(self._world.now + self._chance.choice([50, 3_000]))

    def _send(self, due: int) -> None:
        deal = self._some()
        if deal is None or self._world.letters.too_many:
            return
        letters, messages = self._write(deal, deal.fragment, due)

        def operation(work: Transaction, engine: Engine, now: int, _: Pages) -> None:
            if due:
                work.schedule(engine, messages)
            else:
                work.send(engine, messages)
            deal.sent += letters

        self._ask(deal, operation)

    def send_through(self) -> None:
        deal = self._some()
        if deal is not None:
            self._post(deal)

    def _post(self, deal: Deal) -> None:
        if self._world.letters.too_many:
            return
        to = self._chance.choice(_TARGETS[deal.fragment])
        letters, messages = self._write(deal, to)

        def operation(work: Transaction, engine: Engine, now: int, _: Pages) -> None:
            work.post(engine, to, messages)
            deal.posted += letters

        self._ask(deal, operation)

    def cancel(self) -> None:
        deal = self._some()
        if deal is None:
            return
        known = [each for each in self._people.scheduled if each[0] == deal.fragment]
        if not known:
            return
        _, letter, number = self._chance.choice(known)

        def operation(work: Transaction, engine: Engine, now: int, pages: Pages) -> Need | None:
            need = work.cancel(engine, [number], pages)
            if need is None:
                deal.cancelled.append(letter.name)
            return need

        self._ask(deal, operation)

    def settle(self) -> None:
        verdicts = [*[Verdict.COMPLETE] * 4, Verdict.ABANDON, Verdict.DEFER, Verdict.RELEASE]
        self._settle(self._chance.choice([*verdicts, Verdict.DEAD_LETTER]))

    def _settle(self, verdict: Verdict) -> Deal | None:
        """Settle something in a transaction of the entity that it is from."""
        people = self._people
        if not people.held:
            return None
        chosen = self._chance.choice(people.held)
        deal = self._on(chosen.fragment)
        if deal is None:
            return None
        people.held.remove(chosen)
        live = self._world.lives[deal.fragment]

        def operation(work: Transaction, engine: Engine, now: int, _: Pages) -> None:
            settlement = Settlement(chosen.subqueue, chosen.token, verdict)
            try:
                work.settle(engine, [settlement], now)
            except (MessageLockLost, SessionLockLost):
                live.check_lost(chosen.token, now)
                raise
            if verdict is Verdict.RELEASE:
                deal.released.append(chosen.token)
            else:
                deal.settled.append((chosen.name, verdict))
            deal.holding.append(chosen)

        self._ask(deal, operation)
        return deal

    def move(self) -> None:
        """What most transactions do: take a message, and send what follows from it."""
        deal = self._settle(Verdict.COMPLETE)
        if deal is not None:
            self._post(deal)
