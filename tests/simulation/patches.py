"""Bounds so small that a short history meets every one of them, and faults that are not hidden."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from postbus.broker import browse, chores, queue, resubmission
from postbus.runtime import (
    commits,
    dispatch,
    engine_cache,
    loaded_fragment,
    loading,
    receivers,
    runtime,
)


class Silent:
    """A log that nobody reads: commits fail on purpose here."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def _at_once(_: Any, call: Callable[[], None]) -> None:
    call()


@contextmanager
def tiny(chance: random.Random) -> Iterator[None]:
    """The constants of engine and runtime, as small as they can be."""
    few = chance.choice([2, 3, 8])
    bounds: list[tuple[Any, dict[str, Any]]] = [
        (chores, {"SLICE": few, "PAGE_ROWS": few + 1, "COPY_BYTES": 60}),
        (chores, {"BATCHES_AT_ONCE": chance.choice([1, 2, 8])}),
        (browse, {"PEEK_ROWS": chance.choice([1, few]), "DELETE_COUNT_MAX": 5}),
        (resubmission, {"RECEIVE_BYTES_MAX": chance.choice([30, 4 << 20])}),
        (queue, {"EXPIRED_PER_TAKE": few}),
        (receivers, {"SERVED_AT_ONCE": chance.choice([1, few])}),
        (loaded_fragment, {"CHECKPOINT_CHANGES": chance.choice([1, 6, 40])}),
        (loaded_fragment, {"CHECKPOINT_RECORDS": chance.choice([3, 50, 1_000])}),
        (engine_cache, {"SOON_MS": chance.choice([0, 300])}),
        (runtime, {"AHEAD_REQUESTS_MIN": chance.choice([1, 2, 99])}),
        (dispatch, {"GIVEN_PER_TURN": chance.choice([1, few, 50])}),
        (runtime, {"REQUESTS_PER_TURN": few}),
        (loading, {"REPLAY_BYTES": chance.choice([1, 500]), "log": Silent()}),
        # A client's complaint is a failure here, not a line in the log.
        (runtime, {"log": Silent(), "safely": _at_once}),
        (commits, {"safely": _at_once}),
    ]
    with ExitStack() as stack:
        for module, values in bounds:
            stack.enter_context(mock.patch.multiple(module, **values))
        yield
