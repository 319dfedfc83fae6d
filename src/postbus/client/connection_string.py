"""The address and the key of a namespace, from the connection string that `postbus serve` prints.

Spark's workers and client commands have nothing but this text. So it holds all that HTTP and AMQP
need.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, urlsplit

from postbus.auth.sas import create_sas

PORT_PLAIN: Final = 5672
PORT_TLS: Final = 5671
TOKEN_LIFE_S: Final = 3_600

_KNOWN: Final = {
    "endpoint": "Endpoint",
    "sharedaccesskeyname": "SharedAccessKeyName",
    "sharedaccesskey": "SharedAccessKey",
    "entitypath": "EntityPath",
    "usedevelopmentemulator": "UseDevelopmentEmulator",
}


class BadConnectionString(ValueError):
    """The text is no connection string, or asks for something impossible."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """One namespace, and the key that opens it."""

    host: str
    port: int
    tls: bool
    key_name: str
    key: str = field(repr=False)
    entity_path: str | None = None
    """The one entity of the key, if the string names one."""

    @property
    def scheme(self) -> str:
        return "https" if self.tls else "http"

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def token(self, entity: str, now_s: float) -> str:
        """A shared access signature for an entity; for the namespace where the entity is empty."""
        uri = f"{self.scheme}://{self.netloc}/{quote(entity)}"
        return create_sas(self.key_name, self.key, uri, (int(now_s) + TOKEN_LIFE_S) * 1_000)

    def tls_context(self) -> ssl.SSLContext | None:
        """None for plain text. `SSL_CERT_FILE` names a CA that the system does not know."""
        return ssl.create_default_context() if self.tls else None


def parse(text: str) -> Namespace:
    """Read a connection string. Raises BadConnectionString with the mistake, never the key."""
    parts: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        name, equals, value = part.partition("=")
        known = _KNOWN.get(name.strip().lower())
        if not equals or known is None:
            raise BadConnectionString(f"the connection string has an unknown part '{name[:40]}'")
        if known in parts:
            raise BadConnectionString(f"the connection string has '{known}' twice")
        parts[known] = value.strip()
    for name in ("Endpoint", "SharedAccessKeyName", "SharedAccessKey"):
        if not parts.get(name):
            raise BadConnectionString(f"the connection string has no '{name}'")
    switch = parts.get("UseDevelopmentEmulator", "false").lower()
    if switch not in ("true", "false"):
        raise BadConnectionString("'UseDevelopmentEmulator' is neither true nor false")
    tls = switch == "false"
    host, port = _endpoint(parts["Endpoint"], tls)
    return Namespace(
        host,
        port,
        tls,
        parts["SharedAccessKeyName"],
        parts["SharedAccessKey"],
        parts.get("EntityPath") or None,
    )


def _endpoint(text: str, tls: bool) -> tuple[str, int]:
    url = urlsplit(text)
    try:
        port = url.port
    except ValueError:
        raise BadConnectionString(f"the endpoint '{text[:80]}' has no valid port") from None
    if url.scheme != "sb" or not url.hostname or url.path not in ("", "/"):
        raise BadConnectionString(f"the endpoint '{text[:80]}' is not of the form sb://host:port")
    return url.hostname, port or (PORT_TLS if tls else PORT_PLAIN)
