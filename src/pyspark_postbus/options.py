"""Every option of the data source, declared once: docs/spark.md is compared with this table.

Spark hands over all options as text, their names in lower case. An unknown option is an error: a
misspelt `startingOffsets` must not silently read another part of the feed.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from postbus.broker.record_kinds import OPERATIONS
from postbus.client.connection_string import BadConnectionString, Namespace, parse

Mode = Literal["feed", "messages"]
SUB_QUEUES: Final = {"": 0, "deadletter": 1, "transferdeadletter": 2}
READER_NAME_MAX: Final = 128


class BadOption(ValueError):
    """An option is not known, has a value that it cannot have, or does not go with another."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option, and its purpose."""

    name: str
    default: str
    help: str
    used_in: frozenset[str]


_READ: Final = frozenset({"batch", "stream", "messages"})
_FEED: Final = frozenset({"batch", "stream"})
_ALL: Final = _READ | {"write"}

DECLARED: Final = (
    Option("connectionString", "required", "what `postbus serve` prints", _ALL),
    Option("queue", "", "the queue to read or write; this or `topic`", _ALL),
    Option("topic", "", "the topic to read or write", _ALL),
    Option(
        "subscription",
        "",
        "of the topic: only what happens in this subscription; `messages` needs it",
        _READ,
    ),
    Option(
        "subQueue",
        "all (`messages`: the queue itself)",
        "`deadletter`, `transferdeadletter`, or empty for the queue itself",
        _READ,
    ),
    Option(
        "readMode", "feed", "`feed` for the history, `messages` to peek at what is there", _READ
    ),
    Option("operations", "all", "only these, separated by commas: `enqueued,completed`", _FEED),
    Option(
        "startingOffsets",
        "earliest (stream: latest)",
        '`earliest`, `latest`, or JSON `{"0": 120}` by partition; -2 is earliest, -1 latest',
        _FEED,
    ),
    Option("endingOffsets", "latest", "the same; what it names is not read", frozenset({"batch"})),
    Option(
        "startingTimestamp",
        "",
        "ms since 1970 or ISO 8601, in place of `startingOffsets`: the first offset committed then",
        _FEED,
    ),
    Option("endingTimestamp", "", "the same, in place of `endingOffsets`", frozenset({"batch"})),
    Option(
        "maxOffsetsPerTrigger",
        "no limit",
        "at most so many offsets in one micro-batch",
        frozenset({"stream"}),
    ),
    Option(
        "maxBytesPerTrigger",
        "no limit",
        "about so many bytes of the journal in one micro-batch, by the size of the next records",
        frozenset({"stream"}),
    ),
    Option("minPartitions", "1", "split what is read into at least so many tasks", _READ),
    Option("maxPartitions", "16", "into no more tasks than this", _READ),
    Option(
        "failOnDataLoss",
        "true",
        "fail when offsets were trimmed before they were read; `false` goes on with what is left",
        _FEED,
    ),
    Option("includeBody", "true", "`false`: the schema has no `body`", _READ),
    Option(
        "pushFilters",
        "false",
        "`true`: filters on `partition`, `offset`, `timestamp` and `operation` narrow what is read;"
        " needs `spark.sql.python.filterPushdown.enabled`",
        frozenset({"batch"}),
    ),
    Option(
        "readerName",
        "one for each checkpoint",
        "what `postbus feed status` calls this reader; give each query another",
        frozenset({"stream"}),
    ),
    Option(
        "writeId",
        "the micro-batch, or one of its own",
        "what rows without a `messageId` have their ids from, beside themselves: give the same one"
        " to a write that is done again",
        frozenset({"write"}),
    ),
)

_IGNORED_IN_WRITES: Final = frozenset({"checkpointlocation"})
"""Spark's own, which it passes on to the sink."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a reader."""

    namespace: Namespace
    entity: str
    is_topic: bool
    subscription: str | None
    sub_queue: str | None
    """None for all of them."""
    mode: Mode
    operations: frozenset[str] | None
    start: Bound
    end: Bound
    max_offsets: int | None
    max_bytes: int | None
    min_partitions: int
    max_partitions: int
    fail_on_data_loss: bool
    include_body: bool
    push_filters: bool
    reader_name: str | None
    """None for a name of the query's own."""
    former_reader_name: str
    """From the options: a reader's name in earlier versions, whose checkpoints have no name."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a writer."""

    namespace: Namespace
    entity: str
    is_topic: bool
    id: str | None
    """The caller's base for message ids, if given."""


EARLIEST: Final = -2
LATEST: Final = -1


@dataclass(frozen=True, slots=True)
class Bound:
    """An end of the part to read: an offset for all fragments, an offset for each, or a time."""

    everywhere: int | None = None
    """An offset, EARLIEST or LATEST."""
    offsets: tuple[tuple[int, int], ...] = ()
    """By fragment; other fragments have `everywhere`."""
    at: int | None = None
    """Instant; then there are no offsets."""


def read_options(given: Mapping[str, str], streaming: bool) -> ReadOptions:
    """Check the options of a reader. Raises BadOption."""
    values = _Values(given)
    mode = values.choice("readMode", ("feed", "messages"), "feed")
    if mode == "messages" and streaming:
        raise BadOption("readMode=messages can be read as a batch only: use spark.read")
    use = "messages" if mode == "messages" else "stream" if streaming else "batch"
    values.refuse_others(use)
    entity, is_topic = values.entity()
    subscription = values.get("subscription") or None
    if subscription is not None and not is_topic:
        raise BadOption("the option 'subscription' goes with 'topic', not with 'queue'")
    if mode == "messages" and is_topic and subscription is None:
        raise BadOption("readMode=messages needs the 'subscription' of the topic")
    sub_queue = values.get("subQueue")
    if sub_queue is not None and sub_queue.lower() not in SUB_QUEUES:
        known = ", ".join(f"'{name}'" for name in SUB_QUEUES)
        raise BadOption(f"the option 'subQueue' is '{sub_queue}', but must be one of {known}")
    return ReadOptions(
        values.namespace(entity),
        entity,
        is_topic,
        subscription,
        None if sub_queue is None else sub_queue.lower(),
        "messages" if mode == "messages" else "feed",
        values.operations(),
        values.bound("starting", LATEST if streaming else EARLIEST),
        values.bound("ending", LATEST),
        values.number("maxOffsetsPerTrigger"),
        values.number("maxBytesPerTrigger"),
        *values.partition_counts(),
        values.flag("failOnDataLoss", True),
        values.flag("includeBody", True),
        values.flag("pushFilters", False),
        values.reader_name(),
        values.former_reader_name(),
    )


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Check the options of a writer. Raises BadOption."""
    values = _Values(
        {name: value for name, value in given.items() if name.lower() not in _IGNORED_IN_WRITES}
    )
    values.refuse_others("write")
    entity, is_topic = values.entity()
    return WriteOptions(values.namespace(entity), entity, is_topic, values.get("writeId") or None)


class _Values:
    """The options as given, read in turn."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}

    def get(self, name: str) -> str | None:
        value = self._given.get(name.lower())
        return None if value is None else value.strip()

    def refuse_others(self, use: str) -> None:
        known = {option.name.lower(): option for option in DECLARED}
        for name in sorted(self._given):
            option = known.get(name)
            if option is None:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean '{known[near[0]].name}'?" if near else ""
                raise BadOption(f"there is no option '{name}'{hint}")
            if use not in option.used_in:
                places = ", ".join(sorted(option.used_in))
                raise BadOption(f"the option '{option.name}' is for {places}, not for {use}")

    def namespace(self, entity: str) -> Namespace:
        text = self.get("connectionString")
        if not text:
            raise BadOption("the option 'connectionString' is missing")
        try:
            found = parse(text)
        except BadConnectionString as error:
            raise BadOption(f"the option 'connectionString': {error}") from None
        path = found.entity_path
        if path is not None and path.lower() != entity.lower():
            raise BadOption(f"the connection string is for '{path}', not for '{entity}'")
        return found

    def entity(self) -> tuple[str, bool]:
        queue, topic = self.get("queue"), self.get("topic")
        if bool(queue) == bool(topic):
            raise BadOption("one of the options 'queue' and 'topic' is needed, and not both")
        return (queue or topic or "").strip("/"), bool(topic)

    def operations(self) -> frozenset[str] | None:
        text = self.get("operations")
        if text is None:
            return None
        names = frozenset(filter(None, (part.strip().lower() for part in text.split(","))))
        unknown = sorted(names - set(OPERATIONS.values()))
        if unknown or not names:
            raise BadOption(
                f"the option 'operations' has '{', '.join(unknown) or text}'; there are: "
                f"{', '.join(OPERATIONS.values())}"
            )
        return names

    def bound(self, which: str, default: int) -> Bound:
        offsets = self.get(f"{which}Offsets")
        time = self.get(f"{which}Timestamp")
        if offsets is not None and time is not None:
            raise BadOption(f"'{which}Offsets' and '{which}Timestamp' cannot both be given")
        if time is not None:
            return Bound(at=_instant(f"{which}Timestamp", time))
        if offsets is None:
            return Bound(default)
        return _offsets(f"{which}Offsets", offsets, default)

    def number(self, name: str) -> int | None:
        text = self.get(name)
        if text is None:
            return None
        if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) == 0:
            raise BadOption(f"the option '{name}' is '{text}', but must be a number above 0")
        return int(text)

    def partition_counts(self) -> tuple[int, int]:
        least, most = self.number("minPartitions"), self.number("maxPartitions")
        if least is not None and most is not None and least > most:
            raise BadOption(f"'minPartitions' is {least}, more than 'maxPartitions', {most}")
        return least or 1, most or max(least or 0, PARTITIONS_MAX)

    def flag(self, name: str, default: bool) -> bool:
        value = self.choice(name, ("true", "false"), "true" if default else "false")
        return value == "true"

    def choice(self, name: str, allowed: Iterable[str], default: str) -> str:
        value = (self.get(name) or default).lower()
        if value not in allowed:
            raise BadOption(f"the option '{name}' is '{value}', not {' or '.join(allowed)}")
        return value

    def reader_name(self) -> str | None:
        name = self.get("readerName")
        if name is not None and not re.fullmatch(rf"[A-Za-z0-9_.\-]{{1,{READER_NAME_MAX}}}", name):
            raise BadOption(
                f"the option 'readerName' has up to {READER_NAME_MAX} letters, digits and _.-"
            )
        return name

    def former_reader_name(self) -> str:
        said = {key: text for key, text in self._given.items() if key != "connectionstring"}
        digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
        return f"spark-{digest[:12]}"


PARTITIONS_MAX: Final = 16


def _offsets(name: str, text: str, default: int) -> Bound:
    word = text.lower()
    if word in ("earliest", "latest"):
        return Bound(EARLIEST if word == "earliest" else LATEST)
    try:
        found = json.loads(text)
        offsets = tuple(sorted((int(key), _offset(value)) for key, value in found.items()))
    except (ValueError, AttributeError, TypeError):
        raise BadOption(
            f"the option '{name}' is '{text[:80]}', but must be earliest, latest or JSON such as "
            '{"0": 120}'
        ) from None
    return Bound(default, offsets)


def _offset(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < EARLIEST:
        raise ValueError
    return value


def _instant(name: str, text: str) -> int:
    if re.fullmatch(r"[0-9]{1,15}", text):
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise BadOption(
            f"the option '{name}' is '{text[:40]}', but must be ms since 1970 or a time such as "
            "2026-06-30T20:53:02Z"
        ) from None
    if when.tzinfo is None:
        raise BadOption(f"the option '{name}' has no time zone: write {text}Z, or with +02:00")
    return int((when - _EPOCH).total_seconds() * 1_000)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
