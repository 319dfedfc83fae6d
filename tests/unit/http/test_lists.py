"""Lists of entities in pages, and what the namespace says of itself."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit
from xml.etree.ElementTree import Element

import pytest

from postbus.errors import EntityNotFound
from postbus.http.atom import ATOM, SERVICE_BUS
from postbus.model.description import (
    QueueCounts,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from postbus.model.rule import RuleDescription
from tests.unit.http.fakes import Client, Reply, application
from tests.unit.http.memory import MemoryNamespace

V = "api-version=2024-05"


async def filled(count: int) -> tuple[Client, MemoryNamespace]:
    namespace = MemoryNamespace()
    for number in range(count):
        await namespace.create_queue(f"q{number:03d}", QueueDescription())
    return Client(application(namespace)), namespace


def titles(reply: Reply) -> list[str | None]:
    return [entry.findtext(f"{{{ATOM}}}title") for entry in reply.xml.findall(f"{{{ATOM}}}entry")]


def links(reply: Reply) -> list[Element]:
    return reply.xml.findall(f"{{{ATOM}}}link")


async def test_an_empty_list_is_a_bare_feed() -> None:
    client, _ = await filled(0)
    reply = await client.get(f"/$Resources/queues?{V}")
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/atom+xml;type=feed;charset=utf-8"
    assert reply.xml.findtext(f"{{{ATOM}}}title") == "Queues"
    assert titles(reply) == []
    assert [link.get("rel") for link in links(reply)] == ["self"]


async def test_a_list_is_a_hundred_entries_long_at_most() -> None:
    client, _ = await filled(101)
    for query in ("", "&$top=100", "&$top=5000"):
        assert len(titles(await client.get(f"/$Resources/Queues?{V}{query}"))) == 100


async def test_the_next_page_is_found_as_each_client_looks_for_it() -> None:
    # wire §10.32: self first, next second and only when there is more
    client, _ = await filled(25)
    first = await client.get(f"/$Resources/queues?{V}&$top=10")
    assert titles(first) == [f"q{number:03d}" for number in range(10)]
    assert [link.get("rel") for link in links(first)] == ["self", "next"]
    following = urlsplit(links(first)[1].get("href"))
    assert following.netloc == "localhost:5300"
    query = parse_qs(following.query)
    assert query == {"$skip": ["10"], "$top": ["10"], "api-version": ["2024-05"]}

    second = await client.get(f"{following.path}?{following.query}")
    third = await client.get(f"/$Resources/queues?{V}&$skip=20&$top=10")
    assert titles(second)[0] == "q010"
    assert titles(third) == [f"q{number:03d}" for number in range(20, 25)]
    assert [link.get("rel") for link in links(third)] == ["self"]


async def test_a_list_that_ends_with_a_page_has_no_next() -> None:
    client, _ = await filled(10)
    assert len(links(await client.get(f"/$Resources/queues?{V}&$top=10"))) == 1
    assert len(links(await client.get(f"/$Resources/queues?{V}&$skip=10&$top=10"))) == 1
    nothing = await client.get(f"/$Resources/queues?{V}&$top=0")
    assert titles(nothing) == [] and len(links(nothing)) == 1


async def test_entries_of_a_list_have_counts() -> None:
    client, namespace = await filled(1)
    namespace.all_counts["q000"] = QueueCounts(active=3, size_bytes=30)
    reply = await client.get(f"/$Resources/queues?{V}")
    path = f"{{{ATOM}}}entry/{{{ATOM}}}content/{{{SERVICE_BUS}}}QueueDescription"
    description = reply.xml.find(path)
    assert description is not None
    assert description.findtext(f"{{{SERVICE_BUS}}}MessageCount") == "3"
    assert description.find(f"{{{SERVICE_BUS}}}AccessedAt") is not None
    assert description.find(f"{{{SERVICE_BUS}}}CountDetails") is not None


async def test_a_queue_deleted_while_the_list_is_made_does_not_shorten_the_page() -> None:
    client, namespace = await filled(2)

    async def gone(name: str) -> QueueCounts:
        raise EntityNotFound(name)

    namespace.counts = gone  # type: ignore[method-assign]
    assert len(titles(await client.get(f"/$Resources/queues?{V}"))) == 2


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("$skip=-1", "'$skip'"),
        ("$top=x", "'$top'"),
        ("$top=", "'$top'"),
        ("$top=9999999999", "'$top'"),
        ("$skip=%D9%A1", "'$skip'"),
        ("$filter=startswith(path,'q') eq true", "'$filter'"),
    ],
)
async def test_a_wrong_option_is_refused_by_name(query: str, text: str) -> None:
    client, _ = await filled(1)
    reply = await client.get(f"/$Resources/queues?{V}&{query}")
    assert reply.status == 400
    assert text in reply.detail


async def test_queues_and_topics_have_a_list_each() -> None:
    client, namespace = await filled(1)
    for name in ("news", "alerts"):
        await namespace.create_topic(name, TopicDescription())
    queues = await client.get(f"/$Resources/queues?{V}")
    topics = await client.get(f"/$Resources/topics?{V}")
    assert (queues.status, topics.status) == (200, 200)
    assert topics.xml.findtext(f"{{{ATOM}}}title") == "Topics"
    assert titles(queues) == ["q000"]
    assert titles(topics) == ["alerts", "news"]


async def test_subscriptions_and_rules_come_in_pages_too() -> None:
    client, namespace = await filled(0)
    await namespace.create_topic("news", TopicDescription())
    for name in ("b", "c", "a"):
        rule = RuleDescription("one")
        await namespace.subscriptions.create("news", name, SubscriptionDescription(), rule)
    await namespace.subscriptions.create_rule("news", "a", RuleDescription("two"))

    first = await client.get(f"/news/Subscriptions?{V}&$top=2")
    assert first.xml.findtext(f"{{{ATOM}}}title") == "Subscriptions"
    assert titles(first) == ["a", "b"]
    following = urlsplit(links(first)[1].get("href"))
    assert following.path == "/news/Subscriptions"
    assert titles(await client.get(f"{following.path}?{following.query}")) == ["c"]

    rules = await client.get(f"/news/subscriptions/a/rules/?{V}&$skip=1&$top=1")
    assert rules.headers["content-type"] == "application/atom+xml;type=feed;charset=utf-8"
    assert rules.xml.findtext(f"{{{ATOM}}}title") == "Rules"
    assert titles(rules) == ["two"]
    assert len(links(rules)) == 1
    assert links(await client.get(f"/news/Subscriptions/a/Rules?{V}&$top=1"))[1].get("href") == (
        "http://localhost:5300/news/Subscriptions/a/Rules?$skip=1&$top=1&api-version=2024-05"
    )


async def test_what_is_not_there_has_no_list() -> None:
    client, namespace = await filled(1)
    await namespace.create_topic("news", TopicDescription())
    for path, text in {
        "absent/Subscriptions": "entity 'sb://localhost:5300/absent' could not be found.",
        "q000/Subscriptions": "entity 'sb://localhost:5300/q000' could not be found.",
        "news/Subscriptions/x/Rules": "'test-namespace:Topic:news|x' could not be found.",
    }.items():
        reply = await client.get(f"/{path}?{V}")
        assert reply.status == 404
        assert text in reply.detail


async def test_what_the_namespace_says_of_itself() -> None:
    client, _ = await filled(0)
    reply = await client.get(f"/$namespaceinfo?{V}")
    info = reply.xml.find(f"{{{ATOM}}}content/{{{SERVICE_BUS}}}NamespaceInfo")
    assert reply.status == 200 and info is not None
    assert [(child.tag.removeprefix(f"{{{SERVICE_BUS}}}"), child.text) for child in info] == [
        ("CreatedTime", "2023-11-14T22:13:20.123Z"),
        ("MessagingSKU", "Standard"),
        ("ModifiedTime", "2023-11-14T22:13:20.123Z"),
        ("Name", "test-namespace"),
        ("NamespaceType", "Messaging"),
    ]
