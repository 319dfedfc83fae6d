"""Who waits for the loop does not wait for the copying of megabytes."""

from __future__ import annotations

import threading
from typing import Any
from unittest import mock

import pytest

from postbus.runtime.commits import PACKED_HERE_BYTES
from postbus.store import batch
from tests.support.bed import Bed, bed

__all__ = ["bed"]

BODY = bytes(200_000)


@pytest.mark.interpreted_only
@pytest.mark.parametrize("count", [1, PACKED_HERE_BYTES // len(BODY) + 1])
async def test_a_large_batch_is_packed_by_the_thread_that_writes_it(bed: Bed, count: int) -> None:
    await bed.send(b"first")
    on_loop: list[bool] = []
    pack = batch.pack

    def seen(*given: Any) -> Any:
        on_loop.append(threading.current_thread() is threading.main_thread())
        return pack(*given)

    with mock.patch.object(batch, "pack", seen):
        assert await bed.send(*[BODY] * count) == list(range(2, count + 2))
    assert on_loop == [count == 1]
    stored = bed.store.read_batch(bed.fragment.id, 1)
    assert stored is not None
    lease = bed.fragment.lease
    assert lease is not None
    records = [record for _, record in batch.records(stored)]
    assert len(records) == count
    assert stored == pack(bed.fragment.id, lease.epoch, 1, bed.now, records)[0]
