"""A store is trimmed sooner the more is written to it, and not where nothing was."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from postbus.observe.meters import StoreMeter
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.upkeep import GROWTH_SHARE, Upkeep
from postbus.store.ports.journal import Trimmed

KEPT = 1 << 20


class Trims:
    """A store that counts how often it is trimmed, with so many slices to each trim."""

    def __init__(self, slices: int = 1) -> None:
        self.calls: list[int] = []
        self._slices = slices

    def trim(self, fragment: int, older_than: int, bytes_max: int, limit: int) -> Trimmed:
        self.calls.append(fragment)
        return Trimmed(1, 1, len(self.calls) % self._slices != 0)


class Inline:
    async def run(self, call: Callable[[], Any]) -> Any:
        return call()


def make(store: Trims, meter: StoreMeter) -> Upkeep:
    return Upkeep(cast(Any, store), cast(Any, Inline()), cast(Any, None), cast(Any, None), meter)


def fragment(head: int) -> LoadedFragment:
    queue = SimpleNamespace(ledger=SimpleNamespace(head=head))
    return cast(LoadedFragment, SimpleNamespace(id=7, engine=queue, gone=None))


def test_a_store_has_grown_when_a_share_of_the_retention_was_written_since_the_last_time() -> None:
    meter = StoreMeter()
    upkeep = make(Trims(), meter)
    assert not upkeep.has_grown(KEPT)

    meter.committed(0.0, 1, KEPT // GROWTH_SHARE)
    assert not upkeep.has_grown(KEPT)
    meter.committed(0.0, 1, 1)
    assert upkeep.has_grown(KEPT)
    assert not upkeep.has_grown(KEPT)

    meter.committed(0.0, 1, KEPT // GROWTH_SHARE + 1)
    assert upkeep.has_grown(KEPT)


async def test_a_trim_goes_on_until_there_is_no_more_to_let_go_of() -> None:
    store = Trims(slices=3)
    await make(store, StoreMeter()).trim(fragment(5), 0, KEPT)
    assert store.calls == [7, 7, 7]


@pytest.mark.parametrize(("head", "trims"), [(5, 1), (6, 2)])
async def test_a_journal_to_which_nothing_was_added_is_not_looked_at_again(
    head: int, trims: int
) -> None:
    store = Trims()
    upkeep = make(store, StoreMeter())
    await upkeep.trim(fragment(5), 0, KEPT)
    await upkeep.trim(fragment(head), 0, KEPT)
    assert len(store.calls) == trims
