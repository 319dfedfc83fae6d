"""Forwarding over HTTP: how a destination is named, that it must be there, and whose it must be."""

from __future__ import annotations

import pytest

from postbus.auth.sas import create_sas
from postbus.model.authorization import AuthorizationRule, Right
from postbus.model.description import QueueDescription, SubscriptionDescription, TopicDescription
from tests.unit.http.fakes import KEY, KEY_NAME, LISTENER, Client, application, entry, token
from tests.unit.http.memory import T0, MemoryNamespace

V = "?api-version=2021-05"
HEADERS = {
    "ForwardTo": "ServiceBusSupplementaryAuthorization",
    "ForwardDeadLetteredMessagesTo": "ServiceBusDlqSupplementaryAuthorization",
}
SOURCES = [("/source", "QueueDescription"), ("/news/Subscriptions/all", "SubscriptionDescription")]

source = pytest.mark.parametrize(("path", "kind"), SOURCES)
element = pytest.mark.parametrize("element", list(HEADERS))


@pytest.fixture
async def namespace() -> MemoryNamespace:
    namespace = MemoryNamespace()
    await namespace.create_queue("eu/Orders", QueueDescription())
    await namespace.create_topic("news", TopicDescription())
    return namespace


@pytest.fixture
def client(namespace: MemoryNamespace) -> Client:
    return Client(application(namespace))


def to(element: str, destination: str, kind: str) -> bytes:
    return entry(f"<{element}>{destination}</{element}>", kind)


def description(
    namespace: MemoryNamespace, path: str
) -> QueueDescription | SubscriptionDescription:
    if path != "/source":
        return namespace.subscription("news", "all").description
    queue = namespace.queue("source")
    assert queue is not None
    return queue.description


@source
@element
@pytest.mark.parametrize(
    ("destination", "given_back"),
    [
        ("eu/Orders", "sb://localhost:5300/eu/Orders"),
        ("eu/orders", "sb://localhost:5300/eu/orders"),
        ("/EU/ORDERS", "sb://localhost:5300/EU/ORDERS"),
        ("sb://localhost:5300/eu/Orders", "sb://localhost:5300/eu/Orders"),
        ("https://Elsewhere/EU/orders", "https://Elsewhere/EU/orders"),
        ("sb://elsewhere/eu%2Forders/", "sb://elsewhere/eu%2Forders/"),
    ],
)
async def test_a_destination_is_given_back_as_a_url_in_the_clients_own_spelling(
    client: Client,
    namespace: MemoryNamespace,
    path: str,
    kind: str,
    element: str,
    destination: str,
    given_back: str,
) -> None:
    reply = await client.put(path + V, to(element, destination, kind))
    assert reply.status == 201
    assert reply.value(element) == given_back
    again = await client.put(path + V, to(element, given_back, kind), headers={"If-Match": "*"})
    assert (again.status, again.value(element)) == (200, given_back)
    held = description(namespace, path)
    assert "eu/Orders" in (held.forward_to, held.forward_dead_letters_to)
    assert None in (held.forward_to, held.forward_dead_letters_to)


@source
@element
async def test_a_destination_must_be_there(
    client: Client, namespace: MemoryNamespace, path: str, kind: str, element: str
) -> None:
    reply = await client.put(path + V, to(element, "absent", kind))
    assert reply.status == 400
    assert reply.detail.startswith(
        "SubCode=40400. The auto forwarding destination entity 'absent' does not exist "
        f"('{element}')."
    )
    assert b"Description" not in (await client.get(path + V)).body


@source
@element
async def test_forwarding_is_switched_off_by_leaving_it_out(
    client: Client, path: str, kind: str, element: str
) -> None:
    await client.put(path + V, to(element, "eu/orders", kind))
    reply = await client.put(path + V, entry(kind=kind), headers={"If-Match": "*"})
    assert reply.value(element) is None


@element
async def test_an_entity_may_forward_to_itself_once_it_is_there(
    client: Client, element: str
) -> None:
    # semantics A §5.2: Azure takes it, and what goes round ends by the number of its hops
    body = to(element, "source", "QueueDescription")
    assert (await client.put("/source" + V, body)).status == 400
    await client.put("/source" + V, entry())
    reply = await client.put("/source" + V, body, headers={"If-Match": "*"})
    assert reply.value(element) == "sb://localhost:5300/source"


async def test_time_without_use_is_kept_beside_forwarding(client: Client) -> None:
    idle = "<AutoDeleteOnIdle>PT10M</AutoDeleteOnIdle><ForwardTo>news</ForwardTo>"
    reply = await client.put("/source" + V, entry(idle))
    assert reply.value("AutoDeleteOnIdle") == "PT10M"


@source
@element
async def test_a_destination_must_be_the_callers_to_manage(
    namespace: MemoryNamespace, path: str, kind: str, element: str
) -> None:
    own = Client(application(namespace), token(f"https://localhost{path}"))
    body = to(element, "eu/orders", kind)
    other = next(header for name, header in HEADERS.items() if name != element)
    listening = create_sas(LISTENER.name, LISTENER.keys[0], "https://localhost", T0 + 1_000)
    for headers in (
        {},
        {other: token("https://localhost/eu/orders")},
        {HEADERS[element]: token("https://localhost/eu/other")},
        {HEADERS[element]: listening},
    ):
        reply = await own.put(path + V, body, headers=headers)
        assert reply.status == 401
        assert "'Manage' claim(s) are required" in reply.detail
        assert "Resource: 'sb://localhost:5300/eu/orders'" in reply.detail
    expired = create_sas(KEY_NAME, KEY, "https://localhost/eu/orders", T0 - 1_000)
    reply = await own.put(path + V, body, headers={HEADERS[element]: expired})
    assert (reply.status, "ExpiredToken" in reply.detail) == (401, True)

    # the Python client signs the destination as it was given
    proof = {HEADERS[element]: token("sb://localhost:5300/eu/orders")}
    assert (await own.put(path + V, body, headers=proof)).status == 201


@source
@element
async def test_the_destinations_own_key_is_proof_as_well(
    namespace: MemoryNamespace, path: str, kind: str, element: str
) -> None:
    """Each token is checked by the keys of the entity that it is there for."""
    app = application(namespace)
    keys = {name: f"{name:A>44}" for name in ("manages", "listens")}
    rules = (
        AuthorizationRule("manages", tuple(Right), keys["manages"]),
        AuthorizationRule("listens", (Right.LISTEN,), keys["listens"]),
    )
    await namespace.create_queue("eu/target", QueueDescription(authorization_rules=rules))
    own = Client(app, token(f"https://localhost{path}"))
    body = to(element, "eu/target", kind)
    for name, status in (("listens", 401), ("manages", 201)):
        proof = create_sas(name, keys[name], "sb://localhost:5300/eu/target", T0 + 1_000)
        reply = await own.put(path + V, body, headers={HEADERS[element]: proof})
        assert reply.status == status
    # which does not make it a key of the source
    by_target = Client(app, create_sas("manages", keys["manages"], "https://localhost", T0 + 1_000))
    assert (await by_target.delete(path + V)).status == 401


@element
async def test_whether_a_destination_is_there_is_not_told_to_strangers(
    namespace: MemoryNamespace, element: str
) -> None:
    own = Client(application(namespace), token("https://localhost/source"))
    for destination in ("eu/orders", "absent"):
        reply = await own.put("/source" + V, to(element, destination, "QueueDescription"))
        assert reply.status == 401


async def test_a_token_for_nothing_is_not_looked_at(client: Client) -> None:
    headers = {"ServiceBusSupplementaryAuthorization": "nonsense"}
    assert (await client.put("/source" + V, entry(), headers=headers)).status == 201
