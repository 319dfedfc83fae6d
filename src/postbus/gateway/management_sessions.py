"""Message sessions over `$management`: their locks, their state, and which there are.

Only the connection whose link holds a session may change it. Every client may list them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from postbus.amqp.codec.types import AmqpArray, Int, Timestamp
from postbus.errors import InvalidArgument
from postbus.gateway.management_fields import Fields
from postbus.gateway.nodes import NodeRequest
from postbus.gateway.operations import (
    GetSessionState,
    ListSessions,
    RenewSession,
    SessionClaim,
    SetSessionState,
)
from postbus.model.times import NEVER, Instant

if TYPE_CHECKING:
    from postbus.gateway.client_connection import ClientConnection
    from postbus.namespace.entity import Entity
    from postbus.runtime.loaded_fragment import LoadedFragment
    from postbus.runtime.requests import Operation

T = TypeVar("T")

SESSION_OPERATIONS: Final = frozenset(
    {"renew-session-lock", "set-session-state", "get-session-state", "get-message-sessions"}
)
LISTED_AT_ONCE_MAX: Final = 1_000
_OK: Final = 200
_NO_CONTENT: Final = 204
_STRING: Final = 0xB1
_NOT_FOUND: Final = "com.microsoft:session-not-found"


Lists = Callable[[NodeRequest, ListSessions, Callable[[list[str]], None]], None]
"""How a management node finds a page of the sessions of its entity."""


class Ask(Protocol):
    """How a management node asks a fragment of its entity."""

    def __call__(
        self,
        request: NodeRequest,
        fragment: LoadedFragment,
        operation: Operation[T],
        done: Callable[[T], None],
        size: int = 0,
    ) -> None: ...


class SessionNode:
    """The sessions of one entity, as its management node shows them."""

    def __init__(
        self, gateway: ClientConnection, entity: Entity, subqueue: int, ask: Ask, lists: Lists
    ) -> None:
        self._gateway = gateway
        self._entity = entity
        self._subqueue = subqueue
        self._ask = ask
        self._lists = lists

    def operations(self) -> dict[str, Callable[[NodeRequest, Fields], None]]:
        return {
            "renew-session-lock": self._renew,
            "set-session-state": self._set_state,
            "get-session-state": self._get_state,
            "get-message-sessions": self._list,
        }

    def _claim(self, session_id: str) -> SessionClaim:
        return SessionClaim(session_id, frozenset(self._gateway.session_holders))

    def _renew(self, request: NodeRequest, fields: Fields) -> None:
        session_id = fields.text("session-id")
        renew = RenewSession(self._subqueue, self._claim(session_id))
        fragment = self._entity.fragment_for(session_id)
        self._ask(request, fragment, renew, partial(self._renewed, request))

    def _renewed(self, request: NodeRequest, until: Instant) -> None:
        self._entity.meter.lock_renewals += 1
        request.respond(_OK, "OK", {"expiration": Timestamp(until)})

    def _set_state(self, request: NodeRequest, fields: Fields) -> None:
        session_id = fields.text("session-id")
        state = None if fields.get("session-state") is None else fields.binary("session-state")
        set_state = SetSessionState(self._subqueue, self._claim(session_id), state)
        fragment = self._entity.fragment_for(session_id)
        size = 0 if state is None else len(state)
        self._ask(request, fragment, set_state, partial(_state_set, request), size)

    def _get_state(self, request: NodeRequest, fields: Fields) -> None:
        session_id = fields.text("session-id")
        get_state = GetSessionState(self._subqueue, self._claim(session_id))
        fragment = self._entity.fragment_for(session_id)
        self._ask(request, fragment, get_state, partial(_state_found, request))

    def _list(self, request: NodeRequest, fields: Fields) -> None:
        skip, top = fields.number("skip"), fields.number("top")
        if skip < 0 or top <= 0:
            raise InvalidArgument("The skip must not be negative, and the top must be positive.")
        fields.optional_text("last-session-id")
        asked = fields.optional_number("last-updated-time")
        # The end of time, or a millisecond after it, asks for all there are (wire §6.2).
        updated_after = None if asked is None or asked >= NEVER else asked
        listing = ListSessions(self._subqueue, updated_after, skip, min(top, LISTED_AT_ONCE_MAX))
        self._lists(request, listing, partial(_listed, request, skip))


def _state_set(request: NodeRequest, _: None) -> None:
    request.respond(_OK, "OK", {})


def _state_found(request: NodeRequest, state: bytes | None) -> None:
    request.respond(_OK, "OK", {"session-state": state})


def _listed(request: NodeRequest, skip: int, found: list[str]) -> None:
    if not found:
        request.respond(_NO_CONTENT, "No sessions", {}, _NOT_FOUND)
        return
    ids = AmqpArray(_STRING, list(found))
    request.respond(_OK, "OK", {"sessions-ids": ids, "skip": Int(skip + len(found))})
