"""Entities and their fragments: what every catalog promises."""

import pytest

from postbus.errors import EntityAlreadyExists, EntityNotFound, QuotaExceeded
from postbus.store.ports import journal
from postbus.store.ports.catalog import Catalog
from tests.contract.fragments import T0

PLAIN = {"max_delivery_count": 10, "user_metadata": "Grüße, ☃", "default_ttl_ms": None}


def test_an_entity_is_listed_as_it_was_created(catalog: Catalog) -> None:
    created = catalog.create("Orders/New", "queue", PLAIN, T0, [0])

    assert catalog.entities() == [created]
    assert (created.name, created.kind, created.description) == ("Orders/New", "queue", PLAIN)
    assert (created.created_at, created.updated_at) == (T0, T0)
    assert [(f.index, f.store) for f in created.fragments] == [(0, 0)]


def test_names_are_unique_whatever_their_case(catalog: Catalog) -> None:
    catalog.create("Orders", "queue", PLAIN, T0, [0])

    with pytest.raises(EntityAlreadyExists, match="'orders'"):
        catalog.create("orders", "queue", {}, T0, [0])
    assert len(catalog.entities()) == 1


def test_entities_are_listed_by_name_whatever_their_case(catalog: Catalog) -> None:
    for name in ("b", "C", "A", "a-1"):
        catalog.create(name, "queue", {}, T0, [0])

    assert [entity.name for entity in catalog.entities()] == ["A", "a-1", "b", "C"]


def test_an_update_changes_the_description_only(catalog: Catalog) -> None:
    created = catalog.create("Orders", "queue", PLAIN, T0, [0])

    updated = catalog.update("ORDERS", {"max_delivery_count": 3}, T0 + 5)

    assert updated.description == {"max_delivery_count": 3}
    assert (updated.name, updated.created_at, updated.updated_at) == ("Orders", T0, T0 + 5)
    assert updated.fragments == created.fragments
    assert catalog.entities() == [updated]


def test_what_is_not_there_can_be_neither_updated_nor_deleted(catalog: Catalog) -> None:
    with pytest.raises(EntityNotFound, match="'orders'"):
        catalog.update("orders", {}, T0)
    with pytest.raises(EntityNotFound, match="'orders'"):
        catalog.delete("orders")


def test_fragments_of_a_deleted_entity_are_dropped_and_then_forgotten(
    catalog: Catalog,
) -> None:
    created = catalog.create("orders", "queue", {}, T0, [0, 1, 0])
    other = catalog.create("other", "queue", {}, T0, [1])

    assert catalog.delete("Orders") == created

    assert catalog.entities() == [other]
    assert catalog.dropped() == list(created.fragments)
    catalog.forget(created.fragments[1].id)
    assert catalog.dropped() == [created.fragments[0], created.fragments[2]]


def test_a_fragment_in_use_is_not_forgotten(catalog: Catalog) -> None:
    created = catalog.create("orders", "queue", {}, T0, [0])

    catalog.forget(created.fragments[0].id)

    assert catalog.entities() == [created]


def test_fragment_ids_are_never_used_twice(catalog: Catalog) -> None:
    ids: list[int] = []
    for _ in range(3):
        created = catalog.create("orders", "queue", {}, T0, [0, 0])
        ids += [fragment.id for fragment in created.fragments]
        catalog.delete("orders")
        for fragment in catalog.dropped():
            catalog.forget(fragment.id)

    assert len(set(ids)) == 6
    assert ids == sorted(ids)


def test_a_namespace_that_has_used_up_its_fragments_says_so(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "FRAGMENT_MAX", 2)
    catalog.create("a", "queue", {}, T0, [0])

    with pytest.raises(QuotaExceeded, match="none is used twice"):
        catalog.create("b", "queue", {}, T0, [0, 0])
    catalog.create("c", "queue", {}, T0, [0])


def test_small_values_are_kept(catalog: Catalog) -> None:
    assert catalog.get("key") is None
    catalog.set("key", "one")
    catalog.set("key", "two")
    catalog.set("format", "no clash with the file's own values")

    assert catalog.get("key") == "two"


def test_a_name_is_remembered_while_others_begin_with_it(catalog: Catalog) -> None:
    for name in ("a", "A/b", "a/b/c", "a-b", "a0"):
        catalog.create(name, "queue", PLAIN, T0, [0])
    assert catalog.deleted_prefixes() == []
    catalog.delete("a-b")
    assert catalog.deleted_prefixes() == [], "nothing lies below it"
    catalog.delete("A")
    catalog.delete("a/B")
    assert catalog.deleted_prefixes() == ["a", "a/b"]
    catalog.create("a/b", "topic", PLAIN, T0, [0])
    assert catalog.deleted_prefixes() == ["a"], "it is an entity again"
    catalog.delete("a/b/c")
    assert catalog.deleted_prefixes() == ["a"]
    catalog.delete("a/b")
    assert catalog.deleted_prefixes() == [], "there is no folder any more"


def test_a_description_is_kept_as_it_was_given(catalog: Catalog) -> None:
    given = {"inner": {"list": [1]}}
    created = catalog.create("orders", "queue", given, T0, [0])

    given["inner"]["list"].append(2)
    created.description["inner"] = None

    assert catalog.entities()[0].description == {"inner": {"list": [1]}}


def test_a_description_that_is_no_json_is_refused_and_nothing_is_kept(catalog: Catalog) -> None:
    with pytest.raises(ValueError, match="JSON"):
        catalog.create("orders", "queue", {"size": float("nan")}, T0, [0])

    assert catalog.entities() == []
    assert catalog.create("orders", "queue", {}, T0, [0]).fragments[0].id == 1


def test_dropped_fragments_are_listed_by_place(catalog: Catalog) -> None:
    for name in ("a", "b"):
        catalog.create(name, "queue", {}, T0, [0, 1])
    for name in ("b", "a"):
        catalog.delete(name)

    assert [(each.id, each.index) for each in catalog.dropped()] == [(1, 0), (3, 0), (2, 1), (4, 1)]
