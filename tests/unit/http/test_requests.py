"""Which request goes where, who may ask, and how everything else is refused."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.auth.sas import create_sas
from postbus.errors import OutcomeUnknown, QuotaExceeded, StoreUnavailable
from postbus.http.atom import ATOM
from postbus.http.routing import BODY_MAX_BYTES
from postbus.model.description import QueueDescription
from tests.unit.http.fakes import (
    KEY,
    KEY_NAME,
    LISTENER,
    TRACKING_ID,
    Client,
    Health,
    application,
    entry,
    token,
)
from tests.unit.http.memory import T0, MemoryNamespace

V = "?api-version=2021-05"


def client_of(namespace: MemoryNamespace | None = None, authorization: str | None = None) -> Client:
    return Client(application(namespace or MemoryNamespace()), authorization)


async def test_a_refusal_ends_with_a_tracking_id() -> None:
    # R-SETTLE-02
    reply = await client_of().delete("/orders" + V)
    assert reply.detail.endswith(
        f" TrackingId:{TRACKING_ID}_G0, SystemTracker:test-namespace:orders, "
        "Timestamp:2023-11-14T22:13:20"
    )


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("authorized", [True, False])
@pytest.mark.parametrize("query", ["", V])
async def test_the_root_is_a_feed_without_entries_for_everybody(
    method: str, authorized: bool, query: str
) -> None:
    namespace = MemoryNamespace()
    await namespace.create_queue("secret", QueueDescription())
    client = Client(application(namespace))
    reply = await client.send(method, "/" + query, authorized=authorized)
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/atom+xml;type=feed;charset=utf-8"
    assert b"secret" not in reply.body
    if method == "GET":
        [title] = reply.xml.iter(f"{{{ATOM}}}title")
        assert title.text == "Publicly Listed Services"  # by which Go's client knows it
        assert not list(reply.xml.iter(f"{{{ATOM}}}entry"))


@pytest.mark.parametrize("path", ["/orders", "/eu/orders"])
async def test_what_is_not_there_is_an_empty_feed_for_those_who_may_know(path: str) -> None:
    reply = await client_of().get(path + V)
    assert (reply.status, [each.tag for each in reply.xml]) == (
        200,
        [f"{{{ATOM}}}{name}" for name in ("title", "subtitle", "id", "updated", "generator")],
    )
    assert (await client_of().get(path + V, authorized=False)).status == 401


async def test_health_is_told_without_a_token() -> None:
    health = Health(details={"message": "all is well", "stores": 1})
    app = application(MemoryNamespace(), health)
    reply = await Client(app).get("/health", authorized=False)
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    assert json.loads(reply.body) == {"status": "healthy", "message": "all is well", "stores": 1}
    health.healthy, health.details = False, {}
    reply = await Client(app).get("/health", authorized=False)
    assert reply.status == 503
    assert json.loads(reply.body) == {
        "status": "unhealthy",
        "message": "The broker is unhealthy.",
    }


async def test_metrics_are_told_without_a_token() -> None:
    reply = await client_of().get("/metrics", authorized=False, headers={"accept": "text/plain"})
    assert (reply.status, reply.body) == (200, b"# HELP messages\n")
    assert reply.headers["content-type"] == "text/plain; asked=text/plain"


async def test_a_queue_may_be_called_health_or_metrics() -> None:
    client = client_of()
    for name in ("health", "metrics"):
        assert (await client.put(f"/{name}{V}", entry())).status == 201
        assert (await client.get(f"/{name}{V}")).value("Status") == "Active"
        assert (await client.delete(f"/{name}{V}")).status == 200


@pytest.mark.parametrize(
    ("authorization", "text"),
    [
        (None, "SubCode=40102. MissingToken"),
        ("", "no issuer of other tokens"),
        ("Bearer eyJhbGciOi.eyJhdWQi.sig", "no issuer of other tokens (JWT) is configured"),
        ("Basic dXNlcjpwYXNz", "no issuer of other tokens"),
        ("SharedAccessSignature sr=x", "SubCode=40105. claim is empty or token is invalid."),
        (
            create_sas(KEY_NAME, "wrong", "sb://h", T0 + 1_000),
            "SubCode=40103. claim is empty or token is invalid. InvalidSignature",
        ),
        (
            create_sas(KEY_NAME, KEY, "sb://h", T0 - 1_000),
            "SubCode=40106. claim is empty or token is invalid. ExpiredToken",
        ),
    ],
)
async def test_who_is_not_known_is_told_why(authorization: str | None, text: str) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    for method, path in (
        ("GET", "/orders"),
        ("PUT", "/orders"),
        ("DELETE", "/orders"),
        ("GET", "/$Resources/queues"),
        ("GET", "/$namespaceinfo"),
        ("POST", "/anything"),
    ):
        reply = await client_of().send(method, path + V, headers=headers, authorized=False)
        assert reply.status == 401
        assert text in reply.detail
        assert reply.headers["www-authenticate"] == "SharedAccessSignature"


@pytest.mark.parametrize(
    ("method", "path", "text"),
    [
        ("GET", "/orders", "Manage,EntityRead claims required for this operation"),
        ("GET", "/absent", "Manage,EntityRead claims required for this operation"),
        ("GET", "/$Resources/queues", "Manage,EntityRead claims required for this operation"),
        ("GET", "/$Resources/topics", "Manage,EntityRead claims required for this operation"),
        ("GET", "/$namespaceinfo", "Manage,EntityRead claims required for this operation"),
        ("PUT", "/orders", "Authorization failed for specified action: Manage,EntityWrite"),
        ("DELETE", "/orders", "Authorization failed for specified action: Manage,EntityDelete."),
    ],
)
async def test_who_may_not_manage_is_told_what_is_missing(
    method: str, path: str, text: str
) -> None:
    namespace = MemoryNamespace()
    await namespace.create_queue("orders", QueueDescription())
    listening = create_sas(LISTENER.name, LISTENER.keys[0], "https://localhost", T0 + 1_000)
    elsewhere = token("https://localhost/others")
    for authorization in (listening, elsewhere):
        client = client_of(namespace, authorization)
        reply = await client.send(method, path + V, entry())
        assert reply.status == 401
        assert reply.detail.startswith(f"SubCode=40100. {text}")
    reply = await client_of(namespace, listening).put(
        "/orders" + V, entry(), headers={"If-Match": "*"}
    )
    assert "Manage,EntityWrite" in reply.detail
    assert [queue.name for queue in namespace.queues()] == ["orders"]


@pytest.mark.parametrize(
    "path", ["/orders", "/$Resources/queues?$skip=0&$top=10", "/$namespaceinfo"]
)
async def test_a_token_for_just_this_url_is_enough(path: str) -> None:
    # the JS and .NET clients sign each request's own url; JS turns it into lower case
    url = f"https://localhost:5300{path}{'&' if '?' in path else '?'}api-version=2021-05".lower()
    namespace = MemoryNamespace()
    await namespace.create_queue("Orders", QueueDescription())
    client = client_of(namespace, create_sas(KEY_NAME, KEY, url, T0 + 1_000))
    assert (await client.get(path)).status == 200


@pytest.mark.parametrize("version", ["2013-10", "2017-04", "2021-05", "2024-05"])
async def test_versions_of_the_api_that_clients_use(version: str) -> None:
    assert (await client_of().get(f"/$Resources/queues?api-version={version}")).status == 200


async def test_the_version_may_be_left_out() -> None:
    client = client_of()
    assert (await client.put("/orders", entry())).status == 201
    assert (await client.get("/orders")).value("MaxMessageSizeInKilobytes") == "256"


@pytest.mark.parametrize("version", ["2013-08", "2024-06", "2021-13", "2021", "latest", ""])
async def test_a_version_that_is_not_known_is_refused(version: str) -> None:
    reply = await client_of().get(f"/$Resources/queues?api-version={version}")
    assert reply.status == 400
    assert f"The api-version '{version}' is not supported" in reply.detail


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/orders", "GET, HEAD, PUT, DELETE"),
        ("PATCH", "/orders", "GET, HEAD, PUT, DELETE"),
        ("BREW", "/orders/messages", "GET, HEAD, PUT, DELETE"),
        ("PUT", "/$namespaceinfo", "GET, HEAD"),
        ("DELETE", "/$Resources/queues", "GET, HEAD"),
        ("PUT", "/news/Subscriptions", "GET, HEAD"),
        ("POST", "/news/Subscriptions/all", "GET, HEAD, PUT, DELETE"),
        ("PUT", "/news/subscriptions/all/rules", "GET, HEAD"),
        ("PATCH", "/news/subscriptions/all/rules/one", "GET, HEAD, PUT, DELETE"),
        ("POST", "/$resources/TOPICS", "GET, HEAD"),
        ("POST", "/health", "GET, HEAD"),
        ("DELETE", "/metrics", "GET, HEAD"),
    ],
)
async def test_a_method_that_a_path_does_not_have(method: str, path: str, allowed: str) -> None:
    reply = await client_of().send(method, path)
    assert reply.status == 405
    assert reply.headers["allow"] == allowed
    assert f"The specified HTTP verb ({method}) is not valid." in reply.detail


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/"),
        ("DELETE", "/"),
        ("GET", "/$Resources"),
        ("GET", "/$Resources/relays"),
        ("GET", "/$cbs"),
        ("PUT", "/$anything/else"),
        ("GET", "/news/Subscriptions/all/anything"),
        ("PUT", "/news/Subscriptions/all/Rules/one/more"),
        ("GET", "/line%0Abreak"),
        ("PUT", "/line%0Abreak"),
    ],
)
async def test_a_path_that_leads_nowhere(method: str, path: str) -> None:
    reply = await client_of().send(method, path + V, entry())
    assert reply.status == 404
    assert "SubCode=40400. Endpoint not found" in reply.detail or "messaging entity" in reply.detail


async def test_creating_a_queue_without_a_name_is_refused() -> None:
    # what Python's client sends for create_queue("")
    reply = await client_of().put("/" + V, entry())
    assert reply.status == 400
    assert "URI_PATH" in reply.detail


async def test_a_body_is_not_read_beyond_the_limit() -> None:
    client = client_of()
    chunk = b" " * 65_536
    reply = await client.put("/orders" + V, [chunk] * 100)
    assert reply.status == 413
    assert reply.headers["connection"] == "close"
    assert f"{BODY_MAX_BYTES} bytes" in reply.detail
    assert client.chunks_taken == BODY_MAX_BYTES // len(chunk) + 1


async def test_a_body_announced_as_too_large_is_not_read_at_all() -> None:
    client = client_of()
    headers = {"content-length": str(BODY_MAX_BYTES + 1)}
    assert (await client.put("/orders" + V, b"x", headers=headers)).status == 413
    assert client.chunks_taken == 0


async def test_a_body_as_large_as_allowed_is_read() -> None:
    body = entry()
    body += b" " * (BODY_MAX_BYTES - len(body))
    assert (await client_of().put("/orders" + V, body)).status == 201


async def test_a_request_without_the_right_is_refused_before_its_body_is_read() -> None:
    client = client_of()
    reply = await client.put("/orders" + V, entry(), authorized=False)
    assert (reply.status, client.chunks_taken) == (401, 0)


@pytest.mark.parametrize(
    ("failure", "status", "text"),
    [
        (QuotaExceeded("The namespace is full."), 403, "SubCode=40300. The namespace is full."),
        (OutcomeUnknown("The sync failed."), 500, "SubCode=50000. The sync failed."),
        (StoreUnavailable("The disk is full."), 503, "SubCode=50004. The disk is full."),
        (
            RuntimeError("secret detail"),
            500,
            "SubCode=50000. The service was unable to process the request.",
        ),
    ],
)
async def test_what_fails_inside_is_answered_in_form(
    failure: Exception, status: int, text: str
) -> None:
    reply = await client_of(MemoryNamespace(failure=failure)).put("/orders" + V, entry())
    assert reply.status == status
    assert reply.detail.startswith(text)
    assert "secret" not in reply.text


@given(st.binary(max_size=200) | st.text(max_size=100).map(entry))
def test_any_bytes_as_a_body_are_refused_as_bad(body: bytes) -> None:
    reply = asyncio.run(client_of().put("/orders" + V, body))
    # a text that is no markup is an empty description
    assert reply.status == 400 or (reply.status == 201 and b"QueueDescription" in body)


@given(
    st.sampled_from(["GET", "PUT", "DELETE", "POST"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    st.text(st.characters(codec="latin-1"), max_size=40),
)
def test_any_path_and_any_token_get_a_reply_in_form(
    method: str, path: str, authorization: str
) -> None:
    target = "/" + quote(path)
    for headers in ({}, {"authorization": authorization}):
        reply = asyncio.run(client_of().send(method, target + V, entry(), headers))
        assert reply.status in (200, 201, 400, 401, 404, 405)
        if reply.status >= 400:
            assert "TrackingId:" in reply.detail
