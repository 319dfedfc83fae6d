"""Limits so small that a short history meets every one of them, and faults that are not hidden."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from postbus.broker import (
    browse,
    chores,
    duplicate_history,
    duplicates,
    forwarding,
    held_sessions,
    queue,
    resubmission,
    session_list,
    session_operations,
    topic,
    window,
    window_budget,
)
from postbus.gateway.transactions import open_transactions
from postbus.runtime import (
    commits,
    dispatch,
    engine_cache,
    forwarder,
    loaded_fragment,
    loading,
    reads,
    receivers,
    runtime,
    sessions,
)
from tests.simulation.machine import Machine

Limits = list[tuple[Any, dict[str, Any]]]


class Silent:
    """A log that nobody reads: commits fail on purpose here."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def _at_once(_: Any, call: Callable[[], None]) -> None:
    call()


@contextmanager
def small_limits(chance: random.Random) -> Iterator[None]:
    """The constants of engine and runtime, as small as they can be."""
    limits = _of_queues(chance) + _of_topics(chance) + _of_sessions(chance)
    with ExitStack() as stack:
        for module, values in limits:
            stack.enter_context(mock.patch.multiple(module, **values))
        yield


def _of_queues(chance: random.Random) -> Limits:
    few = chance.choice([2, 3, 8])
    return [
        (chores, {"SLICE": few, "PAGE_ROWS": few + 1, "COPY_BYTES": 60}),
        (chores, {"BATCHES_AT_ONCE": chance.choice([1, 2, 8])}),
        (browse, {"PEEK_ROWS": chance.choice([1, few]), "DELETE_COUNT_MAX": 5}),
        (browse, {"DELETE_ROWS": chance.choice([1, 3])}),
        (resubmission, {"RECEIVE_BYTES_MAX": chance.choice([30, 4 << 20])}),
        (queue, {"EXPIRED_PER_TAKE": few}),
        (receivers, {"SERVED_AT_ONCE": chance.choice([1, few])}),
        (loaded_fragment, {"CHECKPOINT_CHANGES": chance.choice([1, 6, 40])}),
        (loaded_fragment, {"CHECKPOINT_CHANGES_MIN": chance.choice([1, 3, 30])}),
        (loaded_fragment, {"ROWS_PREPARED": chance.choice([1, 4])}),
        (window_budget, {"IDLE_TAKES": chance.choice([0, 2, 20])}),
        (window, {"LOW_MESSAGES": chance.choice([2, 6, 1_024])}),
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


def _of_topics(chance: random.Random) -> Limits:
    few = chance.choice([1, 2, 5])
    return [
        (topic, {"COPIES_AT_ONCE": few, "STAGED_ROWS": chance.choice([1, few])}),
        (forwarding, {"SHIPPED_AT_ONCE": chance.choice([1, 2, 5]), "DIVERTED_AT_ONCE": few}),
        (forwarder, {"BATCHES_MAX": few}),
    ]


def _of_sessions(chance: random.Random) -> Limits:
    few = chance.choice([1, 2, 5])
    ready = {"READY_MAX": chance.choice([1, 2, 4, 1_024])}
    return [
        (held_sessions, ready),
        (session_operations, {**ready, "FIRST_ROWS": chance.choice([1, 2, 64])}),
        (session_operations, {"LOOKED_AT_MAX": chance.choice([1, 3])}),
        (session_list, {"READ_AT_ONCE": chance.choice([1, 3, 256])}),
        (sessions, {"GIVEN_PER_TURN": few, "SERVED_AT_ONCE": chance.choice([1, 3])}),
        (duplicate_history, {"SEGMENT_IDS": chance.choice([1, 3, 65_536]), "CAPACITY_MIN": 2}),
        (duplicates, {"RECALLED_AT_ONCE": chance.choice([1, 4_096])}),
        (reads, {"FORESEEN_MAX": chance.choice([1, 3])}),
    ]


@contextmanager
def simulated_loop(machine: Machine) -> Iterator[None]:
    """The modules that ask for the running loop get the machine's, and log nothing."""
    loop = mock.Mock(get_running_loop=lambda: machine)
    with (
        mock.patch.multiple(forwarder, log=Silent(), asyncio=loop),
        mock.patch.multiple(open_transactions, log=Silent(), asyncio=loop),
    ):
        yield
