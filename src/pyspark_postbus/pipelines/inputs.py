"""Inputs of pipelines: the feed of an entity, or the dead letters that wait in it."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from pyspark.errors import PySparkAttributeError
from pyspark.sql import DataFrame, SparkSession

from pyspark_postbus.client import Client, Feed, PostbusError
from pyspark_postbus.columns import ALL, ddl

WITH_MESSAGES: Final = ddl((*ALL, "message"))
"""A schema with everything, and each message as it came."""


_TASKS: Final = 8
_PART: Final = 20_000
_PART_BYTES: Final = 64 << 20
"""Messages that a driver holds at a time, a part or two of them."""


class Address(NamedTuple):
    """A queue, a topic, or a subscription as `topic/subscriptions/name`, as a person writes it."""

    entity: str
    subscription: str | None = None

    @property
    def path(self) -> str:
        return (
            self.entity
            if self.subscription is None
            else f"{self.entity}/subscriptions/{self.subscription}"
        )


def address_of(text: str) -> Address:
    """Names may have slashes, so only `/subscriptions/` splits them (any case, as in the SDKs)."""
    at = text.lower().rfind("/subscriptions/")
    if at < 0:
        return Address(text.strip("/"))
    return Address(text[:at].strip("/"), text[at + len("/subscriptions/") :].strip("/"))


def known_feed(connection: str, entity: str) -> Feed:
    """The feed of an entity as the broker has it now."""
    with Client(connection) as client:
        return client.feed(entity)


def options_of(connection: str, kind: str, address: Address) -> dict[str, str]:
    """The options of the data source to read an entity."""
    options = {"connectionString": connection, kind: address.entity}
    if address.subscription is not None:
        options["subscription"] = address.subscription
    return options


def read_feed(
    spark: SparkSession,
    connection: str,
    entity: str,
    since: datetime | None = None,
    until: datetime | None = None,
    offsets: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
    schema: str | None = None,
) -> DataFrame:
    """A stretch of an entity's feed, by time or by offsets; without either, the whole feed.

    Times and offsets are those of the data source: `offsets` may have `startingOffsets` and
    `endingOffsets`.
    """
    address = address_of(entity)
    chosen = options_of(connection, known_feed(connection, address.entity).kind, address)
    if since is not None:
        chosen["startingTimestamp"] = _millis(since)
    if until is not None:
        chosen["endingTimestamp"] = _millis(until)
    reader = spark.read.format("postbus").options(**chosen, **(offsets or {}), **(options or {}))
    return (reader.schema(schema) if schema else reader).load()


def read_dead_letters(spark: SparkSession, connection: str, *entities: str) -> DataFrame:
    """The dead letters that are there now, whole, without taking them from anybody. A topic stands
    for all of its subscriptions."""
    frames = []
    for entity in entities:
        address = address_of(entity)
        feed = known_feed(connection, address.entity)
        for each in _letterboxes(feed, address):
            chosen = options_of(connection, feed.kind, each)
            chosen |= {"readMode": "messages", "subQueue": "deadletter"}
            frames.append(spark.read.format("postbus").options(**chosen).load())
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame)
    return whole


def _letterboxes(feed: Feed, address: Address) -> list[Address]:
    if feed.kind != "topic" or address.subscription is not None:
        return [address]
    names = {place.subscription for place in feed.places.values()} - {None}
    if not names:
        raise PostbusError(404, f"the topic '{address.entity}' has no subscriptions")
    return [Address(address.entity, name) for name in sorted(filter(None, names))]


def is_remote(spark: SparkSession) -> bool:
    """Whether the driver is somewhere else, as over Spark Connect."""
    try:
        return spark.sparkContext is None
    except PySparkAttributeError:
        return True


def parallelism(spark: SparkSession) -> int:
    """Tasks that run at once, or a guess where nobody says."""
    return _TASKS if is_remote(spark) else spark.sparkContext.defaultParallelism


def parts_of(count: int, size: int) -> int:
    """The number of parts that the driver cuts messages of this count and total size into."""
    return max(1, -(-count // _PART), min(count, -(-size // _PART_BYTES)))


def offsets_text(offsets: Mapping[int, int]) -> str:
    """Offsets by partition as the option `startingOffsets` wants them."""
    return json.dumps({str(partition): offset for partition, offset in offsets.items()})


def _millis(at: datetime) -> str:
    aware = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return str(int(aware.timestamp() * 1_000))
