"""`$cbs`: clients put the tokens that say what they may do (wire §2)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from postbus.auth.authority import Claims
from postbus.auth.refusals import InvalidAudience, KeyUnknown, NoKeysYet
from postbus.errors import EntityNotFound, InvalidArgument, ServiceBusError
from postbus.gateway.nodes import NodeRequest
from postbus.model.address import resolve_path

if TYPE_CHECKING:
    from postbus.gateway.client_connection import ClientConnection

PUT_TOKEN: Final = "put-token"
_ACCEPTED: Final = 202


class TokenNode:
    """Takes tokens for one connection."""

    def __init__(self, gateway: ClientConnection) -> None:
        self._gateway = gateway

    def handle(self, request: NodeRequest) -> None:
        if request.operation != PUT_TOKEN:
            raise InvalidArgument(f"The operation '{request.operation}' is not known to $cbs.")
        audience = request.properties.get("name")
        if not isinstance(audience, str) or not isinstance(request.body, str):
            raise InvalidArgument("put-token needs the property 'name' and a token as its value.")
        self._answer(request, audience, request.body)

    def _answer(self, request: NodeRequest, audience: str, token: str) -> None:
        gateway = self._gateway
        try:
            path = gateway.authority.path_of(audience)
            gateway.add_claims(path.lower(), self._verify(path, audience, token))
        except ServiceBusError as error:
            again = partial(self._answer, request, audience, token)
            if isinstance(error, (KeyUnknown, NoKeysYet)) and gateway.authority.want_keys(again):
                return  # the answer waits for them
            # Without `error-condition`: where it is given the Python SDK shows no status text.
            text = gateway.refusals.describe(error, audience, gateway.stranger)
            request.respond(error.http_status, text, None)
            return
        request.respond(_ACCEPTED, "Accepted", None)

    def _verify(self, path: str, audience: str, token: str) -> Claims:
        # What a token is, its text tells and not the `type` beside it (wire §2.2).
        gateway = self._gateway
        asked = f"/{path}"  # whatever it begins with, it is no host any more
        claims = gateway.authority.verify(token, asked, gateway.service.wall())
        if not claims.covers(asked):
            raise InvalidAudience(audience)
        # Azure refuses here, and not at the link, what names no entity (wire §2.2).
        if path and gateway.namespace.at(resolve_path(path)) is None:
            raise EntityNotFound(path)
        return claims
