"""A small client of the change feed for the command line: plain HTTP, a token for each call."""

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote

from defusedxml.ElementTree import fromstring

from postbus.client.connection_string import BadConnectionString, parse

TIMEOUT_S: Final = 90.0
"""Longer than the broker waits for new records."""
WAIT_S: Final = 30
LATER: Final = frozenset({500, 503})
PAGE: Final = 100

_ATOM: Final = "{http://www.w3.org/2005/Atom}"


class FeedFailed(Exception):
    """The request failed; the text says why."""


class FeedUnreachable(FeedFailed):
    """The broker does not answer, or has no room. A later request may succeed."""


class FeedClient:
    """Asks one broker, one request at a time."""

    def __init__(self, connection_string: str) -> None:
        try:
            self._namespace = parse(connection_string)
        except BadConnectionString as error:
            raise FeedFailed(str(error)) from error
        self._connection: http.client.HTTPConnection | None = None

    def entities(self) -> list[str]:
        """All queues and topics. Needs a key with Manage."""
        names: list[str] = []
        for kind in ("queues", "topics"):
            skip = 0
            while found := self._titles(f"/$Resources/{kind}?$skip={skip}&$top={PAGE}"):
                names += found
                skip += len(found)  # a broker may return fewer than requested
        return sorted(names, key=str.lower)

    def _titles(self, path: str) -> list[str]:
        tree = fromstring(self._read("", path))
        return [each.findtext(f"{_ATOM}title") or "" for each in tree.iter(f"{_ATOM}entry")]

    def describe(self, entity: str) -> dict[str, Any]:
        """The offsets and the readers of a feed."""
        page = f"/{quote(entity)}/$feed"
        found: dict[str, Any] = json.loads(self._read(entity, page))
        found["readers"] = json.loads(self._read(entity, f"{page}/readers"))
        return found

    def lines(self, entity: str, fragment: int, start: int, wait_s: int) -> Iterator[bytes | int]:
        """The events from an offset on, as JSON lines; at the end the next offset."""
        path = f"/{quote(entity)}/$feed/{fragment}?from={start}&timeout={wait_s}"
        response = self._get(entity, path, {"Accept": "application/x-ndjson"})
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

    def _read(self, entity: str, path: str) -> bytes:
        response = self._get(entity, path)
        with self._reached():
            return response.read()

    def _get(
        self, entity: str, path: str, headers: dict[str, str] | None = None
    ) -> http.client.HTTPResponse:
        """With a token for the entity alone: the entity's own keys open nothing else."""
        connection = self._connected()
        with self._reached():
            token = self._namespace.token(entity, time.time())
            given = {"Authorization": token, **(headers or {})}
            connection.request("GET", path, headers=given)
            response = connection.getresponse()
            if response.status == 200:
                return response
            failed = FeedUnreachable if response.status in LATER else FeedFailed
            raise failed(_told(response.status, response.read()))

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
            where, context = self._namespace, self._namespace.tls_context()
            self._connection = (
                http.client.HTTPConnection(where.host, where.port, timeout=TIMEOUT_S)
                if context is None
                else http.client.HTTPSConnection(
                    where.host, where.port, timeout=TIMEOUT_S, context=context
                )
            )
        return self._connection


def _told(status: int, body: bytes) -> str:
    """The text of a refusal, which is XML or JSON."""
    try:
        text = json.loads(body)["detail"]
    except (ValueError, KeyError, TypeError):
        try:
            text = fromstring(body).findtext("Detail") or ""
        except SyntaxError:
            text = body.decode(errors="replace")[:500]
    return f"{text} (HTTP {status})"
