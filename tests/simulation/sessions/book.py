"""All that is durable, and what must hold of it record by record: what comes in is new, what a
window has seen is dropped, and of a transaction there is all or nothing."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from postbus.broker.message import STATE as STATE_LANE
from postbus.broker.record_kinds import RecordKind
from postbus.model.times import NEVER
from postbus.store.ports.journal import Part
from postbus.store.ports.store import Store
from tests.simulation.history import History, Violation
from tests.simulation.kept import Kept, Written
from tests.simulation.sessions.letters import Letters
from tests.simulation.sessions.promises import BODY, DROPPED, LOST, ONCE, SENDER, TWICE
from tests.simulation.sessions.shelf import Entry, Event, Shelf

if TYPE_CHECKING:
    from tests.simulation.sessions.deals import Deal

CONSUMED = frozenset(
    {
        RecordKind.COMPLETED,
        RecordKind.RECEIVED,
        RecordKind.EXPIRED,
        RecordKind.CANCELLED,
        RecordKind.DELETED,
    }
)
COMES_IN = frozenset({RecordKind.ENQUEUED, RecordKind.SCHEDULED, RecordKind.ARRIVED})


class Window:
    """What a fragment must have seen: each id, when it was seen first, and how long that counts."""

    def __init__(self, window_ms: int) -> None:
        self._held: list[list[int]] = [[window_ms, NEVER]]
        """Each with the last time at which it may have held: one that is to be replaced does so
        until it is known to be."""
        self.first: dict[str, int] = {}

    def ask(self, window_ms: int) -> int:
        """It is to be this one; returns which that is."""
        self._held.append([window_ms, NEVER])
        return len(self._held) - 1

    def set(self, which: int, at: int) -> None:
        """It is so now."""
        for window in self._held[:which]:
            window[1] = min(window[1], at)

    def since(self, at: int) -> list[int]:
        """All that have held since then: what a shorter one has let go of does not come back."""
        return [window_ms for window_ms, until in self._held if until >= at]

    def came(self, message_id: str, name: str, at: int) -> None:
        first = self.first.get(message_id)
        if first is not None and at - first < min(self.since(first)):
            raise Violation(TWICE, name, f"{message_id} was first seen {at - first} ms before")
        if message_id:
            self.first[message_id] = at

    def dropped(self, message_id: str, at: int) -> None:
        first = self.first.get(message_id)
        if first is None or at - first >= max(self.since(first)):
            raise Violation(DROPPED, None, f"{message_id} at {at}, first seen at {first}")


class Book(Kept):
    """Knows what became of every letter."""

    def __init__(
        self, store: Store, history: History, letters: Letters, windows: dict[int, Window]
    ) -> None:
        super().__init__(store, history, ())
        self._letters = letters
        self.windows = windows
        self.shelves: dict[int, Shelf] = {}
        self.came: Counter[tuple[int, str]] = Counter()
        """How often each letter came into each fragment, less the times that it was put back."""
        self.consumed: Counter[str] = Counter()
        self.dropped: Counter[tuple[int, str]] = Counter()
        """Ids that were duplicates, by fragment."""
        self.states: dict[str, str] = {}
        """The state of each session, by its name."""
        self.deals: dict[tuple[int, int], list[Deal]] = {}
        """Those that were decided in the batch of a fragment that begins at an offset."""
        self._last: dict[tuple[int, int], int] = {}

    def shelf(self, fragment: int) -> Shelf:
        return self.shelves.setdefault(fragment, Shelf())

    def learn(self, part: Part, written: Written) -> None:
        fragment = part.lease.fragment
        shelf = self.shelf(fragment)
        events = [shelf.apply(record, data) for record, data in written]
        for event, (record, data) in zip(events, written, strict=True):
            entry = event.after
            place = f"{fragment}.{entry.place} {entry.message_id} of {entry.session_id!r}"
            name = entry.name or entry.message_id
            self._history.note(part.at, name, f"{event.kind.name} {place} count {entry.count}")
            if record.body_at >= 0 and entry.place[1] != STATE_LANE:
                self._check_body(entry, data[record.body_at :])
            self._follow(fragment, event, part.at)
        decided = self.deals.pop((fragment, part.base), [])
        for deal in decided:
            deal.check_written(events)
        for event in events:
            letter = self._letters.by_name.get(event.after.name)
            if letter is not None and letter.deal is not None and event.kind in COMES_IN:
                letter.deal.check_decided(letter)

    def _check_body(self, entry: Entry, body: bytes) -> None:
        letter = self._letters.by_name.get(entry.name)
        if letter is None or letter.body != body:
            raise Violation(BODY, entry.name, f"{body!r}")
        if (letter.message_id, letter.session_id) != (entry.message_id, entry.session_id):
            raise Violation(BODY, entry.name, f"it has become {entry}")

    def _follow(self, fragment: int, event: Event, at: int) -> None:
        kind, entry = event.kind, event.after
        window = self.windows.get(fragment)
        name, message_id = entry.name, entry.message_id
        if kind is RecordKind.DUPLICATE:
            if window is None:
                raise Violation(DROPPED, None, f"{message_id} where nobody looks for duplicates")
            window.dropped(message_id, at)
            self.dropped[fragment, message_id] += 1
        elif kind is RecordKind.STATE_SET:
            assert entry.session_id is not None
            self.states[entry.session_id] = name
        elif kind is RecordKind.STATE_CLEARED:
            assert entry.session_id is not None
            self.states.pop(entry.session_id, None)
        elif kind is RecordKind.PUT_BACK:
            self.consumed[name] -= 1
            if self.consumed[name] < 0:
                raise Violation(ONCE, name, f"put back at {entry.place}, and never taken")
        elif kind in COMES_IN or kind is RecordKind.POSTED:
            self._comes_in(fragment, kind, entry)
            if window is not None and kind is not RecordKind.POSTED:
                window.came(message_id, name, at)
        elif kind in CONSUMED:
            self._ends(kind, entry)

    def _comes_in(self, fragment: int, kind: RecordKind, entry: Entry) -> None:
        name = entry.name
        self.came[fragment, name] += 1
        if self.came[fragment, name] > 1:
            raise Violation(ONCE, name, f"came into {fragment} again, as {entry.place}")
        letter = self._letters.by_name[name]
        if letter.sender is not None and kind is RecordKind.ENQUEUED:
            sender = fragment, letter.sender
            if letter.place < self._last.get(sender, -1):
                raise Violation(SENDER, name, f"stored after m{self._last[sender]}")
            self._last[sender] = letter.place

    def _ends(self, kind: RecordKind, entry: Entry) -> None:
        name = entry.name
        self.consumed[name] += 1
        if self.consumed[name] > 1:
            raise Violation(ONCE, name, f"{kind.name} again at {entry.place}")
        if kind is RecordKind.EXPIRED:
            raise Violation(LOST, name, "dropped, and not dead-lettered")
