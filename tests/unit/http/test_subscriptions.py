"""Subscriptions over HTTP: the form of what comes back, and the words of a refusal."""

from __future__ import annotations

import pytest

from postbus.auth.sas import create_sas
from postbus.errors import InvalidArgument, QuotaExceeded
from postbus.http.atom import ATOM, INSTANCE, SERVICE_BUS
from postbus.model.description import (
    EntityStatus,
    QueueCounts,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from postbus.model.rule import FalseFilter, RuleDescription, SqlAction, SqlFilter, TrueFilter
from postbus.model.times import INFINITE
from tests.unit.http.fakes import LISTENER, Client, application, entry, token
from tests.unit.http.memory import T0, MemoryNamespace, Subscription

V = "?api-version=2024-05"
KIND = "SubscriptionDescription"
ALL = f"/eu/news/Subscriptions/all{V}"

ELEMENTS = [
    "LockDuration", "RequiresSession", "DefaultMessageTimeToLive",
    "DeadLetteringOnMessageExpiration", "DeadLetteringOnFilterEvaluationExceptions",
    "MessageCount", "MaxDeliveryCount", "EnableBatchedOperations", "Status", "ForwardTo",
    "CreatedAt", "UpdatedAt", "AccessedAt", "CountDetails", "UserMetadata",
    "ForwardDeadLetteredMessagesTo", "AutoDeleteOnIdle", "EntityAvailabilityStatus",
]  # fmt: skip


@pytest.fixture
async def namespace() -> MemoryNamespace:
    namespace = MemoryNamespace()
    await namespace.create_topic("eu/news", TopicDescription())
    return namespace


@pytest.fixture
def client(namespace: MemoryNamespace) -> Client:
    return Client(application(namespace))


def held(namespace: MemoryNamespace, name: str = "all") -> Subscription:
    return namespace.subscription("eu/news", name)


async def test_a_subscription_is_created_with_every_element_in_azures_order(
    client: Client, namespace: MemoryNamespace
) -> None:
    body = "".join(
        f"<{name}>eu/news</{name}>" for name in ("ForwardTo", "ForwardDeadLetteredMessagesTo")
    )
    reply = await client.put(ALL, entry(body + "<UserMetadata>x</UserMetadata>", KIND))
    assert reply.status == 201
    assert reply.headers["etag"] == str(621_355_968_000_000_000 + T0 * 10_000)
    # wire §9.3: JS takes the names from this URL
    assert reply.xml.findtext(f"{{{ATOM}}}id") == f"http://localhost:5300{ALL}"
    assert reply.xml.findtext(f"{{{ATOM}}}title") == "all"
    found = [child.tag.removeprefix(f"{{{SERVICE_BUS}}}") for child in reply.description]
    assert found == ELEMENTS


async def test_a_subscription_takes_everything_by_default(
    client: Client, namespace: MemoryNamespace
) -> None:
    # semantics A §4
    await client.put("/EU/News/subscriptions/All" + V, entry(kind=KIND))
    subscription = held(namespace)
    assert (subscription.topic, subscription.name) == ("eu/news", "All")
    assert subscription.description == SubscriptionDescription()
    assert subscription.rules() == [RuleDescription("$Default", TrueFilter(), None, T0)]


async def test_locks_last_as_long_as_the_namespace_says() -> None:
    namespace = MemoryNamespace()
    await namespace.create_topic("eu/news", TopicDescription())
    defaults = QueueDescription(lock_duration_ms=60_000)
    reply = await Client(application(namespace, defaults=defaults)).put(ALL, entry(kind=KIND))
    assert reply.value("LockDuration") == "PT1M"


async def test_what_a_reply_says_of_a_subscription(
    client: Client, namespace: MemoryNamespace
) -> None:
    await client.put(ALL, entry(kind=KIND))
    namespace.all_counts["eu/news/all"] = QueueCounts(1, 2, 3, 4, 5, size_bytes=600)
    held(namespace).accessed_at = T0 + 1
    reply = await client.get("/EU/NEWS/subscriptions/ALL" + V)
    assert reply.status == 200
    assert {name: reply.value(name) for name in ELEMENTS if name != "CountDetails"} == {
        "LockDuration": "PT30S",
        "RequiresSession": "false",
        "DefaultMessageTimeToLive": INFINITE,
        "DeadLetteringOnMessageExpiration": "false",
        "DeadLetteringOnFilterEvaluationExceptions": "true",
        "MessageCount": "15",
        "MaxDeliveryCount": "10",
        "EnableBatchedOperations": "true",
        "Status": "Active",
        "ForwardTo": None,
        "CreatedAt": "2023-11-14T22:13:20.123Z",
        "UpdatedAt": "2023-11-14T22:13:20.123Z",
        "AccessedAt": "2023-11-14T22:13:20.124Z",
        "UserMetadata": None,
        "ForwardDeadLetteredMessagesTo": None,
        "AutoDeleteOnIdle": INFINITE,
        "EntityAvailabilityStatus": "Available",
    }


@pytest.mark.parametrize(
    ("inside", "rule"),
    [
        ("", RuleDescription("$Default", TrueFilter(), None, T0)),
        (
            '<Filter i:type="FalseFilter"/><Name>none</Name>',
            RuleDescription("none", FalseFilter(), None, T0),
        ),
        (
            '<Filter i:type="SqlFilter"><SqlExpression>a=1</SqlExpression></Filter>'
            '<Action i:type="SqlRuleAction"><SqlExpression>SET a=2</SqlExpression></Action>',
            RuleDescription("$Default", SqlFilter("a=1"), SqlAction("SET a=2"), T0),
        ),
    ],
)
async def test_the_first_rule_may_be_given(
    client: Client, namespace: MemoryNamespace, inside: str, rule: RuleDescription
) -> None:
    body = f"<DefaultRuleDescription>{inside}</DefaultRuleDescription>"
    reply = await client.put(ALL, entry(body, KIND))
    assert reply.status == 201
    assert held(namespace).rules() == [rule]
    # semantics A §4: never given back
    assert reply.value("DefaultRuleDescription") is None
    again = await client.put(ALL, entry(body, KIND), headers={"If-Match": "*"})
    assert again.status == 400
    assert "'DefaultRuleDescription'" in again.detail


async def test_an_update_replaces_the_description(
    client: Client, namespace: MemoryNamespace
) -> None:
    first = await client.put(ALL, entry("<UserMetadata>x</UserMetadata>", KIND))
    namespace.now += 1_000
    body = entry("<Status>ReceiveDisabled</Status>", KIND)
    etag = {"If-Match": first.headers["etag"]}
    reply = await client.put(ALL, body, headers=etag)
    assert (reply.status, reply.value("Status")) == (200, "ReceiveDisabled")
    assert reply.xml.find(f"{{{ATOM}}}published") is None
    expected = SubscriptionDescription(status=EntityStatus.RECEIVE_DISABLED)
    assert held(namespace).description == expected
    assert (await client.put(ALL, body, headers=etag)).status == 412


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "text"),
    [
        ("PUT", "eu/news/Subscriptions/all", {}, 409,
         "The messaging entity 'test-namespace:Topic:eu/news|all' already exists."),
        ("PUT", "eu/news/Subscriptions/absent", {"If-Match": "*"}, 404,
         "Entity 'test-namespace:Topic:eu/news|absent' was not found."),
        ("PUT", "absent/Subscriptions/all", {"If-Match": "*"}, 404,
         "The incoming request is not recognized as a namespace policy put request."),
        ("PUT", "absent/Subscriptions/all", {}, 404,
         "The incoming request is not recognized as a namespace policy put request."),
        ("GET", "eu/news/Subscriptions/absent", {}, 404,
         "The messaging entity 'test-namespace:Topic:eu/news|absent' could not be found."),
        ("GET", "absent/Subscriptions/all", {}, 404,
         "The messaging entity 'test-namespace:Topic:absent|all' could not be found."),
        ("DELETE", "eu/news/Subscriptions/absent", {}, 404,
         "The messaging entity 'test-namespace:Topic:eu/news|absent' could not be found."),
        ("DELETE", "absent/Subscriptions/all", {}, 404,
         "No service is hosted at the specified address."),
    ],
)  # fmt: skip
async def test_what_is_there_or_not_is_told_in_azures_words(
    client: Client, method: str, path: str, headers: dict[str, str], status: int, text: str
) -> None:
    # semantics A §5.3
    await client.put(ALL, entry(kind=KIND))
    reply = await client.send(method, f"/{path}{V}", entry(kind=KIND), headers)
    assert reply.status == status
    assert reply.detail.startswith(f"{text} TrackingId:")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("<LockDuration>PT6M</LockDuration>", "The supplied lock time exceeds the allowed maximum"),
        ("<MaxSizeInMegabytes>1024</MaxSizeInMegabytes>", "The element 'MaxSizeInMegabytes' is"),
        ("<MaxDeliveryCount>0</MaxDeliveryCount>", "The value '0' of the property 'MaxDelivery"),
        (
            "<DefaultRuleDescription><Filter/></DefaultRuleDescription>",
            "The type of a 'Filter' must be",
        ),
        (
            "<DefaultRuleDescription/><DefaultRuleDescription/>",
            "The element 'DefaultRuleDescription' is there twice",
        ),
    ],
)
async def test_a_bad_request_has_no_sub_code(
    client: Client, namespace: MemoryNamespace, body: str, text: str
) -> None:
    # semantics A §5.3: only those about queues and topics have one
    reply = await client.put(ALL, entry(body, KIND))
    assert reply.status == 400
    assert reply.detail.startswith(text)
    topic = namespace.topic("eu/news")
    assert topic is not None and topic.subscriptions() == []


async def test_what_is_fixed_at_creation_cannot_be_changed(client: Client) -> None:
    await client.put(ALL, entry(kind=KIND))
    body = entry("<RequiresSession>true</RequiresSession>", KIND)
    reply = await client.put(ALL, body, headers={"If-Match": "*"})
    assert reply.status == 400
    assert reply.detail.startswith(
        "The value for the RequiresSession property of an existing Subscription cannot be changed."
    )


@pytest.mark.parametrize("name", ["a%20b", "%24Default", "x" * 51, "%C3%A4"])
async def test_a_name_no_subscription_can_have_is_refused(client: Client, name: str) -> None:
    reply = await client.put(f"/eu/news/Subscriptions/{name}{V}", entry(kind=KIND))
    assert reply.status == 400
    assert "URI_PATH" in reply.detail


async def test_a_subscription_is_not_described_by_anything_else(client: Client) -> None:
    reply = await client.put(ALL, entry())
    assert reply.status == 400
    assert "must be a 'SubscriptionDescription', not 'QueueDescription'." in reply.detail


async def test_refusals_of_the_namespace_reach_the_client(
    client: Client, namespace: MemoryNamespace
) -> None:
    namespace.failure = QuotaExceeded("The topic has 2000 subscriptions.")
    reply = await client.put(ALL, entry(kind=KIND))
    assert reply.status == 403
    assert reply.detail.startswith("SubCode=40300. The topic has 2000 subscriptions.")
    namespace.failure = InvalidArgument("There was an error parsing the SQL expression.")
    reply = await client.put(ALL, entry(kind=KIND))
    assert reply.status == 400
    assert reply.detail.startswith("There was an error parsing the SQL expression.")


@pytest.mark.parametrize(
    ("method", "path", "operation"),
    [
        ("GET", "/Subscriptions", "EnumerateSubscriptions"),
        ("GET", "/Subscriptions/all", "GetSubscription"),
        ("GET", "/Subscriptions/absent", "GetSubscription"),
        ("PUT", "/Subscriptions/all", "CreateOrUpdateSubscription"),
        ("DELETE", "/Subscriptions/all", "DeleteSubscription"),
        ("GET", "/Subscriptions/all/Rules", "EnumerateRules"),
        ("GET", "/Subscriptions/all/Rules/$Default", "GetRule"),
        ("PUT", "/Subscriptions/all/Rules/$Default", "CreateOrUpdateRule"),
        ("DELETE", "/Subscriptions/all/Rules/$Default", "DeleteRule"),
    ],
)
async def test_who_may_not_manage_is_told_what_was_refused(
    client: Client, namespace: MemoryNamespace, method: str, path: str, operation: str
) -> None:
    # semantics A §6
    await client.put(ALL, entry(kind=KIND))
    listening = create_sas(LISTENER.name, LISTENER.keys[0], "https://localhost", T0 + 1_000)
    for authorization in (listening, token("https://localhost/eu/new"), token("https://h/eu/x")):
        stranger = Client(application(namespace), authorization)
        reply = await stranger.send(method, f"/eu/news{path}{V}", entry(kind=KIND))
        assert reply.status == 401
        assert reply.detail.startswith(
            f"401 SubCode=40100: Unauthorized : Unauthorized access for '{operation}' operation "
            f"on endpoint 'sb://localhost:5300/eu/news{path}'."
        )
    assert len(held(namespace).rules()) == 1


@pytest.mark.parametrize("url", ["eu/news", "eu/news/subscriptions/all?api-version=2024-05"])
async def test_a_token_for_the_topic_or_for_just_this_url_is_enough(
    client: Client, namespace: MemoryNamespace, url: str
) -> None:
    await client.put(ALL, entry(kind=KIND))
    own = Client(application(namespace), token(f"https://localhost:5300/{url}"))
    assert (await own.get(ALL)).status == 200
    assert (await own.get(f"/eu/news/Subscriptions/all/Rules{V}")).status == 200


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_a_subqueue_of_a_subscription_is_not_managed_on_its_own(
    client: Client, method: str
) -> None:
    # R-DLQ-01
    await client.put(ALL, entry(kind=KIND))
    for path in ("$DeadLetterQueue", "$Transfer/$DeadLetterQueue", "$management"):
        reply = await client.send(method, f"/eu/news/Subscriptions/all/{path}{V}", entry(kind=KIND))
        assert reply.status == 400
        assert f"The specified HTTP verb ({method}) is not valid." in reply.detail


async def test_a_nil_first_rule_counts_as_left_out(
    client: Client, namespace: MemoryNamespace
) -> None:
    nil = f'<DefaultRuleDescription xmlns:x="{INSTANCE}" x:nil="true"/>'
    assert (await client.put(ALL, entry(nil, KIND))).status == 201
    assert [rule.name for rule in held(namespace).rules()] == ["$Default"]


async def test_names_that_are_words_of_a_path(client: Client, namespace: MemoryNamespace) -> None:
    await namespace.create_topic("subscriptions", TopicDescription())
    base = "/subscriptions/Subscriptions/rules"
    assert (await client.put(base + V, entry(kind=KIND))).status == 201
    rules = await client.get(f"{base}/Rules{V}")
    assert rules.xml.findtext(f"{{{ATOM}}}title") == "Rules"
    assert (await client.delete(base + V)).status == 200
