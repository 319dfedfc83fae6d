"""Topics over HTTP: the form of what comes back, and one space of names with the queues."""

from __future__ import annotations

import pytest

from postbus.http.atom import ATOM, SERVICE_BUS
from postbus.model.description import (
    QueueCounts,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from postbus.model.rule import CorrelationFilter, RuleDescription
from postbus.model.times import INFINITE
from tests.unit.http.fakes import Client, Reply, application, entry
from tests.unit.http.memory import T0, MemoryNamespace

V = "?api-version=2024-05"
TOPIC = "TopicDescription"

ELEMENTS = [
    "DefaultMessageTimeToLive", "MaxSizeInMegabytes", "RequiresDuplicateDetection",
    "DuplicateDetectionHistoryTimeWindow", "EnableBatchedOperations", "SizeInBytes",
    "FilteringMessagesBeforePublishing", "IsAnonymousAccessible", "AuthorizationRules", "Status",
    "CreatedAt", "UpdatedAt", "AccessedAt", "SupportOrdering", "CountDetails", "SubscriptionCount",
    "SqlFilterCount", "CorrelationFilterCount", "AutoDeleteOnIdle", "EnablePartitioning",
    "EntityAvailabilityStatus", "EnableSubscriptionPartitioning", "EnableExpress", "UserMetadata",
    "MaxMessageSizeInKilobytes",
]  # fmt: skip


@pytest.fixture
def namespace() -> MemoryNamespace:
    return MemoryNamespace()


@pytest.fixture
def client(namespace: MemoryNamespace) -> Client:
    return Client(application(namespace))


def elements(reply: Reply) -> list[str]:
    return [child.tag.removeprefix(f"{{{SERVICE_BUS}}}") for child in reply.description]


async def test_a_topic_is_created_with_every_element_in_azures_order(
    client: Client, namespace: MemoryNamespace
) -> None:
    # wire §9.4: the JS client throws when one is missing
    reply = await client.put("/eu/news" + V, entry("<UserMetadata>x</UserMetadata>", TOPIC))
    assert reply.status == 201
    assert reply.headers["content-type"] == "application/atom+xml;type=entry;charset=utf-8"
    assert reply.headers["etag"] == str(621_355_968_000_000_000 + T0 * 10_000)
    assert reply.xml.findtext(f"{{{ATOM}}}id") == f"http://localhost:5300/eu/news{V}"
    assert elements(reply) == ELEMENTS
    topic = namespace.topic("eu/news")
    assert topic is not None and topic.description == TopicDescription(user_metadata="x")


async def test_what_a_reply_says_of_a_topic(client: Client, namespace: MemoryNamespace) -> None:
    await namespace.create_topic("news", TopicDescription(auto_delete_ms=600_000))
    rule = RuleDescription("c", CorrelationFilter(label="a"))
    await namespace.subscriptions.create("news", "a", SubscriptionDescription(), RuleDescription())
    await namespace.subscriptions.create("news", "b", SubscriptionDescription(), rule)
    namespace.all_counts["news"] = QueueCounts(scheduled=2, size_bytes=700)
    reply = await client.get("/News" + V)
    assert {name: reply.value(name) for name in ELEMENTS if name != "CountDetails"} == {
        "DefaultMessageTimeToLive": INFINITE,
        "MaxSizeInMegabytes": "1024",
        "RequiresDuplicateDetection": "false",
        "DuplicateDetectionHistoryTimeWindow": "PT10M",
        "EnableBatchedOperations": "true",
        "SizeInBytes": "700",
        "FilteringMessagesBeforePublishing": "false",
        "IsAnonymousAccessible": "false",
        "AuthorizationRules": "",
        "Status": "Active",
        "CreatedAt": "2023-11-14T22:13:20.123Z",
        "UpdatedAt": "2023-11-14T22:13:20.123Z",
        "AccessedAt": "0001-01-01T00:00:00Z",
        "SupportOrdering": "true",
        "SubscriptionCount": "2",
        "SqlFilterCount": "1",
        "CorrelationFilterCount": "1",
        "AutoDeleteOnIdle": "PT10M",
        "EnablePartitioning": "false",
        "EntityAvailabilityStatus": "Available",
        "EnableSubscriptionPartitioning": "false",
        "EnableExpress": "false",
        "UserMetadata": None,
        "MaxMessageSizeInKilobytes": "256",
    }


@pytest.mark.parametrize(
    ("version", "unknown"),
    [
        ("", set()),
        ("?api-version=2024-05", set()),
        ("?api-version=2021-05", {"SqlFilterCount", "CorrelationFilterCount"}),
        (
            "?api-version=2017-04",
            {"SqlFilterCount", "CorrelationFilterCount", "MaxMessageSizeInKilobytes"},
        ),
    ],
)
async def test_a_version_shows_what_it_knows(
    client: Client, namespace: MemoryNamespace, version: str, unknown: set[str]
) -> None:
    # semantics A §5.1
    await namespace.create_topic("news", TopicDescription())
    await namespace.create_queue("orders", QueueDescription())
    reply = await client.get(f"/news{version}")
    assert set(ELEMENTS) - set(elements(reply)) == {*unknown, "UserMetadata"}
    size = (await client.get(f"/orders{version}")).value("MaxMessageSizeInKilobytes")
    assert (size is None) == ("MaxMessageSizeInKilobytes" in unknown)


async def test_queues_and_topics_share_one_space_of_names(
    client: Client, namespace: MemoryNamespace
) -> None:
    await client.put("/orders" + V, entry())
    await client.put("/news" + V, entry(kind=TOPIC))
    for path, kind in (("orders", TOPIC), ("NEWS", "QueueDescription")):
        reply = await client.put(f"/{path}{V}", entry(kind=kind))
        assert reply.status == 409
        assert reply.detail.startswith("SubCode=40900. Conflict.")
    found = [(await client.get(f"/{name}{V}")).description.tag for name in ("orders", "news")]
    kinds = ("QueueDescription", "TopicDescription")
    assert found == [f"{{{SERVICE_BUS}}}{kind}" for kind in kinds]
    assert [each.name for each in namespace.queues()] == ["orders"]


async def test_an_update_does_not_make_one_kind_of_the_other(
    client: Client, namespace: MemoryNamespace
) -> None:
    await client.put("/news" + V, entry(kind=TOPIC))
    reply = await client.put("/news" + V, entry(), headers={"If-Match": "*"})
    assert reply.status == 400
    assert "The entity 'news' is a Topic, not a Queue." in reply.detail
    assert namespace.queues() == []


async def test_an_update_of_a_topic_replaces_the_description(
    client: Client, namespace: MemoryNamespace
) -> None:
    first = await client.put("/news" + V, entry("<UserMetadata>x</UserMetadata>", TOPIC))
    namespace.now += 1_000
    body = entry("<Status>SendDisabled</Status>", TOPIC)
    old = first.headers["etag"]
    reply = await client.put("/news" + V, body, headers={"If-Match": old})
    assert (reply.status, reply.value("Status")) == (200, "SendDisabled")
    assert reply.value("UserMetadata") is None
    assert reply.value("UpdatedAt") == "2023-11-14T22:13:21.123Z"
    assert reply.xml.find(f"{{{ATOM}}}published") is None
    again = await client.put("/news" + V, body, headers={"If-Match": old})
    assert (again.status, "The topic was updated" in again.detail) == (412, True)
    absent = await client.put("/absent" + V, body, headers={"If-Match": "*"})
    assert absent.detail.startswith("SubCode=40400. Not Found. The Operation doesn't exist.")


@pytest.mark.parametrize(
    ("headers", "body", "text"),
    [
        (
            {},
            "<EnableSubscriptionPartitioning>true</EnableSubscriptionPartitioning>",
            "partitioned subscriptions",
        ),
        (
            {},
            "<FilteringMessagesBeforePublishing>true</FilteringMessagesBeforePublishing>",
            "refusing messages that no subscription takes",
        ),
        ({}, "<LockDuration>PT1M</LockDuration>", "'LockDuration' is not part of a TopicDesc"),
        ({}, "<ForwardTo>x</ForwardTo>", "'ForwardTo' is not part of a TopicDescription"),
        ({}, "<AutoDeleteOnIdle>PT1M</AutoDeleteOnIdle>", "Parameter name: AutoDeleteOnIdle"),
        ({}, "<MaxSizeInMegabytes>16384</MaxSizeInMegabytes>", "specified value 16384 is invalid"),
        (
            {"If-Match": "*"},
            "<EnablePartitioning>true</EnablePartitioning>",
            "SubCode=40000. Partitioning cannot be changed for Topic.",
        ),
        (
            {"If-Match": "*"},
            "<RequiresDuplicateDetection>true</RequiresDuplicateDetection>",
            "RequiresDuplicateDetection property of an existing Topic cannot be changed",
        ),
    ],
)
async def test_what_a_topic_cannot_be_is_refused_by_name(
    client: Client, namespace: MemoryNamespace, headers: dict[str, str], body: str, text: str
) -> None:
    if headers:
        await client.put("/news" + V, entry(kind=TOPIC))
    reply = await client.put("/news" + V, entry(body, TOPIC), headers=headers)
    assert reply.status == 400
    assert text in reply.detail
    assert len(namespace.topics()) == len(headers)


async def test_what_only_the_server_knows_of_a_topic_is_ignored(client: Client) -> None:
    told = (
        "<SubscriptionCount>7</SubscriptionCount><SqlFilterCount>7</SqlFilterCount><SizeInBytes/>"
    )
    reply = await client.put("/news" + V, entry(told, TOPIC))
    assert (reply.status, reply.value("SubscriptionCount")) == (201, "0")


async def test_a_topic_is_deleted(client: Client, namespace: MemoryNamespace) -> None:
    await client.put("/news" + V, entry(kind=TOPIC))
    reply = await client.delete("/NEWS" + V)
    assert (reply.status, reply.body) == (200, b"")
    assert namespace.topics() == []


async def test_a_topic_has_keys_of_its_own(client: Client, namespace: MemoryNamespace) -> None:
    rule = "<Rights><AccessRights>Send</AccessRights></Rights><KeyName>k</KeyName>"
    body = f"<AuthorizationRules><AuthorizationRule>{rule}</AuthorizationRule></AuthorizationRules>"
    created = await client.put("/news" + V, entry(body, TOPIC))
    assert created.status == 201
    topic = namespace.topic("news")
    assert topic is not None
    [held] = topic.description.authorization_rules
    for reply in (created, await client.get("/news" + V)):
        [shown] = reply.description.iter(f"{{{SERVICE_BUS}}}AuthorizationRule")
        assert shown.findtext(f"{{{SERVICE_BUS}}}KeyName") == "k"
        assert shown.findtext(f"{{{SERVICE_BUS}}}PrimaryKey") == held.primary_key != ""
