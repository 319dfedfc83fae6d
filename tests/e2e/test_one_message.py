"""One message does not stop everybody, nor fill the disk, whatever rules it meets."""

from __future__ import annotations

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.support.administration import Administration
from tests.support.rest import RestClient
from tests.support.server import Server

SUBSCRIPTIONS = 10
LARGE = "; ".join(f"SET p{n} = a" for n in range(31))
"""Sets 31 properties, of 30 KB each where the message has one of that size."""
COSTLY = " OR ".join(["b < a"] * 100)


def written_bytes(server: Server) -> float:
    with RestClient(server.connection_string) as client:
        text = client.request("GET", "/metrics").body.decode()
    lines = [line for line in text.splitlines() if line.startswith("postbus_written_bytes_total")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def test_actions_write_no_more_than_headers_may_have(server: Server) -> None:
    """R-DLQ-05"""
    administration = Administration(server.connection_string)
    topic = administration.make_topic()
    made = [administration.make_subscription(topic, ("1 = 1", LARGE)) for _ in range(SUBSCRIPTIONS)]
    before = written_bytes(server)
    with ServiceBusClient.from_connection_string(server.connection_string) as client:
        with client.get_topic_sender(topic) as sender:
            sender.send_messages(ServiceBusMessage(b"", application_properties={"a": "a" * 30_000}))
        for one in made:
            with client.get_subscription_receiver(*one, sub_queue="deadletter") as receiver:
                [dead] = receiver.receive_messages(1, max_wait_time=10)
                assert dead.dead_letter_reason == "HeaderSizeExceeded"
                receiver.complete_message(dead)
    assert written_bytes(server) - before < 100_000


def test_rules_that_take_too_long_for_a_message_fail_and_the_next_is_served(
    server: Server,
) -> None:
    administration = Administration(server.connection_string)
    topic = administration.make_topic()
    one = administration.make_subscription(
        topic,
        *[f"{COSTLY} OR a = '{n}'" for n in range(8)],
        dead_lettering_on_filter_evaluation_exceptions=True,
    )
    with ServiceBusClient.from_connection_string(server.connection_string) as client:
        with client.get_topic_sender(topic) as sender:
            for a, b in (("a" * 31_000, "a" * 31_000), ("1", "2")):
                sender.send_messages(ServiceBusMessage(a, application_properties={"a": a, "b": b}))
        with client.get_subscription_receiver(*one) as receiver:
            assert [str(each) for each in receiver.receive_messages(2, max_wait_time=10)] == ["1"]
        with client.get_subscription_receiver(*one, sub_queue="deadletter") as receiver:
            [dead] = receiver.receive_messages(1, max_wait_time=10)
            assert dead.dead_letter_reason == "FilterException"
            assert "steps" in (dead.dead_letter_error_description or "")
