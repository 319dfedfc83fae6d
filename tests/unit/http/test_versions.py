"""Versions of entities, which an update may insist on, and of the API."""

from __future__ import annotations

from dataclasses import replace

import pytest

from postbus.model.rule import SqlFilter
from tests.unit.http.fakes import Client, application, entry
from tests.unit.http.memory import MemoryNamespace

V = "?api-version=2021-05"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/orders", "QueueDescription"),
        ("/news", "TopicDescription"),
        ("/news/Subscriptions/all", "SubscriptionDescription"),
        ("/news/Subscriptions/all/Rules/one", "RuleDescription"),
    ],
)
async def test_a_version_is_looked_at_when_the_change_has_its_turn(path: str, kind: str) -> None:
    namespace = MemoryNamespace()
    client = Client(application(namespace))
    if path.startswith("/news/"):
        await client.put("/news" + V, entry(kind="TopicDescription"))
    if "Rules" in path:
        await client.put("/news/Subscriptions/all" + V, entry(kind="SubscriptionDescription"))
    etag = (await client.put(path + V, entry(kind=kind))).headers["etag"]

    def somebody_else_was_first() -> None:
        for entity in namespace.entities.values():
            entity.updated_at += 1
        if "Subscriptions" in path:
            subscription = namespace.subscription("news", "all")
            subscription.updated_at += 1
            if "Rules" in path:
                changed = replace(subscription.all_rules["one"], filter=SqlFilter("a = 1"))
                subscription.all_rules["one"] = changed

    namespace.meanwhile = somebody_else_was_first
    reply = await client.put(path + V, entry(kind=kind), headers={"If-Match": etag})
    assert reply.status == 412
    namespace.meanwhile = somebody_else_was_first
    reply = await client.put(path + V, entry(kind=kind), headers={"If-Match": "*"})
    assert reply.status == 200


@pytest.mark.parametrize("kind", ["QueueDescription", "TopicDescription"])
async def test_what_a_version_does_not_show_cannot_be_set_by_it(kind: str) -> None:
    client = Client(application(MemoryNamespace()))
    body = entry("<MaxMessageSizeInKilobytes>1024</MaxMessageSizeInKilobytes>", kind)
    refused = await client.put("/large?api-version=2017-04", body)
    assert refused.status == 400
    assert "'MaxMessageSizeInKilobytes' can be set by api-version=2021-05" in refused.detail
    assert (await client.put("/large" + V, body)).status == 201


@pytest.mark.parametrize("kind", ["QueueDescription", "TopicDescription"])
async def test_r_part_09_partitioning_is_chosen_by_a_version_that_shows_it(kind: str) -> None:
    """R-PART-09."""
    client = Client(application(MemoryNamespace()))
    body = entry("<EnablePartitioning>true</EnablePartitioning>", kind)
    refused = await client.put("/wide?api-version=2013-08", body)
    assert refused.status == 400
    assert "use one from 2013-10" in refused.detail
    created = await client.put("/wide?api-version=2013-10", body)
    assert (created.status, created.value("EnablePartitioning")) == (201, "true")
    assert created.value("MaxSizeInMegabytes") == "16384"
