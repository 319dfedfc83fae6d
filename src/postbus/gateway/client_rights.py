"""What a client has proven on its connection, and how long it may go without a proof."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postbus.amqp.sasl_plain import parse_plain
from postbus.auth.authority import Claims
from postbus.auth.connection_claims import Credentials
from postbus.model.authorization import Right

if TYPE_CHECKING:
    from postbus.gateway.context import ConnectionContext


class ClientRights:
    """The login and the tokens of one connection. Tokens end by the wall clock; the time to show
    one is counted by the loop's clock (`elapsed_ms`)."""

    def __init__(self, service: ConnectionContext, elapsed_ms: int) -> None:
        self._service = service
        self._credentials = Credentials()
        self._prove_by = 0
        self._await_proof(elapsed_ms)

    @property
    def proven(self) -> bool:
        """Has the client a login or a token that is good?"""
        return bool(self._credentials)

    def allows(self, right: Right, path: str) -> bool:
        return self._credentials.allows(right, path, self._service.wall())

    def covers(self, path: str) -> bool:
        """Has the client any right at all on this path?"""
        return self._credentials.covers(path, self._service.wall())

    def log_in(self, response: bytes | None) -> None:
        """Take a name and a key by SASL PLAIN. Raises Unauthorized or DecodeError."""
        given = parse_plain(response)
        claims = self._service.authority.verify_plain(given.username, given.password)
        self._credentials.log_in(claims)

    def put(self, audience: str, claims: Claims) -> bool:
        """Take a token. Returns whether it proves other things than the token it replaces."""
        return self._credentials.put(audience, claims)

    def review(self, elapsed_ms: int) -> bool:
        """Keys were changed: drop what was proven by a key that is gone. Returns whether anything
        was lost."""
        lost = self._credentials.review(self._service.authority)
        if lost:
            self._await_proof(elapsed_ms)
        return lost

    def expire(self, elapsed_ms: int) -> bool:
        """Drop the tokens that have run out. Returns whether there were any."""
        expired = self._credentials.expire(self._service.wall())
        if expired:
            self._await_proof(elapsed_ms)
        return expired

    def is_overdue(self, elapsed_ms: int) -> bool:
        """Has the client shown nothing for as long as it may?"""
        return elapsed_ms >= self._prove_by and not self._credentials

    def left_ms(self, elapsed_ms: int) -> int:
        """The time until a token runs out; without any, the time to show one."""
        expiry = self._credentials.next_expiry()
        return self._prove_by - elapsed_ms if expiry is None else expiry - self._service.wall()

    def _await_proof(self, elapsed_ms: int) -> None:
        self._prove_by = elapsed_ms + self._service.settings.authentication_timeout_ms
