"""Operations that clients ask of a fragment, as data (wire §6).

An operation has plain fields: no callback, no link, nothing of the connection that it came over.
A later broker can write it down and send it to the owner of the fragment.
"""

from __future__ import annotations

from typing import Final

from postbus.amqp.codec.types import Long, Symbol
from postbus.amqp.sections import encode_delivery_annotations, scan
from postbus.broker import browse, session_operations
from postbus.broker.engine import Engine
from postbus.broker.held_sessions import Session
from postbus.broker.index_pages import Need, Pages
from postbus.broker.queue import Queue
from postbus.broker.rewrite_bound import Rewriting
from postbus.broker.session_list import Listing
from postbus.errors import SessionLockLost
from postbus.gateway.response_writer import ResponseWriter
from postbus.gateway.settlement import bodies_needed, held_in, rewritten, settle_with
from postbus.messages.envelope import Changes, write_delivery
from postbus.model.times import Instant
from postbus.runtime.receivers import LOOK_TOIL_MAX, TOIL_OF_A_SHARE, share_of

PEEK_BYTES_MAX: Final = 256 * 1024
"""A response is cut where it would grow past this, or `LOOK_TOIL_MAX`; fewer than asked is legal
(wire §6.4)."""
_OMITTED_SIZE: Final = Symbol("omitted-message-body-size")

Shown = tuple[list[tuple[int, tuple[bytes, ...]]], int | None]
"""Messages with their numbers, and the number to go on from; None for the end."""
Peeked = list[tuple[int, bytes]]


# -- locks -------------------------------------------------------------------------------------


class Renew:
    """Renew locks, all of them or none. Returns until when each of them lasts."""

    __slots__ = ("subqueue", "tokens")

    def __init__(self, subqueue: int, tokens: list[bytes]) -> None:
        self.subqueue = subqueue
        self.tokens = tokens

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> list[Instant]:
        queue = engine.at(self.subqueue)
        for token in self.tokens:
            held_in(queue, self.subqueue, token, now)
        return [queue.renew(token, now) for token in self.tokens]


class Dispose:
    """Settle locked messages, all of them or none. Without changes they are completed."""

    __slots__ = ("changes", "session", "subqueue", "tokens")

    def __init__(
        self,
        subqueue: int,
        tokens: list[bytes],
        changes: Changes | None,
        session: SessionClaim | None,
    ) -> None:
        self.subqueue = subqueue
        self.tokens = tokens
        self.changes = changes
        self.session = session
        """The session that all of the messages must be of."""

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> Need | None:
        queue, tokens, changes = engine.at(self.subqueue), self.tokens, self.changes
        if self.session is not None:
            self.session.check_tokens(queue, tokens, now)
        for token in tokens:
            message = held_in(queue, self.subqueue, token, now)
            if changes is not None and changes.dead_letter:
                queue.check_dead_letter(message)
        if changes is None:
            for token in tokens:
                queue.complete(token, now)
            return None
        if changes.properties:
            need = bodies_needed(queue, tokens, now, pages)
            if need is not None:
                return need
        # Whatever is refused is refused before the first of them is settled.
        rewriting = Rewriting()
        properties = []
        for token in tokens:
            made = rewritten(queue, token, changes, now, pages)
            if made is not None:
                rewriting.add(made)
            properties.append(made)
        for token, made in zip(tokens, properties, strict=True):
            settle_with(queue, token, changes, now, made)
        return None


# -- messages by number ------------------------------------------------------------------------


class Peek:
    """Messages as they are, without a lock, in the order of their numbers."""

    __slots__ = ("count", "omit_body", "session_id", "start", "subqueue")

    def __init__(
        self, subqueue: int, start: int, count: int, session_id: str | None, omit_body: bool
    ) -> None:
        self.subqueue = subqueue
        self.start = start
        self.count = count
        self.session_id = session_id
        self.omit_body = omit_body

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> Peeked | Need:
        queue, subqueue = engine.at(self.subqueue), self.subqueue
        found = browse.peek(
            queue, subqueue, self.start, self.count, PEEK_BYTES_MAX, pages, self.session_id
        )
        if isinstance(found, Need):
            return found
        payloads: Peeked = []
        toil = 0
        for message, raw in found:
            if toil >= LOOK_TOIL_MAX:
                break
            parts = write_delivery(message, raw, with_state=True, with_lock=False)
            toil += share_of(message, parts) * TOIL_OF_A_SHARE
            payload = b"".join(parts)
            payloads.append((message.number, _without_body(payload) if self.omit_body else payload))
        queue.shared.toil += toil
        return payloads


class Show:
    """Messages for a link that browses, in the order in which they would be received."""

    __slots__ = ("bytes_max", "count", "start", "subqueue")

    def __init__(self, subqueue: int, start: int, count: int, bytes_max: int) -> None:
        self.subqueue = subqueue
        self.start = start
        self.count = count
        self.bytes_max = bytes_max

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> Shown | Need:
        subqueue, bytes_max = self.subqueue, self.bytes_max
        shown = browse.show(
            engine.at(subqueue), subqueue, self.start, self.count, bytes_max, now, pages
        )
        if isinstance(shown, Need):
            return shown
        found, onward = shown
        # Put into words at once: by the time it leaves, more may have been decided about it.
        payloads: list[tuple[int, tuple[bytes, ...]]] = []
        toil = 0
        for message, raw in found:
            if toil >= LOOK_TOIL_MAX:
                onward = message.number
                break
            payload = write_delivery(message, raw, with_lock=False)
            toil += share_of(message, payload) * TOIL_OF_A_SHARE
            payloads.append((message.number, payload))
        engine.shared.toil += toil
        return payloads, onward


class ReceiveDeferred:
    """Receive deferred messages by their numbers, all of them or none. Returns a writer of the
    response, which may have more to write."""

    __slots__ = ("deletes", "holder", "numbers", "session", "session_id", "subqueue")

    def __init__(
        self,
        subqueue: int,
        numbers: list[int],
        deletes: bool,
        holder: int,
        session_id: str | None,
        session: SessionClaim | None,
    ) -> None:
        self.subqueue = subqueue
        self.numbers = numbers
        self.deletes = deletes
        self.holder = holder
        """The connection that holds the locks."""
        self.session_id = session_id
        """The session that the client names; an entity without sessions has none of that id."""
        self.session = session

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> ResponseWriter | Need:
        queue = engine.at(self.subqueue)
        if self.session is not None:
            self.session.check(queue, now)
        found = browse.receive_deferred(
            queue,
            self.subqueue,
            self.numbers,
            self.deletes,
            self.holder,
            now,
            pages,
            self.session_id,
        )
        return found if isinstance(found, Need) else ResponseWriter(found, queue.shared)


class Delete:
    """Delete messages that came before a time. Returns how many were deleted."""

    __slots__ = ("before", "count", "session_id", "subqueue")

    def __init__(self, subqueue: int, count: int, before: Instant, session_id: str | None) -> None:
        self.subqueue = subqueue
        self.count = count
        self.before = before
        self.session_id = session_id

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> int | Need:
        queue, subqueue = engine.at(self.subqueue), self.subqueue
        return browse.delete_batch(queue, subqueue, self.count, self.before, pages, self.session_id)


class Cancel:
    """Remove scheduled messages before they are due, all of them or none."""

    __slots__ = ("numbers", "subqueue")

    def __init__(self, subqueue: int, numbers: list[int]) -> None:
        self.subqueue = subqueue
        self.numbers = numbers

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> Need | None:
        return browse.cancel_scheduled(engine.at(self.subqueue), self.numbers, pages)


# -- message sessions --------------------------------------------------------------------------


class SessionClaim:
    """A session that the asking connection says it holds.

    A client that has lost a session may not know that yet. It must not act in the name of the
    next holder, so the holder must be one of its own links.
    """

    __slots__ = ("holders", "session_id")

    def __init__(self, session_id: str | None, holders: frozenset[int]) -> None:
        self.session_id = session_id
        self.holders = holders
        """The links of the connection that hold a session."""

    def check(self, queue: Queue, now: Instant) -> Session:
        session = session_operations.held(queue, self.session_id, now)
        if session.holder not in self.holders:
            raise SessionLockLost()
        return session

    def check_tokens(self, queue: Queue, tokens: list[bytes], now: Instant) -> None:
        """Raise SessionLockLost where a lock is not of this session."""
        session = self.check(queue, now)
        if any(token not in session.locks for token in tokens):
            raise SessionLockLost()


class RenewSession:
    """Renew the lock on a session. Returns until when it lasts."""

    __slots__ = ("session", "subqueue")

    def __init__(self, subqueue: int, session: SessionClaim) -> None:
        self.subqueue = subqueue
        self.session = session

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> Instant:
        queue = engine.at(self.subqueue)
        session_id = self.session.check(queue, now).id
        return session_operations.renew(queue, session_id, None, now)


class SetSessionState:
    """Set the state of a session; None clears it."""

    __slots__ = ("session", "state", "subqueue")

    def __init__(self, subqueue: int, session: SessionClaim, state: bytes | None) -> None:
        self.subqueue = subqueue
        self.session = session
        self.state = state

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> Need | None:
        queue = engine.at(self.subqueue)
        session_id = self.session.check(queue, now).id
        return session_operations.set_state(queue, session_id, self.state, now, pages)


class GetSessionState:
    """The state of a session; None where it has none."""

    __slots__ = ("session", "subqueue")

    def __init__(self, subqueue: int, session: SessionClaim) -> None:
        self.subqueue = subqueue
        self.session = session

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> bytes | Need | None:
        queue = engine.at(self.subqueue)
        session_id = self.session.check(queue, now).id
        return session_operations.get_state(queue, session_id, now, pages)


class ListSessions:
    """One page of the sessions that there are. Returns their ids."""

    __slots__ = ("_listing", "skip", "subqueue", "top", "updated_after")

    def __init__(self, subqueue: int, updated_after: Instant | None, skip: int, top: int) -> None:
        self.subqueue = subqueue
        self.updated_after = updated_after
        self.skip = skip
        self.top = top
        self._listing = Listing(updated_after, skip, top)
        """How far it has come, from one read to the next."""

    def decide(self, engine: Engine, now: Instant, pages: Pages) -> list[str] | Need:
        return self._listing.read(engine.at(self.subqueue), pages)


# -- payloads ----------------------------------------------------------------------------------


def _without_body(payload: bytes) -> bytes:
    """The message with the size of its body in place of the body, as Azure has it."""
    sections = scan(payload)
    size = sections.footer - sections.body
    return b"".join(
        (
            payload[: sections.delivery_annotations],
            encode_delivery_annotations({_OMITTED_SIZE: Long(size)}),
            payload[sections.message_annotations : sections.body],
            payload[sections.footer :],
        )
    )
