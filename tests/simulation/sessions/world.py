"""A queue of sessions, one that finds duplicates and one that others send to, each with a fragment
of its own; and whoever receives from them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from postbus.broker.engine import Engine
from postbus.broker.index_pages import Need, Pages
from postbus.broker.message import Message
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import MAIN
from postbus.errors import MessageLockLost, ServiceBusError, SessionLockLost
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.receivers import OutgoingMessage
from postbus.runtime.requests import GiveBack
from postbus.store.ports.store import Store
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

    def _written(self, fragment: LoadedFragment, now: int) -> Any:
        self.stage.sealing(fragment)
        written = super()._written(fragment, now)
        self.stage.lives[fragment.id].sealed()
        return written


class WatchedGiveBack(GiveBack):
    """Nothing is written for it, so the model must be told."""

    def __init__(self, world: World, fragment: LoadedFragment, outgoing: OutgoingMessage) -> None:
        super().__init__(fragment, outgoing)
        self._world = world

    def decide(self, engine: Engine, now: int) -> Need | None:
        live = self._world.absorb(self.fragment)
        try:
            need = super().decide(engine, now)
        except (MessageLockLost, SessionLockLost):
            assert self._outgoing.token is not None
            live.check_lost(self._outgoing.token, now)
            raise
        if self._outgoing.token is not None:
            live.unlock(self._outgoing.token)
        self._world.absorb(self.fragment)
        return need


class World(Stage):
    """The stage of sessions, duplicates and transactions."""

    names = NAMES
    runtime_class = WatchedRuntime
    runtime: WatchedRuntime

    def __init__(self, chance: random.Random, on_disk: bool) -> None:
        self.letters = Letters(chance, chance.choice([3, 12, 60]))
        policies = {fragment_id: random_policy(chance, fragment_id) for fragment_id in NAMES}
        if chance.random() < 0.3:
            window_ms = chance.choice(WINDOWS_MS)
            policies[WORK] = policies[WORK]._replace(duplicate_window_ms=window_ms)
        self.lives = {fragment_id: Live(fragment_id == WORK) for fragment_id in NAMES}
        self.windows = {
            fragment_id: Window(policy.duplicate_window_ms)
            for fragment_id, policy in policies.items()
            if policy.duplicate_window_ms is not None
        }
        self.decided: dict[int, list[Deal]] = {}
        """Transactions that were committed in the batch that is not closed yet."""
        self.on_engine_lost: Callable[[int], None] = lambda _: None
        self.on_restart: Callable[[], None] = lambda: None
        super().__init__(chance, on_disk, policies, set())

    def keep_records(self, store: Store) -> Book:
        self.book = Book(store, self.history, self.letters, self.windows)
        return self.book

    def set_up(self) -> None:
        work = self.fragments[WORK]
        work.waiters_of(MAIN)  # which has losses of sessions told to it
        work.session_waiters[MAIN] = WatchedLine(self, work)
        for fragment_id in self.fragments:
            self._forget(fragment_id)
        self.on_restart()

    def engine_lost(self, fragment: LoadedFragment, why: str) -> None:
        self._forget(fragment.id)
        super().engine_lost(fragment, why)

    def _forget(self, fragment_id: int) -> None:
        self.lives[fragment_id].reset(self.book.shelf(fragment_id))
        for place in [each for each in self.book.deals if each[0] == fragment_id]:
            del self.book.deals[place]
        self.decided.pop(fragment_id, None)
        self.on_engine_lost(fragment_id)

    # -- what is decided -----------------------------------------------------------------------

    def absorb(self, fragment: LoadedFragment, but: int = 0) -> Live:
        live = self.lives[fragment.id]
        if fragment.engine is not None:
            live.absorb(fragment.engine, self.now, but)
        return live

    def sealing(self, fragment: LoadedFragment) -> None:
        self.absorb(fragment)
        deals = self.decided.pop(fragment.id, [])
        if fragment.engine is not None and deals:
            place = fragment.id, fragment.engine.ledger.head
            self.book.deals.setdefault(place, []).extend(deals)

    def watch(
        self,
        fragment_id: int,
        call: Callable[[Engine, int, Pages], Any],
        done: Callable[[Any], None] = lambda _: None,
        failed: Callable[[ServiceBusError], None] | None = None,
    ) -> None:
        """Ask, and hold what comes of it against the model."""

        def decide(engine: Engine, now: int, pages: Pages) -> Any:
            self.absorb(self.fragments[fragment_id])
            try:
                return call(engine, now, pages)
            finally:
                self.absorb(self.fragments[fragment_id])

        self.ask(fragment_id, decide, done, failed)

    # -- who receives --------------------------------------------------------------------------

    def taken(self, taker: Any, message: Message) -> None:
        """As it is decided, by a receiver or the holder of a session."""
        live = self.absorb(taker.fragment, but=int(taker.deletes))
        session_id = getattr(taker, "session_id", None)
        name = live.check_take(message, session_id, taker.holder, self.now)
        if taker.deletes:
            self.absorb(taker.fragment)
        else:
            live.lock(message, name)

    def give_back(self, taker: Receiving, outgoing: OutgoingMessage) -> None:
        self.runtime.submit(WatchedGiveBack(self, taker.fragment, outgoing))

    # -- administrators ------------------------------------------------------------------------

    def set_policy(self, fragment_id: int, policy: Policy) -> None:
        """Another description of an entity."""
        self.policies[fragment_id] = self.fragments[fragment_id].policy = policy
        window, window_ms = self.windows.get(fragment_id), policy.duplicate_window_ms
        which = 0
        if window is not None and window_ms is not None:
            which = window.ask(window_ms)

        def call(engine: Engine, now: int, _: Pages) -> None:
            engine.own.update(policy, now)
            self.lives[fragment_id].update()
            if window is not None:
                window.set(which, now)

        self.note(None, f"{NAMES[fragment_id]} is to be {policy}")
        self.watch(fragment_id, call)

    def forget_ids(self) -> None:
        """As `runtime.upkeep` does it: segments past the window are dropped, a slice at a time."""
        fragment = self.fragments[self.chance.choice(list(self.windows))]
        history = None if fragment.engine is None else fragment.engine.ledger.history
        if history is not None:
            below, limit = history.expire(self.now), self.chance.choice([1, 2, 100])
            store, fragment_id = self.book, fragment.id
            self.thread.submit(
                lambda: store.index.drop_seen(fragment_id, below, limit),
                lambda _: None,
                lambda _: None,
            )


def random_policy(chance: random.Random, fragment_id: int) -> Policy:
    return Policy(
        lock_ms=chance.choice([300, 10_000, 60_000]),
        max_delivery_count=chance.choice([1, 4, 10]),
        default_ttl_ms=chance.choice([None, None, None, None, 2_000]),
        dead_letter_on_expiry=True,
        size_bytes_max=chance.choice([SMALL, 1 << 20, 1 << 20]),
        requires_session=fragment_id == WORK,
        duplicate_window_ms=chance.choice(WINDOWS_MS) if fragment_id == ONCE else None,
    )
