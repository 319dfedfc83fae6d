"""Those who use sessions: they come, hold one and go, write down its state, and look around."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from postbus.broker import browse, session_list, session_operations
from postbus.broker.engine import Engine
from postbus.broker.index_pages import Need, Pages
from postbus.broker.message import ACTIVE
from postbus.broker.message import STATE as STATE_LANE
from postbus.broker.subqueue_numbers import MAIN
from postbus.errors import ServiceBusError, SessionLockLost
from tests.simulation.history import Violation
from tests.simulation.sessions.guests import Guest
from tests.simulation.sessions.letters import SESSIONS, WORK
from tests.simulation.sessions.live import Live
from tests.simulation.sessions.promises import HOLDER, LISTED, STATE
from tests.simulation.sessions.world import World

GUESTS_MAX = 4


class Company:
    """Does one random thing after the other."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = chance = world.chance
        self.guests: list[Guest] = []
        self._came = 0
        self._states = 0
        self.set: dict[str, list[tuple[str | None, bool]]] = {}
        """What each session was to have as its state, one after the other as it was decided, and
        whether that was confirmed."""
        usual: dict[Callable[[], None], float] = {
            self.come: 8,
            self.grant: 6,
            self.go: 2,
            self.hang_up: 8,
            self.renew: 2,
            self.set_state: 4,
            self.get_state: 2,
            self.list_all: 0.7,
            self.peek: 1,
            self.purge: 0.2,
        }
        self.weights = {act: often * chance.choice([0, 1, 1, 4]) for act, often in usual.items()}
        self.weights[self.come] += 3

    @property
    def _live(self) -> Live:
        return self._world.lives[WORK]

    def forget(self, fragment_id: int) -> None:
        """The engine is gone, and every session is free."""
        if fragment_id == WORK:
            for guest in self.guests:
                guest.engine_lost()
            self.guests.clear()

    # -- coming and going ----------------------------------------------------------------------

    def come(self) -> None:
        self.guests = [guest for guest in self.guests if not guest.gone]
        if len(self.guests) < GUESTS_MAX:
            chance = self._chance
            wanted = chance.choice(SESSIONS) if chance.random() < 0.4 else None
            self.invite(wanted, chance.random() < 0.25, chance.choice([0, 2, 2, 10]))

    def invite(self, wanted: str | None, deletes: bool, credit: int) -> Guest:
        self._came += 1
        guest = Guest(self._world, self._came, deletes, credit)
        self.guests.append(guest)
        guest.open(wanted)
        return guest

    def _present(self) -> Guest | None:
        present = [guest for guest in self.guests if not guest.gone]
        return self._chance.choice(present) if present else None

    def go(self) -> None:
        guest = self._present()
        if guest is not None:
            guest.close()

    def hang_up(self) -> None:
        """Go while something is on its way."""
        expecting = [guest for guest in self.guests if guest.reserved and not guest.gone]
        if expecting:
            self._chance.choice(expecting).close()

    def grant(self) -> None:
        guest = self._present()
        if guest is not None:
            guest.credit += self._chance.choice([1, 5])
            guest.wake()

    # -- what is done to a session -------------------------------------------------------------

    def _held(self) -> Guest | None:
        present = [guest for guest in self.guests if guest.session is not None]
        return self._chance.choice(present) if present else None

    def _ask(
        self,
        session_id: str,
        call: Callable[[Engine, int, Pages], Any],
        done: Callable[[Any], None] = lambda _: None,
        failed: Callable[[ServiceBusError], None] | None = None,
    ) -> None:
        """Something that whoever holds the session may do, and nobody else."""

        def checked(engine: Engine, now: int, pages: Pages) -> Any:
            free = self._live.is_free(session_id, now)
            try:
                result = call(engine, now, pages)
            except SessionLockLost:
                if not free:
                    raise Violation(HOLDER, None, f"{session_id!r} is held, not lost") from None
                raise
            if free:
                raise Violation(HOLDER, None, f"done to {session_id!r}, which nobody holds")
            return result

        self._world.watch(WORK, checked, done, failed)

    def renew(self) -> None:
        guest = self._held()
        if guest is None or guest.session is None:
            return
        session_id, holder = guest.session.id, guest.holder
        named = self._chance.choice([None, holder])

        def call(engine: Engine, now: int, _: Pages) -> None:
            holding = self._live.holders.get(session_id)
            theirs = holding is None or named not in (None, holding.holder)
            try:
                until = session_operations.renew(engine.own, session_id, named, now)
            except SessionLockLost:
                if not theirs and not self._live.is_free(session_id, now):
                    raise Violation(HOLDER, None, f"{session_id!r} is held, not lost") from None
                raise
            if theirs or holding is None:
                raise Violation(HOLDER, None, f"{named} has renewed {session_id!r} of {holding}")
            holding.until = until

        self._world.watch(WORK, call)

    def set_state(self) -> None:
        guest = self._held()
        if guest is not None and guest.session is not None:
            clears = self._chance.random() < 0.2
            self.write_state(guest.session.id, clears)

    def write_state(self, session_id: str, clears: bool) -> None:
        self._states += 1
        name = None if clears else f"s{self._states}"
        data = None if name is None else f"{name}|{'-' * self._chance.randrange(30)}".encode()
        tried = self.set.setdefault(session_id, [])
        place = -1

        def call(engine: Engine, now: int, pages: Pages) -> Need | None:
            nonlocal place
            need = session_operations.set_state(engine.own, session_id, data, now, pages)
            if need is None:
                place = len(tried)
                tried.append((name, False))
            return need

        def done(_: object) -> None:
            tried[place] = name, True

        self._ask(session_id, call, done)

    def get_state(self) -> None:
        guest = self._held()
        if guest is None or guest.session is None:
            return
        session_id = guest.session.id

        def call(engine: Engine, now: int, pages: Pages) -> Any:
            state = session_operations.get_state(engine.own, session_id, now, pages)
            if not isinstance(state, Need):
                self._world.absorb(self._world.fragments[WORK])
                shown = None if state is None else state.partition(b"|")[0].decode()
                there = [each.name for each in self._stated() if each.session_id == session_id]
                if [shown] != (there or [None]):
                    raise Violation(STATE, None, f"{session_id!r} shows {shown}, not {there}")
            return state

        self._ask(session_id, call)

    def _stated(self) -> list[Any]:
        entries = self._live.shelf.entries
        return [entry for place, entry in entries.items() if place[1] == STATE_LANE]

    # -- looking around ------------------------------------------------------------------------

    def list_all(self) -> None:
        """Those with messages or a state, by id; or those whose state was set since, as it was."""
        since = self._chance.choice([None, None, self._world.now - 1, self._world.now - 5_000])

        listing = session_list.Listing(since, 0, 100)

        def call(engine: Engine, now: int, pages: Pages) -> Any:
            found = listing.read(engine.own, pages)
            if not isinstance(found, Need) and found != self._listed(since):
                raise Violation(LISTED, None, f"{found} since {since}, not {self._listed(since)}")
            return found

        self._world.watch(WORK, call)

    def _listed(self, since: int | None) -> list[str]:
        if since is not None:
            changed = [entry for entry in self._stated() if entry.enqueued_at > since]
            return [entry.session_id for entry in sorted(changed, key=lambda each: each.place)]
        ids = {
            entry.session_id or ""
            for place, entry in self._live.shelf.entries.items()
            if place[:2] in ((MAIN, ACTIVE), (MAIN, STATE_LANE))
        }
        return sorted(ids, key=str.encode)

    def peek(self) -> None:
        session_id = self._chance.choice([None, *SESSIONS])
        count = self._chance.randint(1, 5)

        def call(engine: Engine, now: int, pages: Pages) -> Any:
            found = browse.peek(engine.own, MAIN, 0, count, 1 << 20, pages, session_id)
            if not isinstance(found, Need):
                there = sorted(
                    place[2]
                    for place, entry in self._live.shelf.entries.items()
                    if place[0] == MAIN
                    and place[1] != STATE_LANE
                    and session_id in (None, entry.session_id)
                )
                shown = [message.number for message, _ in found]
                if shown != there[: len(shown)] or (there and not shown):
                    raise Violation(LISTED, None, f"{shown} of {session_id!r}, not {there}")
            return found

        self._world.watch(WORK, call)

    def purge(self) -> None:
        session_id = self._chance.choice([None, *SESSIONS])
        count, before = self._chance.randint(1, 4), self._world.now
        self._world.watch(
            WORK,
            lambda engine, _, pages: browse.delete_batch(
                engine.own, MAIN, count, before, pages, session_id
            ),
        )
