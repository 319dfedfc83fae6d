"""Ranges of the feed as Arrow: fetched a chunk ahead, decoded, a record batch for each chunk."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from postbus.broker.subqueue_numbers import owner_of
from postbus.client.connection_string import Namespace
from postbus.feed.events import JournalOrigin
from pyspark_postbus.chunk_records import OtherJournal
from pyspark_postbus.client import (
    READ_MAX,
    Chunk,
    Client,
    Feed,
    OffsetAhead,
    OffsetTrimmed,
)
from pyspark_postbus.decode import Decoder, Selection
from pyspark_postbus.options import SUB_QUEUES, BadOption, ReadOptions
from pyspark_postbus.ranges import Range, check_kind, lost, made_anew

CHUNK_BYTES: Final = READ_MAX
"""Each chunk makes a record batch. Smaller chunks cost more for each row, up to twice as much at 1
MiB. A task holds about three chunks at a time."""

_LOG = logging.getLogger("pyspark_postbus")


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a task needs to read its ranges; made on the driver and sent along."""

    namespace: Namespace
    entity: str
    subscriptions: Mapping[int, str]
    """Names by owner."""
    columns: tuple[str, ...]
    selection: Selection
    journals: Mapping[int, int]
    """Ids by fragment: an entity that is made anew while it is read has others."""
    fail_on_data_loss: bool


def plan_of(options: ReadOptions, columns: tuple[str, ...], feed: Feed) -> Plan:
    """The plan for the tasks of a reader. BadOption for an absent subscription, and for a topic
    that was named as a queue."""
    check_kind(feed, options.is_topic)
    names = {
        owner_of(number): place.subscription
        for number, place in feed.places.items()
        if place.subscription is not None
    }
    owners = None
    if options.subscription is not None:
        asked = options.subscription.lower()
        owners = frozenset(owner for owner, name in names.items() if name.lower() == asked)
        if not owners:
            raise BadOption(f"'{feed.entity}' has no subscription '{options.subscription}'")
    sub_queues = None if options.sub_queue is None else frozenset({SUB_QUEUES[options.sub_queue]})
    return Plan(
        options.namespace,
        feed.entity,
        names,
        columns,
        Selection(options.operations, owners, sub_queues),
        {one.fragment: one.id for one in feed.fragments},
        options.fail_on_data_loss,
    )


def fetched(plan: Plan, ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
    """The rows of all ranges."""
    with Client(plan.namespace) as client, ThreadPoolExecutor(1) as ahead:
        for each in ranges:
            try:
                yield from _rows(plan, each, client, ahead)
            except OtherJournal as error:
                if plan.fail_on_data_loss:
                    raise made_anew(plan.entity, each.fragment) from error
                _LOG.warning(
                    "entity=%s partition=%d: made anew before offsets up to %d were read",
                    *(plan.entity, each.fragment, each.end - 1),
                )


def _rows(
    plan: Plan, wanted: Range, client: Client, ahead: ThreadPoolExecutor
) -> Iterator[pa.RecordBatch]:
    place = JournalOrigin(plan.entity, wanted.fragment, plan.subscriptions)
    decoder = Decoder(place, plan.columns, plan.selection, plan.journals[wanted.fragment])
    for chunk, start in _chunks(plan, wanted, client, ahead):
        rows = decoder.decode(chunk.data, start, wanted.end)
        if rows.num_rows:
            yield rows


def _chunks(
    plan: Plan, wanted: Range, client: Client, ahead: ThreadPoolExecutor
) -> Iterator[tuple[Chunk, int]]:
    """The chunks of a range, each with the offset it was asked for. The next chunk is under way
    while the last is being decoded."""
    start = wanted.start
    coming = ahead.submit(_read, plan, wanted, client, start)
    while start < wanted.end:
        chunk, came_from = coming.result()
        start = chunk.next
        if start < wanted.end:
            coming = ahead.submit(_read, plan, wanted, client, start)
        if chunk.data:
            yield chunk, came_from


def _read(plan: Plan, wanted: Range, client: Client, start: int) -> tuple[Chunk, int]:
    try:
        chunk = client.read(plan.entity, wanted.fragment, start, CHUNK_BYTES)
    except OffsetTrimmed as error:
        if plan.fail_on_data_loss:
            raise lost(plan.entity, wanted.fragment, start, error.first, wanted.end) from error
        _LOG.warning(
            "entity=%s partition=%d: offsets %d to %d were trimmed before they were read",
            *(plan.entity, wanted.fragment, start, min(error.first, wanted.end) - 1),
        )
        # Nothing of the gap can be read; the offset after it may be past the range.
        return Chunk(b"", min(max(error.first, start + 1), wanted.end), wanted.end), start
    except OffsetAhead as error:
        return _past_the_end(plan, wanted, start, error.next), start
    if chunk.next <= start:
        return _past_the_end(plan, wanted, start, chunk.head), start
    return chunk, start


def _past_the_end(plan: Plan, wanted: Range, start: int, end: int) -> Chunk:
    """Durable records stay, unless the journal has been replaced."""
    if plan.fail_on_data_loss:
        raise lost(plan.entity, wanted.fragment, start, 0, end)
    _LOG.warning(
        "entity=%s partition=%d: offsets %d to %d are not there any more",
        *(plan.entity, wanted.fragment, start, wanted.end - 1),
    )
    return Chunk(b"", wanted.end, wanted.end)
