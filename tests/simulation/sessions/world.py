"""A queue of sessions, one that finds duplicates and one that others send to, each with a fragment
of its own; and whoever receives from them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from postbus.broker.engine import Engine
from postbus.broker.message import MAIN, Message
from postbus.broker.pages import Need, Pages
from postbus.broker.policy import Policy
from postbus.errors import MessageLockLost, ServiceBusError, SessionLockLost
from postbus.runtime.fragment import Host
from postbus.runtime.receivers import Parcel
from postbus.runtime.requests import GiveBack
from postbus.store.ports import MessageStore
from tests.simulation.sessions.book import Book, Window
from tests.simulation.sessions.deals import Deal
from tests.simulation.sessions.guests import WatchedLine
from tests.simulation.sessions.letters import NAMES, ONCE, WORK, Letters
from tests.simulation.sessions.live import Live
from tests.simulation.stage import Receiving, Stage, StageRuntime

SMALL = 400
"""Room for some ten messages."""
WINDOWS_MS = [400, 3_000, 30_000]


class WatchedRuntime(StageRuntime):
    """The real one; it says when a batch is closed."""

    stage: World

    def _written(self, host: Host, now: int) -> Any:
        self.stage.sealing(host)
        written = super()._written(host, now)
        self.stage.lives[host.fragment].sealed()
        return written


class WatchedGiveBack(GiveBack):
    """Nothing is written for it, so the model must be told."""

    def __init__(self, world: World, host: Host, parcel: Parcel) -> None:
        super().__init__(host, parcel)
        self._world = world

    def decide(self, engine: Engine, now: int) -> Need | None:
        live = self._world.absorb(self.host)
        try:
            need = super().decide(engine, now)
        except (MessageLockLost, SessionLockLost):
            assert self._parcel.token is not None
            live.check_lost(self._parcel.token, now)
            raise
        if self._parcel.token is not None:
            live.unlock(self._parcel.token)
        self._world.absorb(self.host)
        return need


class World(Stage):
    """The stage of sessions, duplicates and transactions."""

    names = NAMES
    runtime_class = WatchedRuntime
    runtime: WatchedRuntime

    def __init__(self, chance: random.Random, on_disk: bool) -> None:
        self.letters = Letters(chance, chance.choice([3, 12, 60]))
        policies = {fragment: random_policy(chance, fragment) for fragment in NAMES}
        if chance.random() < 0.3:
            window_ms = chance.choice(WINDOWS_MS)
            policies[WORK] = policies[WORK]._replace(duplicate_window_ms=window_ms)
        self.lives = {fragment: Live(fragment == WORK) for fragment in NAMES}
        self.windows = {
            fragment: Window(policy.duplicate_window_ms)
            for fragment, policy in policies.items()
            if policy.duplicate_window_ms is not None
        }
        self.decided: dict[int, list[Deal]] = {}
        """Transactions that were committed in the batch that is not closed yet."""
        self.on_engine_lost: Callable[[int], None] = lambda _: None
        self.on_restart: Callable[[], None] = lambda: None
        super().__init__(chance, on_disk, policies, set())

    def keep_records(self, store: MessageStore) -> Book:
        self.book = Book(store, self.history, self.letters, self.windows)
        return self.book

    def set_up(self) -> None:
        work = self.hosts[WORK]
        work.session_line(MAIN)  # which has losses of sessions told to it
        work.session_lines[MAIN] = WatchedLine(self, work)
        for fragment in self.hosts:
            self._forget(fragment)
        self.on_restart()

    def engine_lost(self, host: Host, why: str) -> None:
        self._forget(host.fragment)
        super().engine_lost(host, why)

    def _forget(self, fragment: int) -> None:
        self.lives[fragment].reset(self.book.shelf(fragment))
        for place in [each for each in self.book.deals if each[0] == fragment]:
            del self.book.deals[place]
        self.decided.pop(fragment, None)
        self.on_engine_lost(fragment)

    # -- what is decided -----------------------------------------------------------------------

    def absorb(self, host: Host, but: int = 0) -> Live:
        live = self.lives[host.fragment]
        if host.engine is not None:
            live.absorb(host.engine, self.now, but)
        return live

    def sealing(self, host: Host) -> None:
        self.absorb(host)
        deals = self.decided.pop(host.fragment, [])
        if host.engine is not None and deals:
            place = host.fragment, host.engine.ledger.head
            self.book.deals.setdefault(place, []).extend(deals)

    def watch(
        self,
        fragment: int,
        call: Callable[[Engine, int, Pages], Any],
        done: Callable[[Any], None] = lambda _: None,
        failed: Callable[[ServiceBusError], None] | None = None,
    ) -> None:
        """Ask, and hold what comes of it against the model."""

        def decide(engine: Engine, now: int, pages: Pages) -> Any:
            self.absorb(self.hosts[fragment])
            try:
                return call(engine, now, pages)
            finally:
                self.absorb(self.hosts[fragment])

        self.ask(fragment, decide, done, failed)

    # -- who receives --------------------------------------------------------------------------

    def taken(self, taker: Any, message: Message) -> None:
        """As it is decided, by a receiver or the holder of a session."""
        live = self.absorb(taker.host, but=int(taker.deletes))
        session_id = getattr(taker, "session_id", None)
        name = live.check_take(message, session_id, taker.holder, self.now)
        if taker.deletes:
            self.absorb(taker.host)
        else:
            live.lock(message, name)

    def give_back(self, taker: Receiving, parcel: Parcel) -> None:
        self.runtime.submit(WatchedGiveBack(self, taker.host, parcel))

    # -- administrators ------------------------------------------------------------------------

    def set_policy(self, fragment: int, policy: Policy) -> None:
        """Another description of an entity."""
        self.policies[fragment] = self.hosts[fragment].policy = policy
        window, window_ms = self.windows.get(fragment), policy.duplicate_window_ms
        which = 0
        if window is not None and window_ms is not None:
            which = window.ask(window_ms)

        def call(engine: Engine, now: int, _: Pages) -> None:
            engine.own.update(policy, now)
            self.lives[fragment].update()
            if window is not None:
                window.set(which, now)

        self.note(None, f"{NAMES[fragment]} is to be {policy}")
        self.watch(fragment, call)

    def forget_ids(self) -> None:
        """As `server.upkeep` does it: segments past the window are dropped, a slice at a time."""
        host = self.hosts[self.chance.choice(list(self.windows))]
        history = None if host.engine is None else host.engine.ledger.history
        if history is not None:
            below, limit = history.expire(self.now), self.chance.choice([1, 2, 100])
            store, fragment = self.book, host.fragment
            self.thread.submit(
                lambda: store.drop_seen(fragment, below, limit), lambda _: None, lambda _: None
            )


def random_policy(chance: random.Random, fragment: int) -> Policy:
    return Policy(
        lock_ms=chance.choice([300, 10_000, 60_000]),
        max_delivery_count=chance.choice([1, 4, 10]),
        default_ttl_ms=chance.choice([None, None, None, None, 2_000]),
        dead_letter_on_expiry=True,
        size_bytes_max=chance.choice([SMALL, 1 << 20, 1 << 20]),
        requires_session=fragment == WORK,
        duplicate_window_ms=chance.choice(WINDOWS_MS) if fragment == ONCE else None,
    )
