"""No key of a `$management` request is accepted and ignored: it is obeyed, or refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from postbus.amqp.codec.types import Int, Long, Timestamp, UInt
from postbus.amqp.sections import (
    encode_data,
    read_application_properties,
    read_delivery_annotations,
    read_properties,
    scan,
)
from postbus.gateway.management_keys import KEYS
from postbus.gateway.management_rules import RULE_OPERATIONS
from postbus.gateway.management_sessions import SESSION_OPERATIONS
from tests.support.access import Caller
from tests.support.administration import Administration
from tests.support.bus import Topic
from tests.support.rest import RestClient
from tests.support.server import Server

ROOT = "RootManageSharedAccessKey", "SAS_KEY_VALUE"
NUMBERS = [Long(1)]
TOKENS = [UUID(int=1)]

# A request of each operation that has every key, each with a value of the right type.
REQUESTS: dict[str, dict[str, Any]] = {
    "renew-lock": {"lock-tokens": TOKENS},
    "peek-message": {
        "from-sequence-number": Long(0),
        "message-count": Int(1),
        "session-id": "s",
        "omit-message-body": True,
    },
    "schedule-message": {"messages": [{"message": encode_data(b"x")}]},
    "cancel-scheduled-message": {"sequence-numbers": NUMBERS},
    "receive-by-sequence-number": {
        "sequence-numbers": NUMBERS,
        "receiver-settle-mode": UInt(1),
        "session-id": "s",
    },
    "update-disposition": {
        "disposition-status": "suspended",
        "lock-tokens": TOKENS,
        "deadletter-reason": "r",
        "deadletter-description": "d",
        "properties-to-modify": {"k": "v"},
        "session-id": "s",
    },
    "batch-delete-messages": {
        "message-count": Int(1),
        "enqueued-time-utc": Timestamp(0),
        "session-id": "s",
    },
    "renew-session-lock": {"session-id": "s"},
    "set-session-state": {"session-id": "s", "session-state": b"x"},
    "get-session-state": {"session-id": "s"},
    "get-message-sessions": {
        "last-updated-time": Timestamp(0),
        "skip": Int(0),
        "top": Int(1),
        "last-session-id": "s",
    },
    "add-rule": {"rule-name": "r", "rule-description": {"sql-filter": {"expression": "1=1"}}},
    "remove-rule": {"rule-name": "r"},
    "enumerate-rules": {"skip": Int(0), "top": Int(1)},
}

# Maps inside of a request, with something in them that nobody knows.
NESTED: dict[str, tuple[str, dict[str, Any]]] = {
    "entry": ("schedule-message", {"messages": [{"message": encode_data(b"x"), "odd": 1}]}),
    "rule": ("add-rule", {"rule-name": "r", "rule-description": {"odd": {}}}),
    "sql filter": (
        "add-rule",
        {"rule-name": "r", "rule-description": {"sql-filter": {"expression": "1=1", "odd": 1}}},
    ),
    "correlation filter": (
        "add-rule",
        {"rule-name": "r", "rule-description": {"correlation-filter": {"to": "x", "odd": 1}}},
    ),
    "action": (
        "add-rule",
        {
            "rule-name": "r",
            "rule-description": {"sql-rule-action": {"expression": "SET a = 1", "odd": 1}},
        },
    ),
}


class Nodes:
    """A queue, a queue with sessions, and a subscription: each operation has its node."""

    def __init__(self, server: Server) -> None:
        administration = Administration(server.connection_string)
        self._queue = administration.make_queue()
        self._sessional = administration.make_queue(requires_session=True)
        topic = Topic(administration.make_topic())
        subscription = administration.make_subscription(topic)
        self._subscription = f"{topic}/Subscriptions/{subscription.name}"
        self._caller = Caller(server, *ROOT)

    def ask(self, operation: str, body: Any) -> tuple[int, str, Any]:
        path = self._queue
        if operation in SESSION_OPERATIONS:
            path = self._sessional
        elif operation in RULE_OPERATIONS:
            path = self._subscription
        asked = {"operation": f"com.microsoft:{operation}"}
        return self._caller.call(f"{path}/$management", asked, body)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(Path(tmp_path_factory.mktemp("keys")) / "data").start()
    yield running
    running.discard()


@pytest.fixture(scope="module")
def nodes(server: Server) -> Nodes:
    return Nodes(server)


def test_the_table_has_every_key() -> None:
    assert {operation: set(request) for operation, request in REQUESTS.items()} == KEYS


@pytest.mark.parametrize("operation", REQUESTS)
def test_a_key_that_nobody_knows_is_refused_and_a_null_is_nothing(
    nodes: Nodes, operation: str
) -> None:
    odd = {**REQUESTS[operation], "odd-key": True}
    status, text, _ = nodes.ask(operation, odd)
    assert (status, text.startswith("'odd-key' is not known here.")) == (400, True)
    plain = nodes.ask(operation, {**REQUESTS[operation], "odd-key": None})
    assert "odd-key" not in plain[1]


@pytest.mark.parametrize(
    ("operation", "key"), [(one, key) for one, request in REQUESTS.items() for key in request]
)
def test_every_key_is_looked_at(nodes: Nodes, operation: str, key: str) -> None:
    """A value that cannot be meant is refused by the name of its key."""
    wrong = 3.5 if key != "omit-message-body" else "yes"
    status, text, _ = nodes.ask(operation, {**REQUESTS[operation], key: wrong})
    assert (status, f"'{key}' " in text) == (400, True), text


@pytest.mark.parametrize("where", NESTED)
def test_the_maps_inside_of_a_request_are_looked_at_too(nodes: Nodes, where: str) -> None:
    status, text, _ = nodes.ask(*NESTED[where])
    assert (status, text.startswith("'odd' is not known here.")) == (400, True), text


@pytest.mark.parametrize(
    ("operation", "change", "said"),
    [
        ("receive-by-sequence-number", {"receiver-settle-mode": UInt(2)}, "mode 2 is not known"),
        ("update-disposition", {"disposition-status": "deferred"}, "'deferred' is not known"),
        ("update-disposition", {"disposition-status": "abandoned"}, "has no reason"),
        (
            "update-disposition",
            {
                "disposition-status": "completed",
                "deadletter-reason": None,
                "deadletter-description": None,
            },
            "no properties to modify",
        ),
        ("peek-message", {"message-count": Int(0)}, "must be positive"),
        ("batch-delete-messages", {"message-count": Int(-1)}, "must be positive"),
        ("get-message-sessions", {"top": Int(0)}, "must be positive"),
        ("enumerate-rules", {"skip": Int(-1)}, "must not be negative"),
    ],
)
def test_a_value_that_would_be_ignored_is_refused(
    nodes: Nodes, operation: str, change: dict[str, Any], said: str
) -> None:
    status, text, _ = nodes.ask(operation, {**REQUESTS[operation], **change})
    assert (status, said in text) == (400, True), text


@pytest.mark.parametrize("omit", [True, False, None])
def test_a_peek_leaves_out_bodies_where_it_is_asked_to(server: Server, omit: bool | None) -> None:
    queue = Administration(server.connection_string).make_queue()
    with RestClient(server.connection_string) as client:
        assert client.send(queue, b"x" * 5_000, headers={"kind": '"tea"'}).status == 201
    whole = len(encode_data(b"x" * 5_000))
    asked = {"from-sequence-number": Long(0), "message-count": Int(1), "omit-message-body": omit}
    with Caller(server, *ROOT) as caller:
        operation = {"operation": "com.microsoft:peek-message"}
        _, _, answer = caller.call(f"{queue}/$management", operation, asked)
    payload = answer["messages"][0]["message"]
    sections = scan(payload)
    assert sections.footer - sections.body == (0 if omit else whole)
    assert read_application_properties(payload, sections) == {"kind": "tea"}
    assert read_properties(payload, sections).message_id
    said = read_delivery_annotations(payload, sections)
    assert said == ({"omitted-message-body-size": whole} if omit else {})
