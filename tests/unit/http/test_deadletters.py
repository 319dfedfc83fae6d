"""Who may have dead letters sent again over HTTP, what a request can say, and what comes back."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from typing import Any

import pytest

from postbus.auth.keyring import AccessKey
from postbus.auth.sas import create_sas
from postbus.errors import EntityNotFound, StoreUnavailable
from postbus.http import deadletters
from postbus.http.deadletters import REQUEST_MAX_BYTES, Ask, find_ask
from postbus.model.authorization import Right
from postbus.model.plain_message import Edits
from tests.unit.http import fakes
from tests.unit.http.fakes import KEY, KEY_NAME, LISTENER, T0, Client, MemoryNamespace, Reply
from tests.unit.http.resubmission import MemoryResubmission

DEAD = "/orders/$DeadLetterQueue"
RESUBMIT = f"{DEAD}/$resubmit"


def client_of(resubmission: MemoryResubmission, authorization: str | None = None) -> Client:
    return Client(fakes.application(MemoryNamespace(), resubmission=resubmission), authorization)


async def ask(
    resubmission: MemoryResubmission, body: object, path: str = RESUBMIT, method: str = "POST"
) -> Reply:
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await client_of(resubmission).send(method, path, sent)


def messages(*edits: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "messages": [
            {"sequenceNumber": place, **({} if each is None else {"edits": each})}
            for place, each in enumerate(edits)
        ]
    }


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (RESUBMIT, Ask("orders/$DeadLetterQueue", "$resubmit")),
        (
            "/eu%2Forders/$deadletterqueue/%24Discard/",
            Ask("eu/orders/$deadletterqueue", "$discard"),
        ),
        (
            "/news/subscriptions/all/$DeadLetterQueue/$RESUBMIT",
            Ask("news/subscriptions/all/$DeadLetterQueue", "$resubmit"),
        ),
        ("/$resubmit", None),
        ("/orders/resubmit", None),
        ("/orders", None),
    ],
)
def test_a_path_asks_for_dead_letters(path: str, found: Ask | None) -> None:
    assert find_ask(path) == found


async def test_each_message_has_an_outcome_of_its_own() -> None:
    """R-DLQ-08."""
    resubmission = MemoryResubmission(
        outcomes={1: ("not found", ""), 2: ("locked", ""), 3: ("refused", "too large")}
    )
    reply = await ask(resubmission, messages(None, None, None, None))
    assert reply.status == 200 and reply.headers["content-type"] == "application/json"
    assert json.loads(reply.body) == {
        "results": [
            {"sequenceNumber": 0, "outcome": "moved"},
            {"sequenceNumber": 1, "outcome": "not found"},
            {"sequenceNumber": 2, "outcome": "locked"},
            {"sequenceNumber": 3, "outcome": "refused", "detail": "too large"},
        ]
    }
    [(verb, source, to, asked)] = resubmission.asked
    assert (verb, source, to) == ("resubmit", "orders/$DeadLetterQueue", None)
    assert asked == [(place, Edits()) for place in range(4)]


async def test_edits_are_read_as_they_are_meant() -> None:
    resubmission = MemoryResubmission()
    edits = {
        "body": b64encode(b"tea").decode(),
        "properties": {"a": 1, "b": None, "c": "text", "d": 2.5, "e": True},
        "messageId": "m",
        "sessionId": None,
        "contentType": "text/plain",
        "timeToLive": 60_000,
        "scheduledEnqueueTime": None,
    }
    reply = await ask(resubmission, {"to": "other/queue", **messages(edits, {})})
    assert reply.status == 200
    [(_, _, to, asked)] = resubmission.asked
    assert to == "other/queue"
    assert asked == [
        (
            0,
            Edits(
                b"tea",
                {"a": 1, "b": None, "c": "text", "d": 2.5, "e": True},
                {"messageId": "m", "sessionId": None, "contentType": "text/plain"},
                {"timeToLive": 60_000, "scheduledEnqueueTime": None},
            ),
        ),
        (1, Edits()),
    ]


async def test_numbers_are_thrown_away() -> None:
    resubmission = MemoryResubmission(outcomes={7: ("locked", "")})
    path = "/news/subscriptions/all/$DeadLetterQueue/$discard"
    reply = await ask(resubmission, {"sequenceNumbers": [5, 7]}, path)
    assert json.loads(reply.body)["results"] == [
        {"sequenceNumber": 5, "outcome": "removed"},
        {"sequenceNumber": 7, "outcome": "locked"},
    ]
    assert resubmission.asked == [
        ("discard", "news/Subscriptions/all/$DeadLetterQueue", [5, 7]),
    ]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"nonsense", "The request is not valid JSON"),
        ([], "The request is not a JSON object"),
        ({}, "'messages' must be a list"),
        ({"messages": []}, "not an empty one"),
        ({"messages": [5]}, "messages[0] is not a JSON object"),
        ({"messages": [{}]}, "messages[0].sequenceNumber must be a whole number"),
        ({"messages": [{"sequenceNumber": True}]}, "must be a whole number"),
        ({"messages": [{"sequenceNumber": -1}]}, "must be a whole number"),
        ({"messages": [{"sequenceNumber": 1 << 63}]}, "must be a whole number"),
        ({"messages": [{"sequenceNumber": 1, "edit": {}}]}, "messages[0] has 'edit'"),
        ({"messages": [{"sequenceNumber": 1}], "dry": True}, "The request has 'dry'"),
        ({"to": 5, **messages(None)}, "'to' must be the name of an entity"),
        ({"to": "/", **messages(None)}, "'to' must be the name of an entity"),
        (messages({"label": "x"}), "messages[0].edits has 'label', which is not known"),
        (messages(None, {"body": "?"}), "messages[1].edits.body must be a string in base64"),
        (messages({"body": None}), "must be a string in base64"),
        (messages({"body": "é"}), "must be a string in base64"),
        (messages({"properties": []}), "properties is not a JSON object"),
        (messages({"properties": {"a": [1]}}), "properties['a'] must be a string, a number"),
        (messages({"properties": {"a": 1 << 63}}), "must be a number of 64 bits"),
        (messages({"messageId": None}), "messageId must be a string"),
        (messages({"messageId": ""}), "messageId must be a string"),
        (messages({"subject": 5}), "subject must be a string"),
        (messages({"contentType": "é"}), "contentType must be a string in ASCII"),
        (messages({"timeToLive": 0}), "timeToLive must be a number of milliseconds"),
        (messages({"timeToLive": 1.5}), "timeToLive must be a number of milliseconds"),
        (messages(*[None] * 1_001), "'messages' has 1001 items, 1000 are allowed"),
        (b'{"messages": [{"sequenceNumber": 1, "sequenceNumber": 2}]}', "is there twice"),
        (
            b'{"messages": [{"sequenceNumber": 1, "edits": {"subject": "\\ud800"}}]}',
            "half of a surrogate pair",
        ),
        (
            b'{"messages": [{"sequenceNumber": 1, "edits": {"properties": {"\\ud800": 1}}}]}',
            "half of a surrogate pair",
        ),
    ],
)
async def test_a_request_that_cannot_be_meant_is_refused_and_says_where(
    body: object, text: str
) -> None:
    resubmission = MemoryResubmission()
    reply = await ask(resubmission, body)
    assert reply.status == 400 and text in reply.detail, reply.detail
    assert resubmission.asked == []


@pytest.mark.parametrize("numbers", [None, [], [1.5], ["1"], {}])
async def test_what_is_no_list_of_numbers_is_not_thrown_away(numbers: object) -> None:
    resubmission = MemoryResubmission()
    reply = await ask(resubmission, {"sequenceNumbers": numbers}, f"{DEAD}/$discard")
    assert reply.status == 400 and "sequenceNumbers" in reply.detail
    assert resubmission.asked == []


async def test_only_dead_letter_queues_are_asked_and_only_by_post() -> None:
    resubmission = MemoryResubmission()
    reply = await ask(resubmission, messages(None), "/orders/$resubmit")
    assert reply.status == 400 and "'orders' is no dead-letter queue" in reply.detail
    reply = await ask(resubmission, messages(None), method="PUT")
    assert (reply.status, reply.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_request_larger_than_allowed_is_not_read(chunked: bool) -> None:
    client = client_of(MemoryResubmission())
    pieces = [b" " * (1 << 20)] * 6
    headers = {} if chunked else {"content-length": str(REQUEST_MAX_BYTES + 1)}
    reply = await client.send("POST", RESUBMIT, pieces, headers)
    assert reply.status == 413 and reply.headers["connection"] == "close"
    assert client.chunks_taken == (5 if chunked else 0)


async def test_no_more_requests_are_held_than_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deadletters, "UNDER_WAY_MAX", 1)
    waits = asyncio.Event()

    class Slow(MemoryResubmission):
        async def resubmit(self, *asked: Any) -> list[tuple[str, str]]:
            await waits.wait()
            return await super().resubmit(*asked)

    client = client_of(Slow())
    body = json.dumps(messages(None)).encode()
    first = asyncio.create_task(client.send("POST", RESUBMIT, body))
    await asyncio.sleep(0)
    while (await client.send("POST", RESUBMIT, body)).status != 503:
        pass
    waits.set()
    assert (await first).status == 200
    assert (await client.send("POST", RESUBMIT, body)).status == 200


@pytest.mark.parametrize(
    ("failure", "status"), [(EntityNotFound("sb://ns/orders"), 404), (StoreUnavailable("x"), 503)]
)
async def test_what_cannot_be_done_at_all_is_refused_as_a_whole(
    failure: Exception, status: int
) -> None:
    resubmission = MemoryResubmission(failure=failure)  # type: ignore[arg-type]
    assert (await ask(resubmission, messages(None))).status == status


# -- rights ------------------------------------------------------------------------------------


def signed(key: AccessKey, uri: str = "http://localhost:5300") -> str:
    return create_sas(key.name, key.keys[0], uri, T0 + 3_600_000)


@pytest.mark.parametrize("verb", ["$resubmit", "$discard"])
async def test_who_may_only_listen_or_send_may_not_do_it(verb: str) -> None:
    resubmission = MemoryResubmission()
    client = client_of(resubmission, signed(LISTENER))
    reply = await client.send("POST", f"{DEAD}/{verb}", json.dumps(messages(None)).encode())
    assert reply.status == 401 and "'Manage' claim(s) are required" in reply.detail
    assert resubmission.asked == []


@pytest.mark.parametrize(
    ("resource", "to", "status"),
    [
        ("orders", None, 200),
        ("orders/$DeadLetterQueue", None, 401),
        ("orders", "orders", 200),
        ("orders", "other", 401),
        ("other", None, 401),
        ("", "other", 200),
    ],
)
async def test_a_token_must_be_for_the_entity_and_for_where_they_go(
    resource: str, to: str | None, status: int
) -> None:
    resubmission = MemoryResubmission()
    root = AccessKey(KEY_NAME, (KEY,), Right.MANAGE)
    client = client_of(resubmission, signed(root, f"http://localhost:5300/{resource}"))
    body = json.dumps({"to": to, **messages(None)}).encode()
    reply = await client.send("POST", RESUBMIT, body)
    assert reply.status == status, reply.text
    assert len(resubmission.asked) == (1 if status == 200 else 0)
