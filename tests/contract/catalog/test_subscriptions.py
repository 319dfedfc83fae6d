"""Subscriptions and their rules: what every catalog promises."""

import pytest

from postbus.errors import EntityAlreadyExists, EntityNotFound
from postbus.store.ports.catalog import Catalog
from tests.contract.fragments import T0

PLAIN = {"lock_duration_ms": 30_000, "user_metadata": "Grüße, ☃"}
TRUE = {"name": "$Default", "filter": "1=1"}


def test_a_subscription_is_listed_as_it_was_created(catalog: Catalog) -> None:
    created = catalog.subscriptions.create("News", "Audit", PLAIN, {"$Default": TRUE}, T0)

    assert catalog.subscriptions.of("NEWS") == [created]
    assert (created.topic, created.name, created.description) == ("news", "Audit", PLAIN)
    assert (created.created_at, created.updated_at) == (T0, T0)
    assert created.rules == (TRUE,)
    assert catalog.subscriptions.of("other") == []


def test_subscriptions_are_unique_in_a_topic_and_listed_by_name(catalog: Catalog) -> None:
    for name in ("b", "C", "A", "a-1"):
        catalog.subscriptions.create("news", name, {}, {}, T0)
    catalog.subscriptions.create("other", "b", {}, {}, T0)

    with pytest.raises(EntityAlreadyExists, match="B"):
        catalog.subscriptions.create("News", "B", {}, {}, T0)
    assert [each.name for each in catalog.subscriptions.of("news")] == ["A", "a-1", "b", "C"]


def test_an_owner_is_never_used_twice_in_a_topic(catalog: Catalog) -> None:
    owners: list[int] = []
    for _ in range(3):
        owners.append(catalog.subscriptions.create("news", "a", {}, {}, T0).owner)
        catalog.subscriptions.delete("news", "A")

    assert owners == [1, 2, 3]
    assert catalog.subscriptions.create("other", "a", {}, {}, T0).owner == 1


def test_an_update_keeps_owner_and_rules(catalog: Catalog) -> None:
    created = catalog.subscriptions.create("news", "Audit", PLAIN, {"$Default": TRUE}, T0)

    updated = catalog.subscriptions.update("NEWS", "AUDIT", {"x": 1}, T0 + 5)

    assert updated.description == {"x": 1}
    assert (updated.name, updated.owner, updated.rules) == ("Audit", created.owner, (TRUE,))
    assert (updated.created_at, updated.updated_at) == (T0, T0 + 5)
    assert catalog.subscriptions.of("news") == [updated]


def test_a_subscription_that_is_not_there_is_named(catalog: Catalog) -> None:
    with pytest.raises(EntityNotFound, match="news/Subscriptions/audit"):
        catalog.subscriptions.update("news", "audit", {}, T0)
    with pytest.raises(EntityNotFound, match="news/Subscriptions/audit"):
        catalog.subscriptions.delete("news", "audit")


def test_rules_are_added_replaced_and_removed_by_name(catalog: Catalog) -> None:
    owner = catalog.subscriptions.create("news", "audit", {}, {"b": {"n": "b"}}, T0).owner
    other = catalog.subscriptions.create("news", "other", {}, {"b": TRUE}, T0)

    catalog.subscriptions.put_rule("News", owner, "A", {"n": "a"})
    catalog.subscriptions.put_rule("news", owner, "B", {"n": "new"})
    assert catalog.subscriptions.of("news")[0].rules == ({"n": "a"}, {"n": "new"})

    catalog.subscriptions.delete_rule("news", owner, "a")
    catalog.subscriptions.delete_rule("news", owner, "never")
    assert catalog.subscriptions.of("news")[0].rules == ({"n": "new"},)
    assert catalog.subscriptions.of("news")[1] == other


def test_a_deleted_subscription_takes_its_rules_with_it(catalog: Catalog) -> None:
    gone = catalog.subscriptions.create("news", "audit", PLAIN, {"$Default": TRUE}, T0)

    assert catalog.subscriptions.delete("news", "audit") == gone
    assert catalog.subscriptions.of("news") == []
    assert catalog.subscriptions.create("news", "audit", {}, {}, T0).rules == ()


def test_a_deleted_topic_takes_its_subscriptions_with_it(catalog: Catalog) -> None:
    catalog.create("news", "topic", {}, T0, [0])
    catalog.subscriptions.create("news", "audit", {}, {"$Default": TRUE}, T0)
    kept = catalog.subscriptions.create("other", "audit", {}, {"$Default": TRUE}, T0)

    catalog.delete("NEWS")

    assert catalog.subscriptions.of("news") == []
    assert catalog.subscriptions.of("other") == [kept]
    # A new topic has new fragments, so its owners begin anew.
    assert catalog.subscriptions.create("news", "audit", {}, {}, T0).owner == 1


def test_the_newest_change_is_known_of_entities_and_subscriptions(catalog: Catalog) -> None:
    assert catalog.newest() == catalog.namespace_created_at == T0
    catalog.create("news", "topic", {}, T0 + 1, [0])
    assert catalog.newest() == T0 + 1
    catalog.subscriptions.create("news", "audit", {}, {}, T0 + 2)
    assert catalog.newest() == T0 + 2
    catalog.subscriptions.update("news", "audit", {}, T0 + 9)
    assert catalog.newest() == T0 + 9
    catalog.update("news", {}, T0 + 11)
    assert catalog.newest() == T0 + 11
