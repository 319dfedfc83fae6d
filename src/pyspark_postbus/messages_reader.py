"""The messages that are in a queue now, without taking them from anyone: `readMode=messages`.

A peek over AMQP, page by page (wire §6.2). The rows have the columns of the feed. `operation` is
the state of a message, and `offset`, `partition`, `timestamp` are null.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from postbus.amqp.codec.types import Int, Long
from postbus.amqp.events import LinkAttached, MessageReceived
from postbus.amqp.frames.performatives import ROLE_RECEIVER, ROLE_SENDER, SND_SETTLED, Attach
from postbus.amqp.frames.terminus import Source, Target
from postbus.amqp.limits import Limits
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sections import (
    Properties,
    encode_amqp_value,
    encode_application_properties,
    encode_properties,
    read_annotations,
    read_application_properties,
    read_header,
    read_properties,
    read_value,
    scan,
)
from postbus.amqp.sending import SenderLink
from postbus.messages.plain_values import id_text, property_text, read_body, text_of
from pyspark_postbus.client import RETRY_S, Client
from pyspark_postbus.columns import TYPES, arrow_schema
from pyspark_postbus.options import ReadOptions
from pyspark_postbus.ranges import Range, check_kind, partitions
from pyspark_postbus.record_columns import INSTANT_MAX
from pyspark_postbus.wire import AmqpRefused, Wire

PAGE_COUNT: Final = 1_000
STATES: Final = {0: "active", 1: "deferred", 2: "scheduled"}

_RESPONSE_MAX: Final = 128 << 20
"""A namespace may allow messages of 100 MB; a page of smaller messages is far below that."""
_REPLY_TO: Final = "spark-peek"
_SUFFIX: Final = {"": "", "deadletter": "/$DeadLetterQueue"}
_TRANSFER: Final = "/$Transfer/$DeadLetterQueue"
_DEAD_LETTER: Final = ("DeadLetterReason", "DeadLetterErrorDescription")
_US_PER_MS: Final = 1_000
_PAUSE_S: Final = 0.5


class MessagesReader(DataSourceReader):
    """Peeks at a queue, subscription or dead-letter queue."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with Client(options.namespace) as client:
            check_kind(client.feed(options.entity), options.is_topic)
        numbers = Range(0, *number_range(options))
        groups = partitions([numbers], options.min_partitions, options.max_partitions)
        return [InputPartition(group) for group in groups or [()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for numbers in partition.value:
            yield from self._rows(numbers)

    def _rows(self, numbers: Range) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(self._columns)
        for page in peeked(self._options, numbers.start, numbers.end):
            rows = [message_row(self._options, payload) for payload in page]
            arrays = [
                pa.array([row[name] for row in rows], TYPES[name][1]) for name in self._columns
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def address_of(options: ReadOptions) -> str:
    """The AMQP address that is peeked at."""
    path = options.entity
    if options.subscription is not None:
        path += f"/Subscriptions/{options.subscription}"
    sub_queue = options.sub_queue or ""
    return path + _SUFFIX.get(sub_queue, _TRANSFER)


def number_range(options: ReadOptions) -> tuple[int, int]:
    """The numbers of the messages that are there now, the end not included.

    The range is fixed first: a query that moves the messages it reads would see some of them again,
    under new numbers.
    """
    pages = _Pages(options)
    try:
        first = last = pages.first_from(0)
        if first is None or last is None:
            return 0, 0
        # The newest is found by asking from ever higher numbers on, and then in between.
        step = 1
        while (found := pages.first_from(last + step)) is not None:
            last, step = found, step * 2
        while step > 1:
            step //= 2
            found = pages.first_from(last + step)
            last = last if found is None else found
        return first, last + 1
    finally:
        pages.close()


def peeked(options: ReadOptions, start: int, end: int) -> Iterator[list[bytes]]:
    """The messages that have these numbers, in pages."""
    pages = _Pages(options)
    try:
        while start < end:
            page = pages.page(start, PAGE_COUNT)
            if not page:
                return
            numbers = [number_of(payload) for payload in page]
            inside = [each for each, number in zip(page, numbers, strict=True) if number < end]
            if inside:
                yield inside
            start = numbers[-1] + 1
    finally:
        pages.close()


def number_of(payload: bytes) -> int:
    """The sequence number of a message that was peeked at."""
    return int(read_annotations(payload, scan(payload))["x-opt-sequence-number"])


class _Pages:
    """Pages of messages, over as many connections as it takes."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._peek: _Peek | None = None

    def first_from(self, start: int) -> int | None:
        """The lowest number that is not below `start`."""
        page = self.page(start, 1)
        return number_of(page[0]) if page else None

    def page(self, start: int, count: int) -> list[bytes]:
        """Messages from a number on; empty when there are none."""
        deadline = time.monotonic() + RETRY_S
        while True:
            try:
                self._peek = self._peek or _Peek(self._options)
                return self._peek.page(start, count)
            except (OSError, AmqpRefused) as error:
                if isinstance(error, AmqpRefused) and not error.transient:
                    raise
                self.close()
                if time.monotonic() + _PAUSE_S > deadline:
                    raise
                time.sleep(_PAUSE_S)

    def close(self) -> None:
        if self._peek is not None:
            self._peek.wire.drop()
            self._peek = None


class _Peek:
    """A pair of links to an entity's $management node."""

    def __init__(self, options: ReadOptions) -> None:
        limits = Limits(message_size_max=_RESPONSE_MAX, assembling_bytes_max=_RESPONSE_MAX)
        self.wire = Wire(options.namespace, limits)
        node = f"{address_of(options)}/$management"
        asking = Attach("peek-in", 0, ROLE_SENDER, source=Source(_REPLY_TO), target=Target(node))
        asking.snd_settle_mode = SND_SETTLED
        answer = Attach("peek-out", 0, ROLE_RECEIVER, source=Source(node), target=Target(_REPLY_TO))
        session = self.wire.session
        self._asking = session.attach(SenderLink, asking)
        self._answers = session.attach(ReceiverLink, answer)
        # Both: an answer to a link that has no credit yet would never come.
        for event in self.wire.events(lambda: self._answers.attached and self._asking.sendable > 0):
            if isinstance(event, LinkAttached) and event.link is self._answers:
                self._answers.grant(1)
        self._asked = 0

    def page(self, start: int, count: int) -> list[bytes]:
        """Messages from a number on; empty when there are none."""
        self._asked += 1
        body = {"from-sequence-number": Long(start), "message-count": Int(count)}
        request = b"".join(
            (
                encode_properties(Properties(message_id=str(self._asked), reply_to=_REPLY_TO)),
                encode_application_properties({"operation": "com.microsoft:peek-message"}),
                encode_amqp_value(body),
            )
        )
        self._asking.send(self._asked.to_bytes(8, "big"), request, settled=True)
        answer: list[bytes] = []
        for event in self.wire.events(lambda: bool(answer)):
            if isinstance(event, MessageReceived):
                delivery = event.delivery
                if not delivery.settled:
                    self._answers.settle(delivery, None)
                self._answers.grant(1)
                answer.append(delivery.payload)
        return _messages_in(answer[0])


def _messages_in(payload: bytes) -> list[bytes]:
    sections = scan(payload)
    properties = read_application_properties(payload, sections)
    status = int(properties["statusCode"])
    if status == 204:
        return []
    if status >= 300:
        condition = str(properties.get("errorCondition", "amqp:internal-error"))
        raise AmqpRefused(condition, str(properties.get("statusDescription", "")))
    value = read_value(payload, sections)
    assert isinstance(value, dict)
    return [bytes(one["message"]) for one in value["messages"]]


def message_row(options: ReadOptions, payload: bytes) -> dict[str, Any]:
    """A message as a row, all columns."""
    sections = scan(payload)
    properties = read_properties(payload, sections)
    annotations = read_annotations(payload, sections)
    values = read_application_properties(payload, sections)
    header = read_header(payload, sections)
    state = STATES.get(int(annotations.get("x-opt-message-state", 0)), "active")
    enqueued = int(annotations["x-opt-enqueued-time"])
    expires = properties.absolute_expiry_time
    reason, description = (property_text(values.get(name)) for name in _DEAD_LETTER)
    is_scheduled = state == "scheduled"
    return {
        **dict.fromkeys(TYPES),
        "entity": options.entity,
        "subscription": options.subscription,
        "subQueue": options.sub_queue or "",
        "operation": state,
        "sequenceNumber": int(annotations["x-opt-sequence-number"]),
        "enqueuedTime": None if is_scheduled else _micros(enqueued),
        "scheduledEnqueueTime": _micros(enqueued) if is_scheduled else None,
        "messageId": id_text(properties.message_id) or None,
        "sessionId": properties.group_id,
        "partitionKey": text_of(annotations.get("x-opt-partition-key")),
        "correlationId": id_text(properties.correlation_id),
        "subject": properties.subject,
        "contentType": text_of(properties.content_type),
        "to": properties.to,
        "replyTo": properties.reply_to,
        "timeToLive": None if expires is None else int(expires) - enqueued,
        "expiresAt": None if expires is None else _micros(int(expires)),
        "deliveryCount": header.delivery_count,
        "deadLetterReason": reason,
        "deadLetterErrorDescription": description,
        "deadLetterSource": text_of(annotations.get("x-opt-deadletter-source")),
        "properties": [(str(name), property_text(value)) for name, value in values.items()],
        "bodySize": len(payload) - sections.body,
        "body": read_body(payload, sections)[0],
    }


def _micros(instant: int) -> int:
    return min(instant, INSTANT_MAX) * _US_PER_MS
