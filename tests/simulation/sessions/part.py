"""A queue that requires sessions, and the clients that use them: they come, hold a session and go,
set its state, and list the sessions there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from postbus.broker import session_list, session_operations
from postbus.broker.engine import Engine
from postbus.broker.index_pages import Need, Pages
from postbus.broker.message import ACTIVE, DEFERRED, STATE
from postbus.broker.subqueue_numbers import MAIN
from postbus.errors import SessionLockLost
from tests.simulation import promises
from tests.simulation.history import Violation
from tests.simulation.parts import Part
from tests.simulation.queues.clients import random_policy
from tests.simulation.queues.messages import SESSIONS
from tests.simulation.queues.model import Asked, Entry, QueueModel
from tests.simulation.queues.part import QueueClients
from tests.simulation.sessions.checkers import StateIsKept, WaitersForSessionsAreServed
from tests.simulation.sessions.receivers import SessionReceiver, WatchedSessionWaiters

WORK = 21
RECEIVERS_MAX = 4


class Sessions(Part):
    """Session receivers, and what they do to the session that they hold."""

    def __init__(self, clients: QueueClients) -> None:
        super().__init__(clients.world, clients.scheduler)
        self._clients = clients
        self.queues = queues = clients.queues
        self.model = queues.add(WORK, "work", lambda: random_policy(queues, True))
        self.receivers: list[SessionReceiver] = []
        self._came = 0
        self._states = 0
        self.states_asked: dict[str, list[tuple[str | None, bool]]] = {}
        """The states of each session, in the order in which they were decided, and whether each
        was confirmed."""
        queues.checkers += [StateIsKept(self), WaitersForSessionsAreServed(self)]
        queues.on_engine_lost.append(self._engine_lost)
        self.habits(
            {
                self.come: 8,
                self.grant: 6,
                self.go: 2,
                self.hang_up: 8,
                self.renew: 2,
                self.set_state: 6,
                self.get_state: 2,
                self.list_all: 0.7,
            }
        )
        self.actions[self.come] += 3
        # A session is used in many small steps, each after the answer to the one before.
        self.steps = {self.scheduler.rest: self.chance.choice([0.3, 2, 5])}

    def started(self) -> None:
        fragment = self.world.fragments[WORK]
        fragment.waiters_of(MAIN)  # which has losses of sessions told to it
        fragment.session_waiters[MAIN] = WatchedSessionWaiters(self.model, fragment)

    def _engine_lost(self, model: QueueModel) -> None:
        if model is self.model:
            for receiver in self.receivers:
                receiver.engine_lost()
            self.receivers.clear()

    # -- coming and going ------------------------------------------------------------------------

    def come(self) -> None:
        self.receivers = [receiver for receiver in self.receivers if receiver.attached]
        if len(self.receivers) < RECEIVERS_MAX:
            chance = self.chance
            wanted = chance.choice(SESSIONS) if chance.random() < 0.4 else None
            self.attach(wanted, chance.random() < 0.25, chance.choice([0, 2, 2, 10]))

    def attach(self, wanted: str | None, deletes: bool, credit: int) -> SessionReceiver:
        self._came += 1
        receiver = SessionReceiver(self.model, self._came, deletes, credit)
        self.receivers.append(receiver)
        receiver.open(wanted)
        return receiver

    def _one(self, fits: Callable[[SessionReceiver], object]) -> SessionReceiver | None:
        found = [each for each in self.receivers if each.attached and fits(each)]
        return self.chance.choice(found) if found else None

    def go(self) -> None:
        receiver = self._one(lambda _: True)
        if receiver is not None:
            receiver.close()

    def hang_up(self) -> None:
        """Go while something is on its way."""
        receiver = self._one(lambda each: each.reserved)
        if receiver is not None:
            receiver.close()

    def grant(self) -> None:
        receiver = self._one(lambda _: True)
        if receiver is not None:
            receiver.grant(self.chance.choice([1, 5]))

    # -- what is done to a session ---------------------------------------------------------------

    def _held(self) -> tuple[str, int] | None:
        """A session, and who holds it."""
        receiver = self._one(lambda each: each.session is not None)
        if receiver is None or receiver.session is None:
            return None
        return receiver.session.id, receiver.holder

    def _ask(
        self,
        verb: str,
        session_id: str,
        call: Callable[[Engine, int, Pages], Any],
        done: Callable[[Any], None] = lambda _: None,
    ) -> None:
        """Ask for something that only the holder of the session may do."""

        def checked(engine: Engine, now: int, pages: Pages) -> Any:
            free = self.model.is_free(session_id, now)
            try:
                result = call(engine, now, pages)
            except SessionLockLost:
                if not free:
                    raise _not_lost(session_id) from None
                raise
            if free:
                text = f"{verb} of {session_id!r}, which nobody holds"
                raise Violation(promises.SESSION_HOLDER, None, text)
            return result

        self.queues.ask(WORK, Asked(verb), checked, done)

    def renew(self) -> None:
        held = self._held()
        if held is None:
            return
        session_id, holder = held
        named = self.chance.choice([None, holder])

        def call(engine: Engine, now: int, _: Pages) -> None:
            holding = self.model.holders.get(session_id)
            theirs = holding is None or named not in (None, holding.holder)
            try:
                until = session_operations.renew(engine.own, session_id, named, now)
            except SessionLockLost:
                if not theirs and not self.model.is_free(session_id, now):
                    raise _not_lost(session_id) from None
                raise
            if theirs or holding is None:
                text = f"{named} has renewed {session_id!r} of {holding}"
                raise Violation(promises.SESSION_HOLDER, None, text)
            holding.until = until

        self.queues.ask(WORK, Asked("renew_session"), call)

    def set_state(self) -> None:
        held = self._held()
        if held is not None:
            self.write_state(held[0], clears=self.chance.random() < 0.2)

    def write_state(self, session_id: str, clears: bool) -> None:
        self._states += 1
        name = None if clears else f"s{self._states}"
        data = None if name is None else f"{name}|{'-' * self.chance.randrange(30)}".encode()
        states = self.states_asked.setdefault(session_id, [])
        index = -1

        def call(engine: Engine, now: int, pages: Pages) -> Need | None:
            nonlocal index
            need = session_operations.set_state(engine.own, session_id, data, now, pages)
            if need is None:
                index = len(states)
                states.append((name, False))
            return need

        def done(_: object) -> None:
            states[index] = name, True

        self._ask("set_state", session_id, call, done)

    def get_state(self) -> None:
        held = self._held()
        if held is None:
            return
        session_id, _ = held

        def call(engine: Engine, now: int, pages: Pages) -> Any:
            state = session_operations.get_state(engine.own, session_id, now, pages)
            if not isinstance(state, Need):
                self.model.absorb(self.world.fragments[WORK])
                shown = None if state is None else state.partition(b"|")[0].decode()
                there = [each.name for each in self.states() if each.session_id == session_id]
                if ([] if shown is None else [shown]) != there:
                    text = f"{session_id!r} shows {shown}, not {there}"
                    raise Violation(promises.STATE, None, text)
            return state

        self._ask("get_state", session_id, call)

    def states(self) -> list[Entry]:
        return [each for each in self.model.live.entries.values() if each.lane == STATE]

    def list_all(self) -> None:
        """Sessions with messages or a state, by id; or those whose state was set since then."""
        since = self.chance.choice([None, None, self.world.now - 1, self.world.now - 5_000])
        listing = session_list.Listing(since, 0, 100)

        def call(engine: Engine, now: int, pages: Pages) -> Any:
            found = listing.read(engine.own, pages)
            if not isinstance(found, Need) and found != self._listed(since):
                text = f"{found} since {since}, not {self._listed(since)}"
                raise Violation(promises.LISTED, None, text)
            return found

        self.queues.ask(WORK, Asked("list_sessions"), call)

    def _listed(self, since: int | None) -> list[str]:
        if since is not None:
            changed = [entry for entry in self.states() if entry.enqueued_at > since]
            return [each.session_id or "" for each in sorted(changed, key=lambda each: each.place)]
        ids = {
            entry.session_id or ""
            for entry in self.model.live.entries.values()
            if entry.subqueue == MAIN and entry.lane in (ACTIVE, STATE)
        }
        return sorted(ids, key=str.encode)

    # -- the end ---------------------------------------------------------------------------------

    def open_up(self) -> None:
        for receiver in self.receivers:
            receiver.close()

    def offer(self) -> None:
        """Sessions that are taken and given up again have their turns, one and all."""
        now = self.world.now
        ready = {entry.session_id or "" for entry in self.model.ready(MAIN, None, now)}
        free = sorted(each for each in ready if self.model.is_free(each, now))
        offered: set[str] = set()
        for _ in range(6 * len(free) + 10):
            receiver = self.attach(None, False, 0)
            self.scheduler.rest()
            if receiver.session is not None:
                offered.add(receiver.session.id)
            receiver.close()
            self.scheduler.rest()
        if set(free) - offered:
            text = f"{set(free) - offered} of {free} never"
            raise Violation(promises.OFFERED, None, text)

    def take_out(self) -> None:
        self.scheduler.rest()
        entries = [each for each in self.model.durable.entries.values() if each.subqueue == MAIN]
        for entry in [each for each in entries if each.lane in (DEFERRED, STATE)]:
            session_id = entry.session_id
            assert session_id is not None
            receiver = self.attach(session_id, True, 0)
            self.scheduler.rest()
            if entry.lane == STATE:
                self.write_state(session_id, clears=True)
            else:
                self._clients.receivers.receive_deferred(
                    WORK, MAIN, session_id, [entry.number], True
                )
            self.scheduler.rest()
            receiver.close()
        if any(entry.lane == ACTIVE for entry in entries):
            receiver = self.attach(None, True, 1_000)
            self.scheduler.rest()
            receiver.close()


def _not_lost(session_id: str) -> Violation:
    return Violation(promises.SESSION_HOLDER, None, f"{session_id!r} is held, not lost")
