"""Ranges of offsets: found from the user's bounds, and packed into Spark's partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pyspark_postbus.client import Client, Feed, Fragment
from pyspark_postbus.options import EARLIEST, LATEST, BadOption, Bound

RANGE_MIN: Final = 65_536
"""Offsets that make a task of their own worth its while: a task costs some 30 ms."""
RANGE_USUAL: Final = 262_144
"""Offsets of a task if there are enough for several: the cost of a task is then a hundredth."""
SEVERAL: Final = 4


class Range(NamedTuple):
    """Offsets of a fragment, the end not included."""

    fragment: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class DataLoss(Exception):
    """Offsets that a reader wanted are gone, or never were."""


def check_kind(feed: Feed, is_topic: bool) -> None:
    """BadOption where `queue` names a topic, or `topic` a queue."""
    if (feed.kind == "topic") != is_topic:
        raise BadOption(
            f"'{feed.entity}' is a {feed.kind}: name it with the option '{feed.kind}', not with "
            f"'{'topic' if is_topic else 'queue'}'"
        )


def snapshot(
    client: Client, entity: str, *bounds: Bound
) -> tuple[Feed, tuple[dict[int, int], ...]]:
    """The feed, and the offsets that bounds mean in it. A time is looked up before the ends: on a
    busy entity it may be the time of a record that was not there a moment ago."""
    feed = client.feed(entity)
    times = {
        bound.at: {
            one.fragment: client.offset_at(feed.entity, one.fragment, bound.at)
            for one in feed.fragments
        }
        for bound in bounds
        if bound.at is not None
    }
    if times:
        feed = client.feed(entity)
    found = (_resolved(one, feed, {} if one.at is None else times[one.at]) for one in bounds)
    return feed, tuple(found)


def _resolved(bound: Bound, feed: Feed, times: Mapping[int, int]) -> dict[int, int]:
    """The offset that a bound means in each fragment."""
    named = dict(bound.offsets)
    unknown = named.keys() - {fragment.fragment for fragment in feed.fragments}
    if unknown:
        raise BadOption(f"'{feed.entity}' has no partition {min(unknown)}")
    found = {}
    for fragment in feed.fragments:
        if bound.at is not None:
            # A fragment that came between the two looks has only later records.
            found[fragment.fragment] = times.get(fragment.fragment, fragment.first)
            continue
        offset = named.get(fragment.fragment, bound.everywhere)
        if offset == EARLIEST:
            offset = fragment.first
        elif offset == LATEST or offset is None:
            offset = fragment.next
        found[fragment.fragment] = offset
    return found


def checked(fragment: Fragment, entity: str, start: int, fail: bool) -> int:
    """An offset to start from that is there: the same, or the nearest where losing is allowed."""
    if fragment.first <= start <= fragment.next:
        return start
    if fail:
        raise lost(entity, fragment.fragment, start, fragment.first, fragment.next)
    # A journal that ends earlier than before was restored from a copy: the rest of it was read.
    return fragment.first if start < fragment.first else fragment.next


def lost(entity: str, fragment: int, start: int, first: int, after: int) -> DataLoss:
    """The error of a reader that was told to fail on data loss."""
    if start < first:
        what = f"offset {start} was trimmed; the oldest one left is {first}"
    else:
        what = f"offset {start} is past the end of the journal, {after}"
    return DataLoss(
        f"'{entity}', partition {fragment}: {what}. With failOnDataLoss=false the reader goes on "
        "with what is there."
    )


def made_anew(entity: str, fragment: int) -> DataLoss:
    """The error of a reader that finds another journal than the journal it has read."""
    return DataLoss(
        f"'{entity}', partition {fragment}: the entity was deleted and created again, and its "
        "former events are gone. With failOnDataLoss=false the reader goes on with the new ones."
    )


def partitions(ranges: Sequence[Range], least: int, most: int) -> list[tuple[Range, ...]]:
    """Split large ranges and pack small ones together, into `least` to `most` groups."""
    ranges = [one for one in ranges if one.size > 0]
    total = sum(one.size for one in ranges)
    if not total:
        return []
    worth = max(min(-(-total // RANGE_MIN), SEVERAL), total // RANGE_USUAL)
    wanted = min(max(least, worth), most, total)
    groups: list[list[Range]] = [[]]
    done = 0
    for fragment, begin, end in ranges:
        start = begin
        while start < end:
            if done == total * len(groups) // wanted:
                groups.append([])
            cut = min(end, start + total * len(groups) // wanted - done)
            groups[-1].append(Range(fragment, start, cut))
            done += cut - start
            start = cut
    return [tuple(group) for group in groups]


def limited(start: Mapping[int, int], end: Mapping[int, int], count_max: int) -> dict[int, int]:
    """An end with no more than `count_max` offsets before it. Each fragment has a share, in
    proportion to its offsets."""
    sizes = {fragment: end[fragment] - start[fragment] for fragment in end}
    total = sum(sizes.values())
    if total <= count_max:
        return dict(end)
    taken = {fragment: size * count_max // total for fragment, size in sizes.items()}
    # The rest after rounding goes to the first fragments that have more.
    left = count_max - sum(taken.values())
    for fragment in sorted(sizes):
        if left and taken[fragment] < sizes[fragment]:
            taken[fragment] += 1
            left -= 1
    return {fragment: start[fragment] + taken[fragment] for fragment in end}
