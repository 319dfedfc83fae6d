"""Ways in: tokens made by hand, requests that carry them, and `$cbs` as a raw client uses it."""

from __future__ import annotations

import http.client
import time
from typing import Any, NamedTuple
from uuid import uuid4

from postbus.amqp.events import Event, LinkDetached, MessageReceived
from postbus.amqp.frames.performatives import ROLE_RECEIVER, ROLE_SENDER, Attach
from postbus.amqp.frames.terminus import Source, Target
from postbus.amqp.frames.transactions import Coordinator
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sections import (
    Properties,
    encode_amqp_value,
    encode_application_properties,
    encode_properties,
    read_application_properties,
    read_value,
    scan,
)
from postbus.amqp.sending import SenderLink
from postbus.auth.sas import create_sas
from tests.support.raw_client import RawClient, now_ms
from tests.support.server import Server


def sas(name: str, key: str, uri: str = "sb://localhost", lasts_s: float = 3_600) -> str:
    return create_sas(name, key, uri, now_ms() + int(lasts_s * 1_000))


def with_key(server: Server, name: str, key: str) -> str:
    """A connection string that has this key and not the namespace's own."""
    endpoint = server.connection_string.split(";", 1)[0]
    return (
        f"{endpoint};SharedAccessKeyName={name};SharedAccessKey={key};UseDevelopmentEmulator=true"
    )


class Answer(NamedTuple):
    status: int
    text: str


def ask(server: Server, method: str, path: str, token: str | None, body: bytes = b"") -> Answer:
    """One request; UPDATE is a PUT of what is there already."""
    connection = http.client.HTTPConnection("localhost", server.port, timeout=10)
    try:
        headers = {"If-Match": "*"} if method == "UPDATE" else {}
        if token is not None:
            headers["Authorization"] = token
        verb = "PUT" if method == "UPDATE" else method
        version = f"{'&' if '?' in path else '?'}api-version=2021-05"
        connection.request(verb, f"/{path}{version}", body, headers)
        reply = connection.getresponse()
        return Answer(reply.status, reply.read().decode())
    finally:
        connection.close()


class Refused(NamedTuple):
    condition: str
    text: str


class Caller(RawClient):
    """A raw client that asks nodes and is told why its links are refused or taken away."""

    def __init__(self, server: Server, user: str = "", key: str = "", carrier: str = "tcp") -> None:
        super().__init__(server, carrier, user, key)
        self._pairs: dict[str, tuple[SenderLink, ReceiverLink]] = {}
        self.seen: list[Event] = []

    def read(self) -> list[Event]:
        events = super().read()
        self.seen += events
        return events

    def put_token(self, audience: str, token: str) -> Answer:
        status, text, _ = self.call(
            "$cbs", {"operation": "put-token", "type": "jwt", "name": audience}, token
        )
        return Answer(status, text)

    def call(self, node: str, properties: dict[str, Any], value: Any) -> tuple[int, str, Any]:
        """Ask a node; returns status, description and value."""
        if node not in self._pairs:
            self._pairs[node] = (self.sender(node), self.receiver(node))
            self._pairs[node][1].grant(100)
        sender, receiver = self._pairs[node]
        payload = (
            encode_properties(Properties(message_id=uuid4())),
            encode_application_properties(properties),
            encode_amqp_value(value),
        )
        sender.send(uuid4().bytes, payload, settled=True)
        self.write()
        while True:
            received = self.until(MessageReceived)
            if received.link is receiver:
                break
        delivery = received.delivery
        sections = scan(delivery.payload)
        said = {
            str(k): v for k, v in read_application_properties(delivery.payload, sections).items()
        }
        status = said.get("status-code", said.get("statusCode"))
        text = said.get("status-description", said.get("statusDescription"))
        return int(status), str(text), read_value(delivery.payload, sections)  # type: ignore[arg-type]

    def attach(
        self, kind: str, address: str | Source | Target | Coordinator
    ) -> SenderLink | ReceiverLink | Refused:
        """Attach to an address, or to a whole terminus, and see what comes of it."""
        name = f"{kind}-{uuid4()}"
        if kind == "send":
            target = Target(address) if isinstance(address, str) else address
            assert not isinstance(target, Source)
            link: Any = self.session.attach(
                SenderLink, Attach(name, 0, ROLE_SENDER, source=Source("s"), target=target)
            )
        else:
            source = Source(address) if isinstance(address, str) else address
            assert isinstance(source, Source)
            link = self.session.attach(
                ReceiverLink,
                Attach(name, 0, ROLE_RECEIVER, source=source, target=Target("t")),
            )
        self.write()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            for event in self.read():
                if isinstance(event, LinkDetached) and event.link is link:
                    return _refused(event)
            granted = kind == "send" and link.sendable
            if granted or (kind == "receive" and link.attached and link.source is not None):
                return link  # type: ignore[no-any-return]
        raise AssertionError(f"no answer to the attach of {address}")

    def detached(self, link: SenderLink | ReceiverLink, within_s: float = 10.0) -> Refused:
        """Wait until the server takes the link away."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            for event in self.seen:
                if isinstance(event, LinkDetached) and event.link is link:
                    return _refused(event)
            self.read()
        raise AssertionError(f"the link to {link.name} is still there")


def _refused(event: LinkDetached) -> Refused:
    assert event.error is not None
    return Refused(str(event.error.condition), str(event.error.description))
