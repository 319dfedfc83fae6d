"""The filter over ids: never wrong about one that is in it, rarely about one that is not."""

from __future__ import annotations

import pytest

from postbus.broker.bloom import Layer, digest_of, places_of, size_for


def filled(count: int, size: int | None = None) -> Layer:
    layer = Layer(size or size_for(count), count)
    layer.add_all(digest_of(f"in {n}") for n in range(count))
    return layer


def known(layer: Layer, kind: str, count: int) -> int:
    return sum(layer.may_have(*places_of(digest_of(f"{kind} {n}"))) for n in range(count))


def test_an_id_has_one_digest_and_another_id_another() -> None:
    assert digest_of("a") == digest_of("a") != digest_of("b")
    assert len(digest_of("")) == len(digest_of("ä" * 128)) == 16


def test_a_full_layer_knows_all_of_its_ids_and_hardly_any_other() -> None:
    layer = filled(4_096)
    assert known(layer, "in", 4_096) == 4_096
    assert known(layer, "out", 20_000) <= 3


@pytest.mark.parametrize("folds", [1, 2, 4])
def test_a_folded_layer_still_knows_all_of_its_ids(folds: int) -> None:
    layer = filled(4_096)
    for _ in range(folds):
        layer.fold()
    assert layer.size == size_for(4_096) >> folds
    assert known(layer, "in", 4_096) == 4_096
    # a quarter of the bits for each id is still something
    assert folds > 2 or known(layer, "out", 2_000) < 100


def test_a_layer_that_was_made_larger_knows_old_and_new_ids() -> None:
    layer = filled(1_024)
    layer.unfold()
    layer.add_all(digest_of(f"in {n}") for n in range(1_024, 4_096))
    assert (layer.size, layer.capacity) == (size_for(4_096), 4_096)
    assert known(layer, "in", 4_096) == 4_096
    assert known(layer, "out", 2_000) < 40


def test_a_layer_with_few_bits_for_each_id_looks_at_few_of_them() -> None:
    """With eight it would be full of ones, and know everybody."""
    layer = filled(8_192, 4_096)
    assert known(layer, "in", 8_192) == 8_192
    assert known(layer, "out", 4_000) < 1_000
