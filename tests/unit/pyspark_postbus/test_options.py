"""R-PIPE-01: an option that is wrong is refused by its name."""

from __future__ import annotations

import pytest

from pyspark_postbus.options import (
    EARLIEST,
    LATEST,
    BadOption,
    Bound,
    ReadOptions,
    read_options,
    write_options,
)

CONNECTION = (
    "Endpoint=sb://localhost:6000;SharedAccessKeyName=Root;SharedAccessKey=k;"
    "UseDevelopmentEmulator=true"
)
BASE = {"connectionstring": CONNECTION, "queue": "orders"}


def read(streaming: bool = False, **more: str) -> ReadOptions:
    return read_options({**BASE, **more}, streaming)


def test_the_defaults_read_all_that_is_there() -> None:
    found = read()
    assert (found.entity, found.is_topic, found.mode) == ("orders", False, "feed")
    assert (found.start, found.end) == (Bound(EARLIEST), Bound(LATEST))
    assert (found.operations, found.sub_queue, found.max_offsets) == (None, None, None)
    assert (found.min_partitions, found.max_partitions) == (1, 16)
    assert (found.fail_on_data_loss, found.include_body) == (True, True)


def test_a_stream_starts_with_what_comes() -> None:
    assert read(streaming=True).start == Bound(LATEST)


def test_names_are_taken_in_any_case() -> None:
    assert read(STARTINGOFFSETS="latest").start == Bound(LATEST)


def test_offsets_are_given_for_each_partition() -> None:
    assert read(startingOffsets='{"1": 7, "0": -2}').start == Bound(EARLIEST, ((0, -2), (1, 7)))


@pytest.mark.parametrize(
    ("text", "at"), [("1700000000123", 1_700_000_000_123), ("2023-11-14T22:13:20.5+00:00", 500)]
)
def test_a_time_is_ms_or_iso(text: str, at: int) -> None:
    found = read(startingTimestamp=text).start.at
    assert found is not None
    assert found % 1_000_000 in (at, at % 1_000_000)


def test_a_reader_has_the_name_that_is_given_or_the_one_of_its_checkpoint() -> None:
    assert read(streaming=True, readerName="audit").reader_name == "audit"
    assert read(streaming=True).reader_name is None


def test_a_checkpoint_without_a_name_has_the_reader_that_it_had() -> None:
    name = read(streaming=True).former_reader_name
    assert name == read(streaming=True).former_reader_name
    assert name != read(streaming=True, operations="enqueued").former_reader_name


def test_the_key_is_no_part_of_a_readers_name() -> None:
    other = CONNECTION.replace("SharedAccessKey=k", "SharedAccessKey=changed")
    name = read(streaming=True).former_reader_name
    assert name == read(True, connectionstring=other).former_reader_name


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"startingOffset": "earliest"}, "no option 'startingoffset'; did you mean 'startingOff"),
        ({"colour": "red"}, "no option 'colour'$"),
        ({"path": "x"}, "no option 'path'"),
        ({"topic": "news"}, "one of the options 'queue' and 'topic'"),
        ({"queue": ""}, "one of the options 'queue' and 'topic'"),
        ({"subscription": "all"}, "goes with 'topic'"),
        ({"subQueue": "dlq"}, "'subQueue' is 'dlq'"),
        ({"readMode": "peek"}, "'readMode' is 'peek'"),
        ({"operations": "enqueued,eaten"}, "'operations' has 'eaten'; there are: enqueued"),
        ({"startingOffsets": "first"}, "must be earliest, latest or JSON"),
        ({"startingOffsets": '{"0": "x"}'}, "must be earliest, latest or JSON"),
        ({"startingOffsets": '{"0": -3}'}, "must be earliest, latest or JSON"),
        ({"startingOffsets": "[1]"}, "must be earliest, latest or JSON"),
        ({"startingTimestamp": "yesterday"}, "must be ms since 1970"),
        ({"startingTimestamp": "2026-01-01T00:00:00"}, "no time zone"),
        ({"startingTimestamp": "1", "startingOffsets": "latest"}, "cannot both be given"),
        ({"maxOffsetsPerTrigger": "5"}, "is for stream, not for batch"),
        ({"minPartitions": "0"}, "must be a number above 0"),
        ({"minPartitions": "9", "maxPartitions": "3"}, "more than 'maxPartitions'"),
        ({"failOnDataLoss": "maybe"}, "'failOnDataLoss' is 'maybe', not true or false"),
        ({"readMode": "messages", "operations": "enqueued"}, "is for batch, stream, not for mess"),
        ({"connectionString": ""}, "'connectionString' is missing"),
        ({"connectionString": "x=y"}, "'connectionString': the connection string has an unknown"),
        ({"connectionString": CONNECTION + ";EntityPath=other"}, "is for 'other', not for 'ord"),
    ],
)
def test_a_wrong_option_is_refused(more: dict[str, str], said: str) -> None:
    given = {name.lower(): value for name, value in {**BASE}.items()}
    given |= {name.lower(): value for name, value in more.items()}
    with pytest.raises(BadOption, match=said):
        read_options(given, streaming=False)


def test_messages_are_read_as_a_batch_only_and_of_one_place() -> None:
    with pytest.raises(BadOption, match="as a batch only"):
        read(streaming=True, readMode="messages")
    with pytest.raises(BadOption, match="needs the 'subscription'"):
        read_options({**BASE, "queue": "", "topic": "news", "readmode": "messages"}, False)


def test_a_writer_takes_only_what_is_for_writers() -> None:
    assert write_options({**BASE, "checkpointlocation": "x"}).entity == "orders"
    with pytest.raises(BadOption, match="'operations' is for batch, stream, not for write"):
        write_options({**BASE, "operations": "enqueued"})
