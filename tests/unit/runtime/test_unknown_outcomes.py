"""A refusal says that nothing was stored; where nobody knows, that is what is said."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from postbus.errors import OutcomeUnknown, ServiceBusError, StoreUnavailable
from tests.support.bed import Bed, Taker, bed, settled

__all__ = ["bed"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OutcomeUnknown("sync failed"), OutcomeUnknown),
        (OSError(5, "Input/output error"), OutcomeUnknown),
        (MemoryError(), OutcomeUnknown),
        (StoreUnavailable("disk full"), StoreUnavailable),
        (ValueError("is at offset 4, not at 5"), StoreUnavailable),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
async def test_only_a_commit_that_certainly_failed_is_refused(
    bed: Bed, error: Exception, told: type[ServiceBusError]
) -> None:
    commit = bed.store.commit

    def sync_fails(parts: Any) -> Any:
        if told is OutcomeUnknown:
            commit(parts)
        raise error

    with mock.patch.object(bed.store, "commit", sync_fails), pytest.raises(told) as refused:
        await bed.send(b"1")
    assert type(refused.value) is told
    taker = Taker(bed.fragment, credit=5)
    bed.join(taker)
    await settled()
    assert taker.taken == ([b"1"] if told is OutcomeUnknown else []), "the truth, once it is known"


async def test_an_engine_that_cannot_be_had_has_done_nothing_of_what_was_asked(bed: Bed) -> None:
    unknown = OutcomeUnknown("sync failed")
    with (
        mock.patch.object(bed.store, "acquire", side_effect=unknown),
        pytest.raises(StoreUnavailable),
    ):
        await bed.send(b"1")
