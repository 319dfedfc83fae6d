"""Every limit at which work is cut into pieces, so small that a short test meets it many times.

A fault at such a limit (one batch too few, one line too many) shows only where the limit is met,
and with the limits of production no test meets it. The fixture `small_limits` is for tests in one
process; as a program this file is `postbus serve` with them (`tests.support.server.SmallServer`).
In compiled modules limits are fixed, and stay as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Final
from unittest import mock

LIMITS: Final[dict[str, dict[str, int]]] = {
    # the change feed and its reader
    "postbus.feed.service": {
        "BATCHES_MAX": 3,
        "RAW_MAX": 1_000,
        "LINES_AT_ONCE": 2,
        "LINES_BYTES": 700,
    },
    "postbus.store.sqlite.journal_reader": {"RAW_MAX": 1_000, "SPARE_BUFFERS": 1},
    "postbus.http.feed": {"BYTES_DEFAULT": 1_500},
    # copies, and what is let go
    "postbus.store.sqlite.files": {"BACKUP_PAGES": 1},
    "postbus.store.sqlite.retention": {
        "SLICE_BYTES_MAX": 1_000,
        "PINNED_ROWS_MAX": 3,
        "SHRINK_PAGES": 2,
        "FREE_PAGES_KEPT": 0,
    },
    "postbus.store.log.journal_reader": {"RAW_MAX": 1_000, "SPARE_BUFFERS": 1, "GAP_MAX": 100},
    "postbus.store.log.retention": {"SLICE_BYTES_MAX": 1_000, "PINNED_ROWS_MAX": 3},
    "postbus.store.log.reading": {"PINNED_AT_ONCE": 2},
    "postbus.store.log.locations": {"BLOCKS_MAX": 1},
    "postbus.store.log.segments": {"OPEN_MAX": 1},
    "postbus.store.trim": {"CANDIDATES_MAX": 3},
    "postbus.runtime.upkeep": {
        "TRIM_SLICE": 2,
        "DROP_SLICE": 3,
        "COPIED_AT_ONCE": 2,
        "SEEN_SLICE": 3,
    },
    # pages and lists
    "postbus.runtime.loading": {"REPLAY_BYTES": 200, "SURVEYED_AT_ONCE": 2},
    "postbus.http.replies": {"PAGE_LENGTH_MAX": 3},
    "postbus.gateway.management_rules": {"RULES_AT_ONCE": 2},
    "postbus.gateway.management_sessions": {"LISTED_AT_ONCE_MAX": 3},
    "postbus.broker.session_list": {"READ_AT_ONCE": 2},
    "postbus.broker.session_operations": {"FIRST_ROWS": 2},
    "postbus.broker.browse": {"PEEK_ROWS": 2, "DELETE_ROWS": 2},
    # chores and turns
    "postbus.broker.chores": {"SLICE": 3, "PAGE_ROWS": 4, "BATCHES_AT_ONCE": 1},
    "postbus.broker.forwarding": {"SHIPPED_AT_ONCE": 2, "DIVERTED_AT_ONCE": 2},
    "postbus.broker.topic": {"COPIES_AT_ONCE": 2, "STAGED_ROWS": 2},
    "postbus.runtime.receivers": {"SERVED_AT_ONCE": 2},
    "postbus.runtime.dispatch": {"GIVEN_PER_TURN": 2},
    "postbus.runtime.commits": {"PACKED_HERE_BYTES": 300},
    "postbus.runtime.runtime": {"REQUESTS_PER_TURN": 3},
    # what clients say and ask for, in pieces
    "postbus.gateway.context": {"FRAMES_AT_ONCE": 2},
    "postbus.gateway.connection": {"DECODED_PER_TURN": 100},
    "postbus.messages.batches": {"DECODED_PER_TURN": 100},
    "postbus.http.mailbox": {"DECODED_PER_TURN": 100},
    "postbus.namespace.resubmit": {"DECODED_MAX": 100},
    "postbus.gateway.response_writer": {"RESPONSE_TOIL_MAX": 1},
    "postbus.gateway.operations": {"LOOK_TOIL_MAX": 1},
    "postbus.http.messages": {"VALUES_PER_TURN": 2},
    "postbus.runtime.loaded_fragment": {
        "CHECKPOINT_CHANGES": 5,
        "CHECKPOINT_CHANGES_MIN": 2,
        "ROWS_PREPARED": 1,
    },
    "postbus.broker.window": {"LOW_MESSAGES": 3, "PAGE_MIN": 2, "PAGE_MAX": 4},
    "postbus.broker.window_budget": {"IDLE_TAKES": 3},
}


@contextmanager
def small() -> Iterator[None]:
    with ExitStack() as stack:
        for name, values in LIMITS.items():
            # Raises where there is no such limit any more.
            stack.enter_context(mock.patch.multiple(import_module(name), **values))
        yield


if __name__ == "__main__":
    from postbus.__main__ import main

    with small():
        sys.exit(main())
