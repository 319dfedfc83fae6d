"""Message sessions over `$management`: their locks, their state, and which there are.

What is done to a session is for whoever holds it, over the connection of the link that does;
listing them is for all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from postbus.amqp.codec.types import AmqpArray, Int, Timestamp
from postbus.broker import session_operations
from postbus.broker.held_sessions import Session
from postbus.broker.pages import Need, Pages
from postbus.broker.queue import Queue
from postbus.broker.session_list import Listing
from postbus.errors import InvalidArgument, SessionLockLost
from postbus.gateway.management_fields import Fields
from postbus.gateway.nodes import NodeRequest
from postbus.model.times import NEVER, Instant

if TYPE_CHECKING:
    from postbus.gateway.connection import Gateway
    from postbus.namespace.entities import Entity

SESSION_OPERATIONS: Final = frozenset(
    {"renew-session-lock", "set-session-state", "get-session-state", "get-message-sessions"}
)
LISTED_AT_ONCE_MAX: Final = 1_000
_OK: Final = 200
_NO_CONTENT: Final = 204
_STRING: Final = 0xB1
_NOT_FOUND: Final = "com.microsoft:session-not-found"


class Ask(Protocol):
    """How a management node asks the queue it is of."""

    def __call__(
        self,
        request: NodeRequest,
        call: Callable[[Queue, Instant, Pages], Any],
        done: Callable[[Any], None],
        size: int = 0,
    ) -> None: ...


def held_here(gateway: Gateway, queue: Queue, session_id: str | None, now: Instant) -> Session:
    """The session of this name, if a link of this very connection holds it: who has lost it may
    not have heard of that yet, and must not act in the name of the next one."""
    session = session_operations.held(queue, session_id, now)
    if session.holder not in gateway.session_holders:
        raise SessionLockLost()
    return session


class SessionNode:
    """The sessions of one entity, as its management node shows them."""

    def __init__(self, gateway: Gateway, entity: Entity, ask: Ask) -> None:
        self._gateway = gateway
        self._entity = entity
        self._ask = ask

    def operations(self) -> dict[str, Callable[[NodeRequest, Fields], None]]:
        return {
            "renew-session-lock": self._renew,
            "set-session-state": self._set_state,
            "get-session-state": self._get_state,
            "get-message-sessions": self._list,
        }

    def _renew(self, request: NodeRequest, fields: Fields) -> None:
        session_id = fields.text("session-id")

        def renew(queue: Queue, now: Instant, pages: Pages) -> Instant:
            held_here(self._gateway, queue, session_id, now)
            return session_operations.renew(queue, session_id, None, now)

        def done(until: Instant) -> None:
            self._entity.meter.lock_renewals += 1
            request.respond(_OK, "OK", {"expiration": Timestamp(until)})

        self._ask(request, renew, done)

    def _set_state(self, request: NodeRequest, fields: Fields) -> None:
        session_id = fields.text("session-id")
        state = None if fields.get("session-state") is None else fields.binary("session-state")

        def set_state(queue: Queue, now: Instant, pages: Pages) -> Need | None:
            held_here(self._gateway, queue, session_id, now)
            return session_operations.set_state(queue, session_id, state, now, pages)

        def done(result: None) -> None:
            request.respond(_OK, "OK", {})

        self._ask(request, set_state, done, 0 if state is None else len(state))

    def _get_state(self, request: NodeRequest, fields: Fields) -> None:
        session_id = fields.text("session-id")

        def get_state(queue: Queue, now: Instant, pages: Pages) -> bytes | Need | None:
            held_here(self._gateway, queue, session_id, now)
            return session_operations.get_state(queue, session_id, now, pages)

        def done(state: bytes | None) -> None:
            request.respond(_OK, "OK", {"session-state": state})

        self._ask(request, get_state, done)

    def _list(self, request: NodeRequest, fields: Fields) -> None:
        skip, top = fields.number("skip"), fields.number("top")
        if skip < 0 or top <= 0:
            raise InvalidArgument("The skip must not be negative, and the top must be positive.")
        fields.optional_text("last-session-id")
        asked = fields.optional_number("last-updated-time")
        # The end of time, or a millisecond after it, asks for all there are (wire §6.2).
        updated_after = None if asked is None or asked >= NEVER else asked
        listing = Listing(updated_after, skip, min(top, LISTED_AT_ONCE_MAX))

        def look(queue: Queue, now: Instant, pages: Pages) -> list[str] | Need:
            return listing.read(queue, pages)

        self._ask(request, look, partial(_listed, request, skip))


def _listed(request: NodeRequest, skip: int, found: list[str]) -> None:
    if not found:
        request.respond(_NO_CONTENT, "No sessions", {}, _NOT_FOUND)
        return
    ids = AmqpArray(_STRING, list(found))
    request.respond(_OK, "OK", {"sessions-ids": ids, "skip": Int(skip + len(found))})
