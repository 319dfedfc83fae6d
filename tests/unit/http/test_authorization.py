"""Authorization rules over the management API, by hand and by the official client's own models."""

from __future__ import annotations

import base64

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from azure.servicebus.management import AuthorizationRule, ServiceBusAdministrationClient

from postbus.auth.sas import create_sas
from postbus.http.atom import INSTANCE, SERVICE_BUS
from postbus.model.authorization import Right
from tests.support.administration import administration_client
from tests.unit.http.conftest import connection_string
from tests.unit.http.fakes import Client, application, entry
from tests.unit.http.memory import T0, MemoryNamespace

V = "?api-version=2021-05"
KEY = base64.b64encode(b"1" * 32).decode()
OTHER = base64.b64encode(b"2" * 32).decode()
NS = f"{{{SERVICE_BUS}}}"


@pytest.fixture
def still() -> MemoryNamespace:
    """One whose time the test sets."""
    return MemoryNamespace()


@pytest.fixture
def client(still: MemoryNamespace) -> Client:
    return Client(application(still))


def rules(*inside: str) -> bytes:
    each = "".join(f"<AuthorizationRule>{text}</AuthorizationRule>" for text in inside)
    return entry(f"<AuthorizationRules>{each}</AuthorizationRules>")


def one(name: str = "k", rights: str = "Send", more: str = "") -> str:
    listed = "".join(f"<AccessRights>{right}</AccessRights>" for right in rights.split())
    return f"<Rights>{listed}</Rights><KeyName>{name}</KeyName>{more}"


async def test_a_rule_comes_back_as_azure_writes_it(client: Client) -> None:
    keys = f"<PrimaryKey>{KEY}</PrimaryKey><SecondaryKey>{OTHER}</SecondaryKey>"
    reply = await client.put("/orders" + V, rules(one("k", "Manage Send Listen", keys)))
    assert reply.status == 201
    [rule] = reply.xml.iter(f"{NS}AuthorizationRule")
    assert rule.get(f"{{{INSTANCE}}}type") == "SharedAccessAuthorizationRule"
    assert [(each.tag.removeprefix(NS), each.text) for each in rule] == [
        ("ClaimType", "SharedAccessKey"),
        ("ClaimValue", "None"),
        ("Rights", None),
        ("KeyName", "k"),
        ("PrimaryKey", KEY),
        ("SecondaryKey", OTHER),
    ]
    # in the order they were given
    assert [each.text for each in rule.iter(f"{NS}AccessRights")] == ["Manage", "Send", "Listen"]


async def test_an_update_replaces_all_rules_and_keeps_the_keys_it_does_not_name(
    client: Client, still: MemoryNamespace
) -> None:
    await client.put("/orders" + V, rules(one("a"), one("b")))
    [a, b] = still.queue("orders").description.authorization_rules  # type: ignore[union-attr]
    still.now = T0 + 1_000
    empty = "<PrimaryKey/><SecondaryKey></SecondaryKey>"
    changed = rules(one("b", "Send Listen", empty))
    reply = await client.put("/orders" + V, changed, headers={"If-Match": "*"})
    assert reply.status == 200
    [kept] = still.queue("orders").description.authorization_rules  # type: ignore[union-attr]
    assert kept.keys == b.keys != a.keys
    assert (kept.created_at, kept.modified_at) == (T0, T0 + 1_000)
    assert kept.rights == (Right.SEND, Right.LISTEN)
    # a body without rules leaves none
    await client.put("/orders" + V, entry(), headers={"If-Match": "*"})
    assert still.queue("orders").description.authorization_rules == ()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("inside", "text"),
    [
        ([""], "has no KeyName"),
        ([one(rights="")], "'k' has no rights"),
        ([one(rights="Send Send")], "must be unique"),
        ([one(rights="Manage")], "should also include Send and Listen"),
        ([one(rights="Read")], "one of Listen, Send, Manage, not 'Read'"),
        ([one("a b")], "invalid characters"),
        ([one(), one("K")], "Two authorization rules have the KeyName 'K'"),
        ([one(f"k{n}") for n in range(13)], "There are 13 authorization rules; 12 allowed"),
        ([one(more="<PrimaryKey>short</PrimaryKey>")], "44 characters of base64"),
        ([one(more="<KeyName>x</KeyName>")], "'KeyName' of an authorization rule is there twice"),
        ([one(more="<Issuer>x</Issuer>")], "'Issuer' is not part of an AuthorizationRule"),
        ([one(more="<ClaimType>role</ClaimType>")], "ClaimType of an authorization rule must be"),
        ([one(more="<ClaimValue>x</ClaimValue>")], "ClaimValue of an authorization rule must be"),
        ([one(more="<PrimaryKey><b/></PrimaryKey>")], "'PrimaryKey' is not part of"),
        (["<Rights><Right>Send</Right></Rights>"], "'Right' is not one of AccessRights"),
    ],
)
async def test_a_rule_that_cannot_be_is_refused_and_nothing_is_stored(
    client: Client, still: MemoryNamespace, inside: list[str], text: str
) -> None:
    reply = await client.put("/orders" + V, rules(*inside))
    assert reply.status == 400
    assert text in reply.detail
    assert still.queues() == []


async def test_a_rule_of_another_kind_is_refused_by_name(client: Client) -> None:
    old = f'<AuthorizationRule xmlns:p="{INSTANCE}" p:type="x:AllowRule"/>'
    reply = await client.put(
        "/orders" + V, entry(f"<AuthorizationRules>{old}</AuthorizationRules>")
    )
    assert reply.status == 400
    assert "must be a 'SharedAccessAuthorizationRule', not 'AllowRule'" in reply.detail
    stray = entry("<AuthorizationRules><Rule/></AuthorizationRules>")
    assert "'Rule' is not part of" in (await client.put("/orders" + V, stray)).detail


def key_token(name: str, key: str, uri: str = "https://localhost:5300") -> dict[str, str]:
    return {"authorization": create_sas(name, key, uri, T0 + 3_600_000)}


async def test_an_entitys_own_key_manages_that_entity_and_no_other(client: Client) -> None:
    manage = f"<PrimaryKey>{KEY}</PrimaryKey>"
    await client.put("/orders" + V, rules(one("own", "Manage Send Listen", manage)))
    await client.put("/orders/eu" + V, entry())
    # for the whole namespace, says the token; the key is the queue's
    own = key_token("own", KEY)
    assert (await client.get("/orders" + V, headers=own)).status == 200
    for method, path in [
        ("GET", "/orders/eu"),
        ("PUT", "/orders/new"),
        ("DELETE", "/orders/eu"),
        ("GET", "/$Resources/queues"),
        ("GET", "/$namespaceinfo"),
        ("PUT", "/other"),
    ]:
        reply = await client.send(method, path + V, entry(), headers=own)
        assert reply.status == 401, (method, path)
    folder = key_token("own", KEY, "https://localhost:5300/orders/new")
    reply = await client.put("/orders/new" + V, entry(), headers=folder)
    assert reply.status == 401
    assert "InvalidAudience" in reply.detail
    assert (await client.delete("/orders" + V, headers=own)).status == 200


@pytest.mark.parametrize(
    ("method", "path", "text"),
    [
        ("GET", "/orders", "Manage,EntityRead claims required for this operation"),
        ("GET", "/$Resources/queues", "Manage,EntityRead claims required for this operation"),
        ("GET", "/$Resources/topics", "Manage,EntityRead claims required for this operation"),
        ("GET", "/$namespaceinfo", "Manage,EntityRead claims required for this operation"),
        ("PUT", "/new", "Authorization failed for specified action: Manage,EntityWrite"),
        ("DELETE", "/orders", "Authorization failed for specified action: Manage,EntityDelete."),
    ],
)
async def test_listening_is_not_managing(client: Client, method: str, path: str, text: str) -> None:
    await client.put("/orders" + V, entry())
    reply = await client.send(
        method, path + V, entry(), headers=key_token("listener", "listen-key")
    )
    assert reply.status == 401
    assert reply.detail.startswith(f"SubCode=40100. {text}")


async def test_a_key_that_was_replaced_opens_nothing_any_more(client: Client) -> None:
    full = "Manage Send Listen"
    await client.put("/q" + V, rules(one("k", full, f"<PrimaryKey>{KEY}</PrimaryKey>")))
    assert (await client.get("/q" + V, headers=key_token("k", KEY))).status == 200
    await client.put(
        "/q" + V,
        rules(one("k", full, f"<PrimaryKey>{OTHER}</PrimaryKey>")),
        headers={"If-Match": "*"},
    )
    reply = await client.get("/q" + V, headers=key_token("k", KEY))
    assert (reply.status, "SubCode=40103" in reply.detail) == (401, True)
    assert (await client.get("/q" + V, headers=key_token("k", OTHER))).status == 200
    assert (await client.get("/q" + V, headers=key_token("K", OTHER))).status == 200


async def test_a_bearer_token_is_refused_by_name_where_no_issuer_is_configured(
    client: Client,
) -> None:
    reply = await client.get("/q" + V, headers={"authorization": "Bearer eyJhbGciOi.x.y"})
    assert reply.status == 401
    assert "no issuer of other tokens (JWT) is configured" in reply.detail


# -- the official client ---------------------------------------------------------------------


def test_the_official_client_writes_reads_and_changes_rules(
    admin: ServiceBusAdministrationClient, port: int, namespace: MemoryNamespace
) -> None:
    given = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=["Manage", "Send", "Listen"],
        key_name="own",
        primary_key=KEY,
        secondary_key=OTHER,
    )
    admin.create_queue("orders", authorization_rules=[given])
    queue = admin.get_queue("orders")
    [rule] = queue.authorization_rules or []
    assert (rule.type, rule.claim_type, rule.claim_value) == (
        "SharedAccessAuthorizationRule",
        "SharedAccessKey",
        "None",
    )
    assert (rule.key_name, rule.primary_key, rule.secondary_key) == ("own", KEY, OTHER)
    assert rule.rights == ["Manage", "Send", "Listen"]

    # what was read is written back with one rule more, which has no keys yet
    assert queue.authorization_rules is not None
    queue.authorization_rules.append(AuthorizationRule(key_name="more", rights=["Send"]))
    admin.update_queue(queue)
    [own, more] = admin.get_queue("orders").authorization_rules or []
    assert (own.primary_key, own.secondary_key) == (KEY, OTHER)
    assert more.primary_key and more.secondary_key and more.primary_key != more.secondary_key

    with administration_client(connection_string(port, "own", OTHER), retry_total=0) as mine:
        assert mine.get_queue("orders").name == "orders"
        with pytest.raises(ClientAuthenticationError):
            mine.create_queue("another")
    with pytest.raises(HttpResponseError, match="should also include Send and Listen"):
        admin.create_queue(
            "wrong", authorization_rules=[AuthorizationRule(key_name="m", rights=["Manage"])]
        )
