"""What must hold at a quiet moment: everything once, nothing under way, nobody waits for what is
there, and a window knows what it has seen."""

from __future__ import annotations

from collections import Counter

from postbus.broker.duplicate_history import History
from postbus.broker.duplicates import digests_of, lookup, repeated
from postbus.broker.index_pages import Pages
from postbus.broker.ledger import Ledger
from postbus.broker.message import ACTIVE, OUTBOX, SCHEDULED, Message
from postbus.broker.message import STATE as STATE_LANE
from postbus.broker.subqueue_numbers import MAIN, TRANSFER_DEAD_LETTER
from postbus.runtime.loading import load_page
from tests.simulation.history import Violation
from tests.simulation.ledgers import FULL, REPLAY, TOTALS, compare, full_replay, index_and_tail
from tests.simulation.playing import ENDS
from tests.simulation.sessions.company import Company
from tests.simulation.sessions.letters import WORK, Letter, name_of
from tests.simulation.sessions.promises import (
    ATOMIC,
    BODY,
    DROPPED,
    DUE,
    LOST,
    MATCH,
    ONCE,
    SERVED,
    STATE,
    TWICE,
)
from tests.simulation.sessions.shelf import Entry
from tests.simulation.sessions.world import SMALL, World


class Judge:
    """Looks; never changes anything."""

    def __init__(self, world: World, company: Company) -> None:
        self._world = world
        self._company = company

    def at_rest(self) -> None:
        """Everything that was under way has come to its end."""
        for fragment_id in self._world.fragments:
            self._same(fragment_id)
            self._has_ended(fragment_id)
        self._takers_served()
        self._guests_served()
        self._states()
        self._letters()
        for fragment_id in self._world.windows:
            self._windows(fragment_id)

    def empty(self) -> None:
        """Everything was taken out."""
        for fragment_id in self._world.fragments:
            ledger = full_replay(self._world, fragment_id)
            if any(ledger.counts.values()) or ledger.size_bytes:
                left = {place: n for place, n in ledger.counts.items() if n}
                text = f"{left} left of {fragment_id}, {ledger.size_bytes} bytes"
                raise Violation(TOTALS, None, text)

    def entries(self, fragment_id: int) -> list[Entry]:
        return list(self._world.book.shelf(fragment_id).entries.values())

    # -- the same from everywhere --------------------------------------------------------------

    def _same(self, fragment_id: int) -> None:
        found = {
            (row.subqueue, row.lane, row.number): (row, body)
            for row, body in compare(self._world, fragment_id)
        }
        durable = self._world.book.shelf(fragment_id).entries
        if durable.keys() != found.keys():
            odd = sorted(durable.keys() ^ found.keys())
            raise Violation(MATCH, None, f"{odd} in one of the store and the records")
        for place, (row, body) in found.items():
            if name_of(body) != durable[place].name:
                raise Violation(BODY, durable[place].name, f"{body!r} in {row.number}")
        live = self._world.lives[fragment_id].shelf.entries
        if self._world.fragments[fragment_id].engine is not None and live != durable:
            raise Violation(REPLAY, None, "decided and written differ")

    def _has_ended(self, fragment_id: int) -> None:
        world = self._world
        for entry in self.entries(fragment_id):
            subqueue, lane, _ = entry.place
            if lane == SCHEDULED and entry.enqueued_at < world.now:
                raise Violation(DUE, entry.name, f"due at {entry.enqueued_at}, now {world.now}")
            if lane == OUTBOX:
                to = self._letter(entry).to
                # One that has no room keeps them waiting (semantics B §7).
                if subqueue != TRANSFER_DEAD_LETTER or world.policies[to].size_bytes_max > SMALL:
                    raise Violation(ENDS, entry.name, f"still on its way in {entry.place}")

    # -- who waits -----------------------------------------------------------------------------

    def _takers_served(self) -> None:
        world = self._world
        for taker in world.takers:
            if taker.capacity() and world.policies[taker.fragment.id].receives:
                live = world.lives[taker.fragment.id]
                for entry in live.ready(taker.subqueue, None, world.now):
                    raise Violation(SERVED, entry.name, f"nobody gets it at {entry.place}")

    def _guests_served(self) -> None:
        world, live = self._world, self._world.lives[WORK]
        if not world.policies[WORK].receives:
            return
        for guest in self._company.guests:
            if guest.gone:
                continue
            if guest.session is not None and guest.capacity():
                for entry in live.ready(MAIN, guest.session.id, world.now):
                    raise Violation(SERVED, entry.name, f"guest {guest.holder} does not get it")
            if guest.session is None:
                for entry in live.ready(MAIN, None, world.now):
                    if live.is_free(entry.session_id or "", world.now):
                        text = f"{entry.session_id!r} is free, and {guest.holder} waits"
                        raise Violation(SERVED, entry.name, text)

    # -- sessions ------------------------------------------------------------------------------

    def _states(self) -> None:
        """The last that was confirmed, or one that was asked for since."""
        for session_id, tried in self._company.set.items():
            confirmed = [place for place, (_, done) in enumerate(tried) if done]
            allowed = {name for name, _ in tried[confirmed[-1] if confirmed else 0 :]}
            if not confirmed:
                allowed.add(None)
            state = self._world.book.states.get(session_id)
            if state not in allowed:
                text = f"{session_id!r} has {state}, must be one of {allowed}"
                raise Violation(STATE, None, text)
            rows = [
                entry.name
                for entry in self.entries(WORK)
                if entry.place[1] == STATE_LANE and entry.session_id == session_id
            ]
            if rows != ([] if state is None else [state]):
                raise Violation(STATE, None, f"{session_id!r} has {rows}, must be {state}")

    # -- letters -------------------------------------------------------------------------------

    def _letter(self, entry: Entry) -> Letter:
        return self._world.letters.by_name[entry.name]

    def _letters(self) -> None:
        book = self._world.book
        there: Counter[str] = Counter(book.consumed)
        for fragment_id in self._world.fragments:
            there.update(e.name for e in self.entries(fragment_id) if e.place[1] != STATE_LANE)
        dropped = Counter(book.dropped)
        for letter in self._world.letters.by_name.values():
            if there[letter.name] > 1:
                raise Violation(ONCE, letter.name, f"{there[letter.name]} of it")
            if there[letter.name]:
                if letter.refused and letter.deal is None:
                    raise Violation(ONCE, letter.name, "refused, and there")
            elif self._must_be(letter):
                dropped[letter.to, letter.message_id] -= 1
                if dropped[letter.to, letter.message_id] < 0:
                    raise Violation(LOST, letter.name, "accepted, no duplicate, and not there")

    def _must_be(self, letter: Letter) -> bool:
        deal = letter.deal
        if deal is None:
            return letter.acknowledged
        if letter.acknowledged and not deal.written:
            raise Violation(ATOMIC, letter.name, f"{deal.name} was committed, and is not there")
        return deal.written and letter in deal.letters

    # -- windows -------------------------------------------------------------------------------

    def _windows(self, fragment_id: int) -> None:
        """What was seen is known, and nothing else, to the engine and to one after a restart."""
        engine = self._world.fragments[fragment_id].engine
        ledgers = [(FULL, index_and_tail(self._world, fragment_id))]
        if engine is not None:
            ledgers.append((REPLAY, engine.ledger))
        for promise, ledger in ledgers:
            self._knows(promise, fragment_id, ledger)

    def _knows(self, promise: str, fragment_id: int, ledger: Ledger) -> None:
        history, now = ledger.history, self._world.now
        assert isinstance(history, History)
        ids = sorted({each.message_id for each in self._world.letters.by_name.values()} - {""})
        digests = digests_of([Message(b"", each) for each in ids])
        pages = Pages()
        need = lookup(history, digests, now, pages)
        for page in need.pages if need is not None else ():
            pages.add(page, load_page(self._world.book.store, fragment_id, page))
        window = self._world.windows[fragment_id]
        known_ones = repeated(history, digests, now, pages)
        for message_id, digest, known in zip(ids, digests, known_ones, strict=True):
            first = window.first.get(message_id)
            windows = [0] if first is None else window.since(first)
            age = now - (first or 0)
            if known and age >= max(windows):
                raise Violation(DROPPED, None, f"{message_id} of {fragment_id}: {promise}, {first}")
            at = history.recent.get(digest, pages.seen.get(digest))
            if known and at != first:
                text = f"{message_id} of {fragment_id}: {promise}, at {at}, and not at {first}"
                raise Violation(DROPPED, None, text)
            if not known and age < min(windows):
                raise Violation(TWICE, None, f"{message_id} of {fragment_id}: {promise}, {first}")

    def waits_for(self, fragment_id: int, lane: int) -> list[Entry]:
        """What is left there in a lane of the main queue, or in all of them."""
        return [
            entry
            for entry in self.entries(fragment_id)
            if entry.place[0] == MAIN and entry.place[1] == lane
        ]

    def free_sessions(self) -> list[str]:
        """Those that have messages, in no order."""
        live = self._world.lives[WORK]
        found = live.ready(MAIN, None, self._world.now)
        ids = {entry.session_id or "" for entry in found if entry.place[1] == ACTIVE}
        return sorted(each for each in ids if live.is_free(each, self._world.now))
