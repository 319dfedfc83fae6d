"""Offsets of change feed readers: what every catalog promises."""

from postbus.store.ports.catalog import Catalog, ReaderKey


def test_offsets_are_set_replaced_and_removed_together(catalog: Catalog) -> None:
    offsets = catalog.reader_offsets
    assert offsets.all() == {}
    a, b, c = ReaderKey(1, "a"), ReaderKey(1, "two words, ☃"), ReaderKey(22, "a")

    offsets.write({a: "one", b: "two"})
    offsets.write({a: "three", b: None, c: "four", ReaderKey(9, "never"): None})

    assert offsets.all() == {a: "three", c: "four"}


def test_offsets_and_values_of_the_namespace_do_not_meet(catalog: Catalog) -> None:
    catalog.set("reader 1 a", "a value")
    catalog.reader_offsets.write({ReaderKey(1, "a"): "an offset"})

    assert catalog.get("reader 1 a") == "a value"
    assert catalog.reader_offsets.all() == {ReaderKey(1, "a"): "an offset"}


def test_offsets_outlive_the_entity_until_they_are_removed(catalog: Catalog) -> None:
    [fragment] = catalog.create("orders", "queue", {}, 0, [0]).fragments
    key = ReaderKey(fragment.id, "a")
    catalog.reader_offsets.write({key: "one"})

    catalog.delete("orders")

    assert catalog.reader_offsets.all() == {key: "one"}
