"""R-PIPE-01, R-PIPE-02: what a Spark task does, without Spark: feed, sender, peek on a broker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from postbus.client.connection_string import parse
from postbus.feed.events import JournalOrigin
from pyspark_postbus.batch_reader import FeedReader
from pyspark_postbus.client import (
    Client,
    NotFound,
    OffsetAhead,
    OffsetTrimmed,
    PostbusError,
    Unauthorized,
    Unavailable,
)
from pyspark_postbus.decode import Decoder
from pyspark_postbus.fetching import fetched, plan_of
from pyspark_postbus.messages_reader import message_row, number_range, peeked
from pyspark_postbus.options import ReadOptions, read_options
from pyspark_postbus.ranges import DataLoss, Range
from pyspark_postbus.rows import encode
from pyspark_postbus.sender import Sender
from pyspark_postbus.wire import AmqpRefused
from tests.support.administration import Administration
from tests.support.bus import DEAD_LETTERS, Bus
from tests.support.rest import RestClient
from tests.support.server import Server
from tests.support.waiting import until_blocking

pytestmark = pytest.mark.small_limits


def message(number: int, **values: Any) -> bytes:
    return encode({"body": f"body {number}", **values}, lambda: f"id {number}")


def send(server: Server, queue: str, count: int, **values: Any) -> None:
    with Sender(parse(server.connection_string), queue) as sender:
        for number in range(count):
            sender.send(message(number, **values))


def options(server: Server, queue: str, **more: str) -> ReadOptions:
    given = {"connectionString": server.connection_string, "queue": queue, **more}
    return read_options(given, streaming=False)


def rows(server: Server, queue: str, columns: tuple[str, ...], **more: str) -> list[dict[str, Any]]:
    asked = options(server, queue, **more)
    with Client(server.connection_string) as client:
        feed = client.feed(queue)
    ranges = [Range(one.fragment, one.first, one.next) for one in feed.fragments]
    found = fetched(plan_of(asked, columns, feed), ranges)
    return [row for batch in found for row in batch.to_pylist()]


def test_what_is_sent_is_in_the_feed_in_order(server: Server) -> None:
    queue = Administration(server.connection_string).make_queue()
    send(server, queue, 5_000, subject="tea", properties=[("n", 7)])
    found = rows(server, queue, ("offset", "operation", "messageId", "subject", "body"))
    assert [row["offset"] for row in found] == list(range(5_000))
    assert [row["body"] for row in found] == [b"body %d" % number for number in range(5_000)]
    assert {(row["operation"], row["subject"]) for row in found} == {("enqueued", "tea")}
    assert found[4_999]["messageId"] == "id 4999"


def test_outcomes_are_in_the_feed_and_can_be_chosen(server: Server) -> None:
    queue = Administration(server.connection_string).make_queue()
    send(server, queue, 3)
    with RestClient(server.connection_string) as rest:
        assert rest.take(queue).status == 200
        assert rest.request("DELETE", rest.lock(queue).location).status == 200
    columns = ("operation", "sequenceNumber", "deliveredTime", "enqueuedTime", "body")
    found = rows(server, queue, columns, operations="received,completed")
    assert [row["operation"] for row in found] == ["received", "completed"]
    assert found[1]["deliveredTime"] >= found[1]["enqueuedTime"]
    assert {row["body"] for row in found} == {None}


def test_refusals_are_exact(server: Server) -> None:
    queue = Administration(server.connection_string).make_queue()
    send(server, queue, 2)
    with Client(server.connection_string, retry_s=1) as client:
        with pytest.raises(NotFound):
            client.feed("nothing")
        with pytest.raises(OffsetAhead) as ahead:
            client.read(queue, 0, 3)
        assert ahead.value.next == 2
        with pytest.raises(NotFound):
            client.read(queue, 9, 0)
        with pytest.raises(PostbusError, match="HTTP 400"):
            client.read(queue, 0, 0, max_bytes=1 << 30)
        # And the connection can be used afterwards.
        assert client.read(queue, 0, 0).next == 2
    wrong = server.connection_string.replace("SharedAccessKey=", "SharedAccessKey=x")
    with Client(wrong) as client, pytest.raises(Unauthorized):
        client.feed(queue)
    with (
        pytest.raises(AmqpRefused, match="not-found"),
        Sender(parse(server.connection_string), "nothing") as sender,
    ):
        sender.send(message(1))


def test_a_trimmed_offset_names_the_first_that_is_left(
    make_server: Callable[..., Server],
) -> None:
    server = make_server("--retention-hours", "0").start()
    queue = Administration(server.connection_string).make_queue()
    send(server, queue, 50)
    with RestClient(server.connection_string) as rest, Client(server.connection_string) as client:
        for _ in range(49):
            assert rest.take(queue).status == 200

        def trimmed() -> bool:
            rest.send(queue, b"more")
            assert rest.take(queue).status == 200
            return client.feed(queue).fragments[0].first > 50

        until_blocking("old batches are trimmed", trimmed, within_s=60)
        before = client.feed(queue).fragments[0].first
        with pytest.raises(OffsetTrimmed) as gone:
            client.read(queue, 0, 0)
        assert before <= gone.value.first <= client.feed(queue).fragments[0].first


def test_offsets_are_found_by_time(server: Server) -> None:
    queue = Administration(server.connection_string).make_queue()
    send(server, queue, 10)
    first = rows(server, queue, ("timestamp",))[0]["timestamp"]
    at = int(first.timestamp() * 1_000)
    with Client(server.connection_string) as client:
        assert client.offset_at(queue, 0, at) == 0
        assert client.offset_at(queue, 0, at + 3_600_000) == 10


def test_a_reader_waits_for_what_comes(server: Server) -> None:
    queue = Administration(server.connection_string).make_queue()
    with Client(server.connection_string) as client:
        later = threading.Timer(0.3, send, (server, queue, 1))
        later.start()
        chunk = client.read(queue, 0, 0, wait_s=30)
        later.join()
    place = JournalOrigin(queue, 0, {})
    assert Decoder(place, ("messageId",)).decode(chunk.data, 0, 9).to_pylist() == [
        {"messageId": "id 0"}
    ]


def test_progress_is_reported_and_forgotten(server: Server) -> None:
    queue = Administration(server.connection_string).make_queue()
    send(server, queue, 10)
    with Client(server.connection_string) as client:
        client.report(queue, "audit", {0: 4})
        [reader] = client.readers(queue)
        assert (reader["name"], reader["offsets"], reader["lag"]) == ("audit", {"0": 4}, 6)
        client.forget(queue, "audit")
        assert client.readers(queue) == []


def test_a_client_waits_for_a_broker_that_is_started_again(server: Server) -> None:
    queue = Administration(server.connection_string).make_queue()
    send(server, queue, 100)
    with Client(server.connection_string) as client:
        assert client.feed(queue).fragments[0].next == 100
        server.kill()
        threading.Timer(0.5, server.start).start()
        assert client.feed(queue).fragments[0].next == 100
    server.kill()
    with Client(server.connection_string, retry_s=1) as client, pytest.raises(Unavailable):
        client.feed(queue)


def test_a_sender_goes_on_when_the_broker_was_killed(server: Server) -> None:
    """R-PIPE-01: nothing is lost, and duplicate detection drops what was sent twice."""
    admin = Administration(server.connection_string)
    queue = admin.make_queue(requires_duplicate_detection=True)
    with Sender(parse(server.connection_string), queue) as sender:
        for number in range(20_000):
            sender.send(message(number))
            if number == 10_000:
                server.kill()
                threading.Timer(0.5, server.start).start()
    found = rows(server, queue, ("messageId",), operations="enqueued")
    assert [row["messageId"] for row in found] == [f"id {number}" for number in range(20_000)]


def test_batches_are_no_larger_than_the_namespace_allows(
    make_server: Callable[..., Server],
) -> None:
    server = make_server("--message-size-max-kb", "4").start()
    queue = Administration(server.connection_string).make_queue()
    send(server, queue, 200, subject="x" * 500)
    found = rows(server, queue, ("messageId",))
    assert [row["messageId"] for row in found] == [f"id {number}" for number in range(200)]
    with (
        pytest.raises(AmqpRefused, match="size"),
        Sender(parse(server.connection_string), queue) as sender,
    ):
        sender.send(message(1, subject="x" * 8_000))


async def test_messages_are_peeked_at_and_stay_where_they_are(
    server: Server, open_bus: Callable[..., Bus]
) -> None:
    queue = Administration(server.connection_string).make_queue()
    send(server, queue, 2_500, subject="tea", timeToLive=60_000)
    bus = open_bus(server)
    receiver = await bus.open_receiver(queue)
    [first, *_] = await receiver.receive_messages(max_message_count=1)
    await receiver.dead_letter_message(first, reason="cold", error_description="too long")
    asked = options(server, queue, readMode="messages")
    start, end = number_range(asked)
    send(server, queue, 5)
    found = [message_row(asked, each) for page in peeked(asked, start, end) for each in page]
    assert [row["messageId"] for row in found] == [f"id {number}" for number in range(1, 2_500)]
    row = found[0]
    assert (row["operation"], row["subject"], row["body"]) == ("active", "tea", b"body 1")
    assert (row["timeToLive"], row["subQueue"], row["deliveryCount"]) == (60_000, "", 0)
    asked = options(server, queue, readMode="messages", subQueue="deadletter")
    [page] = peeked(asked, *number_range(asked))
    row = message_row(asked, page[0])
    assert (row["deadLetterReason"], row["deadLetterErrorDescription"]) == ("cold", "too long")
    assert (row["sequenceNumber"], row["subQueue"]) == (first.sequence_number, "deadletter")
    assert number_range(options(server, queue, readMode="messages", subQueue="")) == (2, 2_506)
    assert len(await bus.receive(queue, 1, sub_queue=DEAD_LETTERS)) == 1


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_task_does_not_take_a_queue_made_anew_for_the_one_it_was_to_read(
    server: Server, fail: str
) -> None:
    admin = Administration(server.connection_string)
    queue = admin.make_queue()
    send(server, queue, 5)
    with Client(server.connection_string) as client:
        plan = plan_of(options(server, queue, failOnDataLoss=fail), ("offset",), client.feed(queue))
    assert sum(batch.num_rows for batch in fetched(plan, [Range(0, 0, 5)])) == 5
    admin.client.delete_queue(queue)
    admin.client.create_queue(queue)
    send(server, queue, 8)
    if fail == "true":
        with pytest.raises(DataLoss, match="deleted and created again"):
            list(fetched(plan, [Range(0, 0, 5)]))
        with pytest.raises(DataLoss, match="past the end of the journal, 8"):
            list(fetched(plan, [Range(0, 20, 30)]))
    else:
        assert list(fetched(plan, [Range(0, 0, 5), Range(0, 20, 30), Range(0, 8, 9)])) == []


def test_an_end_that_the_journal_does_not_have_is_an_error_or_read_up_to(server: Server) -> None:
    queue = Administration(server.connection_string).make_queue()
    send(server, queue, 5)
    given = {"startingOffsets": '{"0": 2}', "endingOffsets": '{"0": 9}'}
    with pytest.raises(DataLoss, match="offset 9 is past the end of the journal, 5"):
        FeedReader(options(server, queue, **given), ("offset",)).partitions()
    reader = FeedReader(options(server, queue, failOnDataLoss="false", **given), ("offset",))
    [part] = reader.partitions()
    assert [row["offset"] for batch in reader.read(part) for row in batch.to_pylist()] == [2, 3, 4]


def test_a_message_of_many_megabytes_is_sent_and_seen(
    make_server: Callable[..., Server],
) -> None:
    server = make_server("--message-size-max-kb", "102400").start()
    queue = Administration(server.connection_string).make_queue()
    body = b"x" * (20 << 20)
    with Sender(parse(server.connection_string), queue) as sender:
        sender.send(encode({"body": body}, lambda: "large"))
        sender.send(message(1))
    asked = options(server, queue, readMode="messages")
    found = [message_row(asked, one) for page in peeked(asked, 0, 10) for one in page]
    assert [row["body"] == body for row in found] == [True, False]
    [large, small] = rows(server, queue, ("messageId", "body"))
    assert (large["messageId"], large["body"] == body) == ("large", True)
    assert small["body"] == b"body 1"


def test_what_is_given_is_on_its_way_before_there_is_more(server: Server) -> None:
    queue = Administration(server.connection_string).make_queue()
    with (
        Client(server.connection_string) as client,
        Sender(parse(server.connection_string), queue) as sender,
    ):
        for number in range(2_000):
            sender.send(message(number))

        def arrived() -> bool:
            return client.feed(queue).fragments[0].next == 2_000

        until_blocking("the broker has it, and nobody has waited for that", arrived, within_s=30)
        assert sender.settled < 2_000
        sender.flush()
        assert sender.settled == 2_000
