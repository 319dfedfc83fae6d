"""A small client of the change feed for the command line: plain HTTP, a token for each call."""

import http.client
import json
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote, urlsplit
from xml.etree.ElementTree import fromstring

from postbus.server.sas import create_sas

PORT_PLAIN: Final = 5672
PORT_TLS: Final = 5671
TOKEN_LIFE_S: Final = 600
TIMEOUT_S: Final = 90.0
"""Longer than the broker waits for news."""
WAIT_S: Final = 30
PAGE: Final = 100

_ATOM: Final = "{http://www.w3.org/2005/Atom}"


class FeedFailed(Exception):
    """What was asked cannot be done; the text says why."""


class FeedUnreachable(FeedFailed):
    """The broker does not answer; it may do so later."""


class Namespace(NamedTuple):
    """What a connection string says."""

    host: str
    port: int
    encrypted: bool
    key_name: str
    key: str

    @classmethod
    def parse(cls, text: str) -> Self:
        parts: dict[str, str] = {}
        for part in filter(None, text.strip().split(";")):
            name, _, value = part.partition("=")
            parts[name.strip().lower()] = value
        try:
            endpoint = urlsplit(parts["endpoint"])
            host, port = endpoint.hostname, endpoint.port
            key_name, key = parts["sharedaccesskeyname"], parts["sharedaccesskey"]
        except (KeyError, ValueError):
            host = None
        if host is None:
            raise FeedFailed(
                "a connection string has Endpoint=sb://host:port, SharedAccessKeyName and "
                "SharedAccessKey, as `postbus serve` prints it"
            )
        encrypted = parts.get("usedevelopmentemulator", "").lower() != "true"
        return cls(host, port or (PORT_TLS if encrypted else PORT_PLAIN), encrypted, key_name, key)


class FeedClient:
    """Asks one broker, one question at a time."""

    def __init__(self, connection_string: str) -> None:
        self._namespace = Namespace.parse(connection_string)
        self._connection: http.client.HTTPConnection | None = None

    def entities(self) -> list[str]:
        """All queues and topics. Needs a key that may manage."""
        names: list[str] = []
        for kind in ("queues", "topics"):
            skip = 0
            while found := self._titles(f"/$Resources/{kind}?$skip={skip}&$top={PAGE}"):
                names += found
                skip += PAGE
        return sorted(names, key=str.lower)

    def _titles(self, path: str) -> list[str]:
        tree = fromstring(self._read(path))
        return [each.findtext(f"{_ATOM}title") or "" for each in tree.iter(f"{_ATOM}entry")]

    def describe(self, entity: str) -> dict[str, Any]:
        """What is kept, and who reads it."""
        found: dict[str, Any] = json.loads(self._read(f"/{quote(entity)}/$feed"))
        found["readers"] = json.loads(self._read(f"/{quote(entity)}/$feed/readers"))
        return found

    def lines(self, entity: str, fragment: int, start: int, wait_s: int) -> Iterator[bytes | int]:
        """The events from an offset on, as JSON lines; last of all the offset to go on from."""
        path = f"/{quote(entity)}/$feed/{fragment}?from={start}&timeout={wait_s}"
        response = self._get(path, {"Accept": "application/x-ndjson"})
        while line := self._line(response):
            yield line
        yield int(response.headers["Postbus-Next"])

    def _line(self, response: http.client.HTTPResponse) -> bytes:
        with self._reached():
            return response.readline()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _read(self, path: str) -> bytes:
        response = self._get(path)
        with self._reached():
            return response.read()

    def _get(self, path: str, headers: dict[str, str] | None = None) -> http.client.HTTPResponse:
        connection = self._connected()
        with self._reached():
            given = {"Authorization": self._token(), **(headers or {})}
            connection.request("GET", path, headers=given)
            response = connection.getresponse()
            if response.status == 200:
                return response
            raise FeedFailed(_told(response.status, response.read()))

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            self.close()
            where = f"{self._namespace.host}:{self._namespace.port}"
            raise FeedUnreachable(f"{where} does not answer: {error or repr(error)}") from error

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            where = self._namespace
            if where.encrypted:
                context = ssl.create_default_context()
                self._connection = http.client.HTTPSConnection(
                    where.host, where.port, timeout=TIMEOUT_S, context=context
                )
            else:
                self._connection = http.client.HTTPConnection(
                    where.host, where.port, timeout=TIMEOUT_S
                )
        return self._connection

    def _token(self) -> str:
        where = self._namespace
        expires_at = int(time.time() + TOKEN_LIFE_S) * 1_000
        return create_sas(where.key_name, where.key, f"sb://{where.host}/", expires_at)


def _told(status: int, body: bytes) -> str:
    """The words of a refusal, which is XML or JSON."""
    try:
        text = json.loads(body)["detail"]
    except (ValueError, KeyError, TypeError):
        try:
            text = fromstring(body).findtext("Detail") or ""
        except SyntaxError:
            text = body.decode(errors="replace")[:500]
    return f"{text} (HTTP {status})"
