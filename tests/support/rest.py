"""A client of the REST API: plain http.client, one connection, headers as they were sent."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any, Self
from urllib.parse import urlsplit

from postbus.auth.sas import create_sas

BATCH = "application/vnd.microsoft.servicebus.json"


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    """By name as the server wrote it."""
    body: bytes

    @property
    def properties(self) -> dict[str, Any]:
        """What BrokerProperties says."""
        found: dict[str, Any] = json.loads(self.headers["BrokerProperties"])
        return found

    @property
    def location(self) -> str:
        """The path of a locked message."""
        return urlsplit(self.headers["Location"]).path

    @property
    def detail(self) -> str:
        found = re.fullmatch(
            rb"<Error><Code>(\d+)</Code><Detail>(.*)</Detail></Error>", self.body, re.DOTALL
        )
        assert found is not None, self.body
        assert int(found[1]) == self.status
        return found[2].decode()


class RestClient:
    """Sends one request after the other, with a token for the whole namespace unless told."""

    def __init__(self, connection_string: str, uri: str = "", key: tuple[str, str] | None = None):
        parts = dict(part.split("=", 1) for part in connection_string.split(";") if part)
        self.address = urlsplit(parts["Endpoint"]).netloc
        name, value = key or (parts["SharedAccessKeyName"], parts["SharedAccessKey"])
        expires_at = int(time.time() * 1_000) + 3_600_000
        self.token = create_sas(name, value, f"http://{self.address}/{uri}", expires_at)
        self._connection = HTTPConnection(self.address, timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def request(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Reply:
        self.begin(method, path, body, headers)
        return self.reply()

    def begin(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        """Send a request; `reply` waits for what comes back."""
        given = {"Authorization": self.token, **(headers or {})}
        self._connection.request(method, path, body, given)

    def reply(self) -> Reply:
        response = self._connection.getresponse()
        return Reply(response.status, dict(response.getheaders()), response.read())

    def send(self, entity: str, body: bytes = b"", **options: Any) -> Reply:
        """`broker` holds broker properties, `headers` whatever else is said."""
        headers = dict(options.get("headers", {}))
        if "broker" in options:
            headers["BrokerProperties"] = json.dumps(options["broker"])
        return self.request("POST", f"/{entity}/messages", body, headers)

    def send_batch(self, entity: str, items: list[Any]) -> Reply:
        body = json.dumps(items).encode()
        return self.request("POST", f"/{entity}/messages", body, {"Content-Type": BATCH})

    def lock(self, entity: str, timeout_s: int = 10) -> Reply:
        return self.request("POST", f"/{entity}/messages/head?timeout={timeout_s}")

    def take(self, entity: str, timeout_s: int = 10) -> Reply:
        return self.request("DELETE", f"/{entity}/messages/head?timeout={timeout_s}")
