"""Which request is about messages, who may ask, and what comes back; the mailbox is in memory."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from postbus.auth.keyring import AccessKey
from postbus.auth.sas import create_sas
from postbus.errors import InvalidArgument, MessageLockLost, QuotaExceeded
from postbus.http import messages
from postbus.http.messages import MessageSelector, find_target
from postbus.model.authorization import Right
from postbus.model.plain_message import MessageState, Moment, PlainMessage, ReceivedMessage
from tests.unit.http import fakes
from tests.unit.http.fakes import LISTENER, T0, Client, MemoryNamespace, Reply, token
from tests.unit.http.mailbox import ROOM, MemoryMailbox

TOKEN = UUID("33221100-5544-7766-8899-aabbccddeeff")
SENDER = AccessKey("sender", ("send-key",), Right.SEND)


def received(message: PlainMessage | None = None, locked: bool = True) -> ReceivedMessage:
    return ReceivedMessage(
        message or PlainMessage(b"tea", message_id="m1"),
        number=7,
        enqueue_number=7,
        enqueued_at=T0,
        failures=0,
        state=MessageState.ACTIVE,
        token=TOKEN if locked else None,
        locked_until=T0 + 30_000 if locked else 0,
    )


def client_of(mailbox: MemoryMailbox, authorization: str | None = None) -> Client:
    client = Client(fakes.application(MemoryNamespace(), mailbox=mailbox), authorization)
    client.stays = True
    return client


async def ask(mailbox: MemoryMailbox, method: str, path: str, **options: object) -> Reply:
    return await client_of(mailbox).send(method, path, **options)  # type: ignore[arg-type]


# -- paths -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "entity", "place", "reference"),
    [
        ("POST", "/orders/messages", "orders", MessageSelector.ALL, ""),
        ("POST", "/orders/Messages/", "orders", MessageSelector.ALL, ""),
        ("POST", "/eu%2Forders/messages", "eu/orders", MessageSelector.ALL, ""),
        ("POST", "/eu/messages/messages", "eu/messages", MessageSelector.ALL, ""),
        ("DELETE", "/orders/messages/head", "orders", MessageSelector.HEAD, ""),
        (
            "POST",
            "/orders/$DeadLetterQueue/messages/HEAD",
            "orders/$DeadLetterQueue",
            MessageSelector.HEAD,
            "",
        ),
        (
            "POST",
            "/news/subscriptions/all/messages/head",
            "news/subscriptions/all",
            MessageSelector.HEAD,
            "",
        ),
        ("PUT", f"/orders/messages/7/{TOKEN}", "orders", MessageSelector.LOCKED, "7"),
        (
            "DELETE",
            f"/orders/messages/a%2Fb/{str(TOKEN).upper()}",
            "orders",
            MessageSelector.LOCKED,
            "a/b",
        ),
        ("POST", f"/a/b/messages/x/{TOKEN}", "a/b", MessageSelector.LOCKED, "x"),
    ],
)
def test_a_path_names_messages(
    method: str, path: str, entity: str, place: MessageSelector, reference: str
) -> None:
    target = find_target(method, path)
    assert target is not None
    assert (target.path, target.place, target.reference) == (entity, place, reference)
    assert (target.token == TOKEN) is (place is MessageSelector.LOCKED)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/messages"),
        ("POST", "/messages/head"),
        ("GET", "/orders/messages"),
        ("PUT", "/eu/messages"),
        ("DELETE", "/eu/messages"),
        ("PUT", "/eu/messages/of/today"),
        ("POST", "/orders"),
        ("POST", "/"),
    ],
)
def test_other_paths_are_not_about_messages(method: str, path: str) -> None:
    assert find_target(method, path) is None


def test_a_lock_token_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="lock token 'nonsense' is not a GUID"):
        find_target("POST", "/orders/messages/7/nonsense")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/orders/messages/head", "POST, DELETE"),
        ("PUT", "/orders/messages/head", "POST, DELETE"),
        ("GET", f"/orders/messages/7/{TOKEN}", "DELETE, PUT, POST"),
    ],
)
async def test_a_wrong_method_is_told_the_right_ones(method: str, path: str, allowed: str) -> None:
    reply = await ask(MemoryMailbox(), method, path)
    assert (reply.status, reply.headers["allow"]) == (405, allowed)


# -- rights ------------------------------------------------------------------------------------


REQUESTS = [
    ("POST", "/orders/messages", "Send"),
    ("POST", "/orders/messages/head", "Listen"),
    ("DELETE", "/orders/messages/head", "Listen"),
    ("POST", "/orders/$DeadLetterQueue/messages/head", "Listen"),
    ("DELETE", f"/orders/messages/7/{TOKEN}", "Listen"),
    ("PUT", f"/orders/messages/7/{TOKEN}", "Listen"),
    ("POST", f"/orders/messages/7/{TOKEN}", "Listen"),
]


@pytest.mark.parametrize(("method", "path", "right"), REQUESTS)
async def test_each_request_needs_its_right(
    monkeypatch: pytest.MonkeyPatch, method: str, path: str, right: str
) -> None:
    monkeypatch.setattr(fakes, "LISTENER", SENDER if right == "Listen" else LISTENER)
    key = fakes.LISTENER
    wrong = create_sas(key.name, key.keys[0], "http://localhost/orders", T0 + 1_000)
    elsewhere = token("http://localhost/others")
    mailbox = MemoryMailbox()
    for authorization in (wrong, elsewhere):
        reply = await client_of(mailbox, authorization).send(method, path)
        assert reply.status == 401
        assert f"'{right}' claim(s) are required" in reply.detail
    # Whether it is there is not told either.
    mailbox.entities.clear()
    assert (await client_of(mailbox, elsewhere).send(method, path)).status == 401
    assert mailbox.sent == mailbox.asked == []


@pytest.mark.parametrize(("method", "path", "right"), REQUESTS)
async def test_no_request_goes_without_a_token(method: str, path: str, right: str) -> None:
    reply = await client_of(MemoryMailbox()).send(method, path, authorized=False)
    assert reply.status == 401


async def test_a_token_for_the_url_of_the_messages_is_enough() -> None:
    mailbox = MemoryMailbox()
    client = client_of(mailbox, token("http://localhost:5300/orders/messages"))
    assert (await client.send("POST", "/orders/messages", b"x")).status == 201


async def test_a_token_for_one_message_is_enough_for_that_one() -> None:
    """Its id may have characters that mean something in a URL."""
    mailbox = MemoryMailbox()
    path = f"/orders/messages/a%3Fb%2525/{TOKEN}"
    client = client_of(mailbox, token(f"http://localhost:5300{path}"))
    assert (await client.delete(path)).status == 200
    assert (await client.delete(f"/orders/messages/a/{TOKEN}")).status == 401
    assert (await client.delete("/orders/messages/head")).status == 401


async def test_a_token_for_a_queue_that_is_called_so_is_not() -> None:
    mailbox = MemoryMailbox(entities={"orders", "orders/messages"})
    client = client_of(mailbox, token("http://localhost:5300/orders/messages"))
    assert (await client.send("POST", "/orders/messages", b"x")).status == 401
    assert (await client.send("POST", "/orders/messages/messages", b"x")).status == 201
    assert [path for path, _ in mailbox.sent] == ["orders/messages"]


# -- send --------------------------------------------------------------------------------------


async def test_a_message_is_body_headers_and_broker_properties() -> None:
    mailbox = MemoryMailbox()
    reply = await ask(
        mailbox,
        "POST",
        "/orders/messages?timeout=60",
        body=[b"two ", b"cups"],
        headers={
            "Content-Type": "text/plain",
            "BrokerProperties": json.dumps({"Label": "M1", "TimeToLive": 40, "Unknown": [1]}),
            "Priority": '"High"',
            "Count": "42",
            "x-ms-retrypolicy": "NoRetry",
            "UserProperties": '{"an odd name": true}',
        },
    )
    assert (reply.status, reply.body) == (201, b"")
    assert reply.headers["content-type"] == "application/xml; charset=utf-8"
    [(path, [message])] = mailbox.sent
    assert path == "orders"
    assert message == PlainMessage(
        b"two cups",
        "text/plain",
        label="M1",
        time_to_live_ms=40_000,
        properties={"priority": "High", "count": 42, "an odd name": True},
    )


async def test_a_batch_is_sent_at_once() -> None:
    mailbox = MemoryMailbox()
    reply = await ask(
        mailbox,
        "POST",
        "/orders/messages",
        body=b'[{"Body":"1"},{"Body":"2","UserProperties":{"Priority":"Low"}}]',
        headers={
            "Content-Type": "application/vnd.microsoft.servicebus.json; charset=utf-8",
            "Priority": '"ignored: each item has its own"',
        },
    )
    assert reply.status == 201
    [(_, messages)] = mailbox.sent
    assert [message.body for message in messages] == [b"1", b"2"]
    assert [message.properties for message in messages] == [{}, {"Priority": "Low"}]


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"BrokerProperties": "{"}, "The HTTP header 'BrokerProperties' is not valid JSON"),
        ({"BrokerProperties": "[]"}, "'BrokerProperties' is not a JSON object"),
        ({"BrokerProperties": '{"Label":1}'}, "'Label' must be a string, not 1"),
        ({"UserProperties": '{"a":[]}'}, "'a' must be a string, a number"),
        ({"Colour": "1", "UserProperties": '{"colour":2}'}, "repeats 'colour'"),
        ({"Content-Type": "text/plän"}, "'content-type' is not ASCII"),
    ],
)
async def test_what_cannot_be_read_is_refused_by_its_name(
    headers: dict[str, str], text: str
) -> None:
    mailbox = MemoryMailbox()
    client = client_of(mailbox)
    reply = await client.send("POST", "/orders/messages", b"x", headers=headers)
    assert reply.status == 400
    assert text in reply.detail
    assert client.chunks_taken == 0, "the body was read for nothing"
    assert mailbox.sent == []
    assert mailbox.refusals == ["com.microsoft:argument-error"]


async def test_a_header_twice_is_refused() -> None:
    client = client_of(MemoryMailbox())
    headers = {"Priority": "1", "PRIORITY": "2"}
    reply = await client.send("POST", "/orders/messages", b"x", headers=headers)
    assert (reply.status, "'priority' is there twice" in reply.detail) == (400, True)


async def test_a_body_is_bounded_before_it_is_read() -> None:
    mailbox = MemoryMailbox()
    client = client_of(mailbox)
    headers = {"Content-Length": str(ROOM + 1)}
    reply = await client.send("POST", "/orders/messages", b"x", headers=headers)
    assert (reply.status, client.chunks_taken) == (403, 0)
    assert f"exceeds the limit ({ROOM} bytes)" in reply.detail
    # Nor is more of it read than that, where the length is not told.
    chunks = [b"x" * 400] * 10
    reply = await client.send("POST", "/orders/messages", chunks)
    assert (reply.status, client.chunks_taken) == (403, 3)
    assert mailbox.refusals == ["amqp:link:message-size-exceeded"] * 2
    assert mailbox.sent == []
    assert (await client.send("POST", "/orders/messages", [b"x" * ROOM])).status == 201


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_an_entity_that_is_not_there_is_404(method: str) -> None:
    reply = await ask(MemoryMailbox(), method, "/absent/messages/head")
    assert (reply.status, "could not be found" in reply.detail) == (404, True)
    if method == "POST":
        assert (await ask(MemoryMailbox(), method, "/absent/messages", body=b"x")).status == 404


async def test_a_full_entity_is_403() -> None:
    reply = await ask(
        MemoryMailbox(failure=QuotaExceeded("full")), "POST", "/orders/messages", body=b"x"
    )
    assert (reply.status, reply.detail.startswith("SubCode=40300. full")) == (403, True)


async def test_a_management_node_holds_no_messages() -> None:
    assert (await ask(MemoryMailbox(), "POST", "/orders/$management/messages")).status == 400


# -- receive -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "wait_ms"),
    [("", 60_000), ("?timeout=0", 0), ("?timeout=5", 5_000), ("?timeout=999999999", 240_000)],
)
@pytest.mark.parametrize(("method", "deletes"), [("POST", False), ("DELETE", True)])
async def test_a_receive_waits_as_long_as_it_says(
    method: str, deletes: bool, query: str, wait_ms: int
) -> None:
    mailbox = MemoryMailbox()
    reply = await ask(mailbox, method, f"/orders/messages/head{query}")
    assert mailbox.asked == [("receive", "orders", deletes, wait_ms)]
    assert (reply.status, reply.body) == (204, b"")
    assert "content-length" not in reply.headers


@pytest.mark.parametrize("timeout", ["", "-1", "1.5", "x", "1" * 10, "%D9%A3"])
async def test_a_wait_that_is_none_is_refused(timeout: str) -> None:
    reply = await ask(MemoryMailbox(), "POST", f"/orders/messages/head?timeout={timeout}")
    assert (reply.status, "'timeout' must be" in reply.detail) == (400, True)


async def test_a_locked_message_says_where_it_is() -> None:
    mailbox = MemoryMailbox(next=received())
    reply = await ask(mailbox, "POST", "/orders/messages/head")
    assert (reply.status, reply.body) == (201, b"tea")
    location = f"http://localhost:5300/orders/messages/7/{TOKEN}"
    assert reply.headers["Location"] == location
    assert json.loads(reply.headers["BrokerProperties"])["LockToken"] == str(TOKEN)
    assert reply.headers["content-type"] == "application/xml; charset=utf-8"


async def test_a_message_of_a_dead_letter_queue_is_settled_there() -> None:
    mailbox = MemoryMailbox(next=received())
    reply = await ask(mailbox, "POST", "/orders/$deadletterqueue/messages/head")
    path = reply.headers["Location"].removeprefix("http://localhost:5300")
    assert path == f"/orders/$DeadLetterQueue/messages/7/{TOKEN}"
    assert (await ask(mailbox, "DELETE", path)).status == 200
    assert mailbox.asked[-1] == ("complete", "orders/$DeadLetterQueue", "7", str(TOKEN))


async def test_a_removed_message_has_no_lock() -> None:
    mailbox = MemoryMailbox(next=received(locked=False))
    reply = await ask(mailbox, "DELETE", "/orders/messages/head")
    assert (reply.status, reply.body) == (200, b"tea")
    assert "Location" not in reply.headers
    properties = json.loads(reply.headers["BrokerProperties"])
    assert not {"LockToken", "LockedUntilUtc"} & set(properties)


async def test_a_reply_carries_what_the_message_says() -> None:
    message = PlainMessage(
        b"\x1f\x8b",
        content_type="text/plain",
        content_encoding="gzip",
        properties={"Priority": "High", "At": Moment(T0), "an odd name": 1},
    )
    reply = await ask(MemoryMailbox(next=received(message)), "POST", "/orders/messages/head")
    assert reply.headers["content-type"] == "text/plain"
    assert reply.headers["content-encoding"] == "gzip"
    assert reply.headers["Priority"] == '"High"'
    assert reply.headers["At"] == '"Tue, 14 Nov 2023 22:13:20 GMT"'
    assert reply.headers["UserProperties"] == '{"an odd name":1}'


@pytest.mark.parametrize("content_type", ["a\r\nSet-Cookie: b", "\x7f", ""])
async def test_a_content_type_that_no_header_can_hold_is_not_told(content_type: str) -> None:
    message = PlainMessage(b"x", content_type=content_type, content_encoding="utf-8\r\n")
    reply = await ask(MemoryMailbox(next=received(message)), "POST", "/orders/messages/head")
    assert reply.headers["content-type"] == "application/xml; charset=utf-8"
    assert not {"content-encoding", "set-cookie"} & set(reply.headers)


async def test_nobody_is_answered_who_has_gone() -> None:
    client = client_of(MemoryMailbox(next=received()))
    client.stays = False
    assert (await client.send("POST", "/orders/messages/head")).status == 0


# -- settle ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "how"), [("DELETE", "complete"), ("PUT", "unlock"), ("POST", "renew")]
)
async def test_a_lock_is_settled_by_its_url(method: str, how: str) -> None:
    mailbox = MemoryMailbox()
    reply = await ask(mailbox, method, f"/orders/messages/m%201/{TOKEN}")
    assert (reply.status, reply.body) == (200, b"")
    assert mailbox.asked == [(how, "orders", "m 1", str(TOKEN))]


async def test_a_lost_lock_is_410() -> None:
    mailbox = MemoryMailbox(failure=MessageLockLost())
    reply = await ask(mailbox, "DELETE", f"/orders/messages/7/{TOKEN}")
    assert (reply.status, "The lock supplied is invalid" in reply.detail) == (410, True)
    assert mailbox.refusals == ["com.microsoft:message-lock-lost"]


async def test_all_bodies_together_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "BODIES_MAX_BYTES", 500)
    client = client_of(MemoryMailbox())
    assert (await client.send("POST", "/orders/messages", [b"x" * 300] * 2)).status == 503
    for _ in range(3):
        assert (await client.send("POST", "/orders/messages", [b"x" * 400])).status == 201
