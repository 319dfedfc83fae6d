"""Sessions that are held, and the free sessions that wait for a receiver.

Only a held session is an object with a window of its own. Of the free sessions a queue of ids holds
some, and the store all, so that a million sessions take no more memory than a thousand. None of
this lasts: after a restart every session is free.
"""

from collections import OrderedDict
from typing import Final

from postbus.broker.message import Message
from postbus.broker.shared_state import SharedState
from postbus.broker.window import Window
from postbus.model.times import NEVER, Instant

READY_MAX: Final = 1_024
"""Ids of free sessions in memory, and of sessions read at once."""
LISTINGS_MAX: Final = 16


class Session:
    """A held session: all of its messages go to its holder, in order."""

    __slots__ = ("holder", "id", "locked_until", "locks", "lost", "window")

    def __init__(self, session_id: str, holder: int, locked_until: Instant, window: Window) -> None:
        self.id = session_id
        self.holder = holder
        self.locked_until = locked_until
        self.window = window
        self.locks: dict[bytes, Message] = {}
        """Messages that were received and not settled. Their lock is the session's."""
        self.lost = False
        """Given up, or run out: the session gives no more messages."""

    def holds(self, now: Instant) -> bool:
        return not self.lost and self.locked_until > now


class FreeSessions:
    """Free sessions that have messages, in the order in which they became ready.

    While all free sessions find room here, the list is `complete`. When there are more, new
    sessions are no longer noted. Whenever the list is empty, it takes the next page of ids from the
    store, and after the last page the first. A round covers the sessions that existed when it
    began. So every session has its turn, whichever new sessions come before it or behind it.
    """

    __slots__ = ("_ends_round", "_newest", "_nobody_missed", "complete", "cursor", "duds", "ids")

    def __init__(self, complete: bool) -> None:
        self.ids: dict[str, None] = {}
        self.complete = complete
        self.cursor: str | None = None
        """The last id of the page before; None when the next page is the first."""
        self.duds = 0
        """Sessions without a message to give, met since a session was last accepted."""
        self._newest = 0
        self._nobody_missed = False
        self._ends_round = False

    def add(self, session_id: str) -> None:
        """A free session has messages."""
        if session_id in self.ids:
            return
        if self.complete and len(self.ids) < READY_MAX:
            self.ids[session_id] = None
        else:
            self.complete = self._nobody_missed = False

    def fill(self, found: list[str], end: str | None, held: OrderedDict[str, Session]) -> None:
        """The next page, which reaches to `end`; None for the last there is."""
        self.complete = self.cursor is None and end is None
        self.ids.update((session_id, None) for session_id in found if session_id not in held)
        self._ends_round = end is None
        self.cursor = end

    def begin_round(self, newest: int) -> None:
        """The next page is the first, and this is the number of the newest message."""
        self._newest = newest
        self._nobody_missed = True

    def is_for_later(self, number: int) -> bool:
        """Must a session whose first message has this number wait for the next round?"""
        return not self.complete and number > self._newest

    def pass_over(self, session_id: str) -> None:
        """The session has nothing to give, or not in this round."""
        self.duds += 1
        del self.ids[session_id]

    def is_empty_for_good(self) -> bool:
        """The line is empty: is that so because no free session has messages?"""
        if self._ends_round and self._nobody_missed:
            self.complete = True  # each was looked at since the round began
        return self.complete

    def clear(self) -> None:
        """There are no messages at all."""
        self.ids.clear()
        self.complete = True
        self.cursor = None


class Sessions:
    """The sessions of one queue or subscription."""

    __slots__ = ("_fragment", "_main", "free", "held", "listings", "locks")

    def __init__(self, shared: SharedState, main: int) -> None:
        self._fragment = shared
        self._main = main
        # In order of expiry: every lock of a queue lasts equally long, and renewing moves to
        # the end.
        self.held: OrderedDict[str, Session] = OrderedDict()
        self.locks: dict[bytes, Message] = {}
        """The locks of all of them."""
        self.free = FreeSessions(shared.ledger.count(main) == 0)
        self.listings: OrderedDict[tuple[Instant | None, int], str | int] = OrderedDict()
        """Where listings stopped, by their filter and by how many sessions they have returned."""

    def open(self, session_id: str, holder: int, until: Instant) -> Session:
        """A free session is somebody's now."""
        self.free.ids.pop(session_id, None)
        place = self._main, session_id
        ready_subqueues = self._fragment.ready_sessions
        nothing = self._fragment.ledger.count(self._main) == 0
        session = Session(
            *(session_id, holder, until),
            Window(self._fragment.budget, nothing, place, ready_subqueues),
        )
        self.held[session_id] = session
        ready_subqueues[place] = None
        return session

    def add(self, message: Message) -> None:
        """A message became active, under any number."""
        session_id = message.session_id
        assert session_id is not None
        session = self.held.get(session_id)
        if session is not None:
            session.window.add(message)
        else:
            message.raw = None
            self._ready(session_id)

    def lock(self, message: Message, now: Instant) -> Session | None:
        """Give a message to the holder of its session; None if there is none."""
        session = None if message.session_id is None else self.held.get(message.session_id)
        if session is None or not session.holds(now):
            return None
        token = self._fragment.next_token(in_session=True)
        message.token = token
        # The lock of the message has no end of its own (semantics B §1).
        message.locked_until = NEVER
        message.delivered_at = now
        message.holder = session.holder
        self.locks[token] = session.locks[token] = message
        return session

    def locked(self, token: bytes, now: Instant) -> Message | None:
        """The message under this lock."""
        message = self.locks.get(token)
        if message is None or message.session_id is None:
            return None
        session = self.held.get(message.session_id)
        return message if session is not None and session.locked_until > now else None

    def unlock(self, token: bytes) -> Message:
        message = self.locks.pop(token)
        assert message.session_id is not None
        del self.held[message.session_id].locks[token]
        return message

    def window_of(self, session_id: str | None) -> Window | None:
        session = None if session_id is None else self.held.get(session_id)
        return None if session is None else session.window

    def close(self, session: Session) -> list[Message]:
        """The session is free again. Returns the messages that its holder received and did not
        settle; their locks have ended."""
        del self.held[session.id]
        session.lost = True
        self._fragment.ready_sessions.pop((self._main, session.id), None)
        window = session.window
        window.close()
        unsettled = list(session.locks.values())
        for token in session.locks:
            del self.locks[token]
        session.locks = {}
        if window.live or not window.complete:
            self._ready(session.id)
        return unsettled

    def note_loss(self, session: Session) -> None:
        """The session is about to be closed, and its holder does not know."""
        self._fragment.lost_sessions.append((self._main, session.id, session.holder))

    def abolish(self) -> None:
        """The entity is gone."""
        for session in self.held.values():
            session.lost = True
            session.window.close()
            self._fragment.ready_sessions.pop((self._main, session.id), None)
        self.held.clear()
        self.locks.clear()

    def remember(self, listing: tuple[Instant | None, int], place: str | int) -> None:
        """A listing stopped here, after the number of sessions in its key."""
        self.listings[listing] = place
        self.listings.move_to_end(listing)
        if len(self.listings) > LISTINGS_MAX:
            self.listings.popitem(last=False)

    def first_end(self) -> Instant:
        """When the first of the locks runs out."""
        return next(iter(self.held.values())).locked_until if self.held else NEVER

    def _ready(self, session_id: str) -> None:
        self.free.add(session_id)
        self._fragment.ready_subqueues[self._main] = None
