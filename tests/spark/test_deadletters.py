"""R-DLQ-08, R-PIPE-03: dead letters are sorted, repaired and discarded, each exactly once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from pyspark.sql import SparkSession

from pyspark_postbus.client import PostbusError
from pyspark_postbus.pipelines.deadletters import prepare
from pyspark_postbus.pipelines.inputs import read_dead_letters
from pyspark_postbus.pipelines.triage import triage
from tests.support.administration import Administration
from tests.support.server import Server
from tests.support.spark import Program
from tests.support.waiting import until_blocking

PROGRAM = Path(__file__).parent / "programs" / "repair_slowly.py"
WITHIN_S = 300.0
DEAD = ServiceBusSubQueue.DEAD_LETTER


def move_to_dead_letters(
    connection: str, queue: str, count: int, reason: str = "BadOrder", first: int = 0
) -> None:
    """Dead letters with numbered ids and errors."""
    with ServiceBusClient.from_connection_string(connection) as bus:
        with bus.get_queue_sender(queue) as sender:
            for start in range(first, first + count, 500):
                sender.send_messages(
                    [
                        ServiceBusMessage(
                            json.dumps({"order": number}), message_id=f"id-{number}",
                            subject="tea", application_properties={"tries": 3},
                        )
                        for number in range(start, min(start + 500, first + count))
                    ]
                )  # fmt: skip
        with bus.get_queue_receiver(queue) as receiver:
            done = 0
            while done < count:
                for message in receiver.receive_messages(500, max_wait_time=5):
                    text = f"order {message.message_id[3:]} has no customer"
                    receiver.dead_letter_message(message, reason=reason, error_description=text)
                    done += 1


def waiting(connection: str, queue: str, sub_queue: Any = None) -> list[Any]:
    """All that wait in a queue, without taking them."""
    with ServiceBusClient.from_connection_string(connection) as bus:
        found: list[Any] = []
        with bus.get_queue_receiver(queue, sub_queue=sub_queue) as receiver:
            number = 0
            while page := receiver.peek_messages(250, sequence_number=number):
                found += page
                number = page[-1].sequence_number + 1
        return found


def ids(messages: list[Any]) -> list[str]:
    return sorted(message.message_id for message in messages)


def test_dead_letters_are_sorted_by_reason_and_kind_of_error(
    spark: SparkSession, broker: Server, queue: str
) -> None:
    connection = broker.connection_string
    move_to_dead_letters(connection, queue, 30)
    move_to_dead_letters(connection, queue, 10, "Unpaid", first=30)
    found = triage(read_dead_letters(spark, connection, queue))
    bad, unpaid = found.kinds.collect()
    assert (bad.entity, bad.reason, bad.letters) == (queue, "BadOrder", 30)
    assert bad.error == "order <n> has no customer"
    assert [sample.messageId for sample in bad.samples] == ["id-0", "id-1", "id-2"]
    assert bad.samples[0].body == '{"order": 0}'
    assert bad.samples[0].deadLetterErrorDescription == "order 0 has no customer"
    assert (unpaid.reason, unpaid.letters) == ("Unpaid", 10)
    assert bad["first"] <= bad["last"] <= unpaid["last"]
    hours = found.hours.collect()
    assert {(row.reason, row.letters) for row in hours} == {("BadOrder", 30), ("Unpaid", 10)}


def test_a_body_that_is_no_text_does_not_stop_the_sorting(spark: SparkSession) -> None:
    letter = "x" * 300 + "é"
    rows = [
        (number, body, "Bad")
        for number, body in enumerate((b"\xff\xfe\x00tea", letter.encode(), None))
    ]
    letters = spark.createDataFrame(
        rows, "sequenceNumber long, body binary, deadLetterReason string"
    ).selectExpr(
        "'q' AS entity", "cast(NULL AS string) AS subscription", "deadLetterReason",
        "cast(NULL AS string) AS deadLetterErrorDescription", "current_timestamp() AS enqueuedTime",
        "0 AS deliveryCount", "length(body) AS bodySize", "sequenceNumber", "'id' AS messageId",
        "body",
    )  # fmt: skip
    [kind] = triage(letters).kinds.collect()
    assert kind.letters == 3
    assert [sample.body for sample in kind.samples] == ["\ufffd\ufffd\x00tea", "x" * 200, None]


def test_letters_are_repaired_by_expressions_and_the_others_stay(
    spark: SparkSession, broker: Server, queue: str
) -> None:
    connection = broker.connection_string
    move_to_dead_letters(connection, queue, 20)
    letters = read_dead_letters(spark, connection, queue)
    repair = prepare(
        letters, queue, "get_json_object(cast(body AS string), '$.order') < 5",
        {"body": "concat('repaired ', cast(body AS string))", "properties.repaired": "true",
         "properties.tries": "NULL", "subject": "upper(subject)"},
    )  # fmt: skip
    assert repair.outcome.selected == 5
    assert len(waiting(connection, queue, DEAD)) == 20, "nothing is changed by looking"
    told: list[int] = []
    outcome = repair.resubmit(connection, told=lambda outcome: told.append(outcome.done))
    assert outcome.outcomes == {"moved": 5}
    assert told == [5]
    back = waiting(connection, queue)
    assert [message.message_id for message in back] == [f"id-{number}" for number in range(5)]
    assert str(back[0]) == 'repaired {"order": 0}'
    assert back[0].subject == "TEA"
    assert back[0].application_properties == {b"repaired": True}
    assert back[0].delivery_count == 0
    assert len(waiting(connection, queue, DEAD)) == 15


def test_letters_are_repaired_by_a_function_and_sent_elsewhere(
    spark: SparkSession, broker: Server, queue: str
) -> None:
    connection = broker.connection_string
    other = Administration(connection).make_queue()
    move_to_dead_letters(connection, queue, 10)

    def mend(letter: dict[str, Any]) -> dict[str, Any] | None:
        number = json.loads(letter["body"])["order"]
        if number == 3:
            raise LookupError("no such order")
        return None if number % 2 else {"body": json.dumps({"order": number * 10})}

    repair = prepare(read_dead_letters(spark, connection, queue), queue, function=mend)
    assert (repair.outcome.selected, repair.outcome.left_alone) == (5, 4)
    outcome = repair.resubmit(connection, to=other)
    assert outcome.outcomes == {"moved": 5, "failed": 1}
    assert outcome.examples == ["4: failed: LookupError: no such order"]
    until_blocking("they arrive", lambda: len(waiting(connection, other)) == 5)
    assert [json.loads(str(one))["order"] for one in waiting(connection, other)] == [
        0, 20, 40, 60, 80,
    ]  # fmt: skip
    assert len(waiting(connection, queue, DEAD)) == 5


def test_letters_are_discarded_and_nothing_else(
    spark: SparkSession, broker: Server, queue: str
) -> None:
    connection = broker.connection_string
    move_to_dead_letters(connection, queue, 6)
    move_to_dead_letters(connection, queue, 4, "Unpaid", first=6)
    letters = read_dead_letters(spark, connection, queue)
    outcome = prepare(letters, queue, "deadLetterReason = 'Unpaid'").discard(connection)
    assert outcome.outcomes == {"removed": 4}
    assert ids(waiting(connection, queue, DEAD)) == [f"id-{number}" for number in range(6)]


def test_a_letter_that_somebody_else_has_moved_is_not_found(
    spark: SparkSession, broker: Server, queue: str
) -> None:
    connection = broker.connection_string
    move_to_dead_letters(connection, queue, 4)
    first = prepare(read_dead_letters(spark, connection, queue), queue)
    second = prepare(read_dead_letters(spark, connection, queue), queue)
    assert first.resubmit(connection).outcomes == {"moved": 4}
    assert second.resubmit(connection).outcomes == {"not found": 4}
    assert ids(waiting(connection, queue)) == [f"id-{number}" for number in range(4)]


def test_a_target_that_is_not_there_is_refused_by_name(
    spark: SparkSession, broker: Server, queue: str
) -> None:
    connection = broker.connection_string
    move_to_dead_letters(connection, queue, 1)
    repair = prepare(read_dead_letters(spark, connection, queue), queue)
    with pytest.raises(PostbusError, match="nowhere"):
        repair.resubmit(connection, to="nowhere")


def test_a_repair_killed_half_way_is_run_again_and_moves_each_letter_once(
    make_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = make_server().start()
    connection = server.connection_string
    queue = Administration(connection).make_queue()
    move_to_dead_letters(connection, queue, 2_500)
    marks = tmp_path / "marks"
    marks.mkdir()
    (marks / "slow").touch()
    log = tmp_path / "driver.log"
    program = Program(PROGRAM, log, connection, queue, str(marks))

    def stays() -> bool:
        assert program.running, program.tail()
        return (marks / "slow-reached").exists()

    until_blocking("it is half-way", stays, WITHIN_S)
    program.kill()
    server.kill()
    server.start()
    assert len(waiting(connection, queue)) == 1_000
    assert len(waiting(connection, queue, DEAD)) == 1_500

    (marks / "slow").unlink()
    Program(PROGRAM, log, connection, queue, str(marks)).wait(WITHIN_S)
    assert waiting(connection, queue, DEAD) == []
    back = waiting(connection, queue)
    assert Counter(ids(back)) == Counter(f"id-{number}" for number in range(2_500))
    assert all(message.application_properties[b"repaired"] for message in back)
