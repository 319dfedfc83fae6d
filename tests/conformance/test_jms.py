"""Qpid JMS, the client that Java programs with JMS use over AMQP: what works and what is refused.

Run where Maven has a copy of it, as the tests of the Java SDK are.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from azure.servicebus.amqp import AmqpAnnotatedMessage

from tests.support.administration import Administration
from tests.support.bus import DEAD_LETTERS, Bus, Subscription, Topic, receive_one
from tests.support.java import NoJava, class_path, play, run_source
from tests.support.server import Server
from tests.tidy.tree import ROOT

ON_A_QUEUE = (
    "browse",
    "browse-many",
    "browse-locked",
    "browse-in-a-transaction",
    "selectors",
    "temporary",
    "kinds",
    "fields",
    "acknowledge",
    "delay",
    "expiry",
)


@pytest.fixture(scope="session")
def classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    try:
        return class_path(tmp_path_factory.mktemp("jms"), download=False)
    except NoJava as reason:
        pytest.skip(f"no Qpid JMS: {reason}")


def played(server: Server, classes: str, scenes: dict[str, list[str]]) -> dict[str, str]:
    arguments = [f"{scene}={','.join(names)}" for scene, names in scenes.items()]
    return play(classes, "Jms.java", str(server.port), *arguments)


async def test_jms_over_a_queue(
    server: Server, administration: Administration, classes: str
) -> None:
    """A browser takes nothing; what is not there is refused by name; the rest works."""
    make = administration.make_queue
    scenes = {scene: [make("jms")] for scene in ON_A_QUEUE}
    scenes["no-destination"] = [make("jms"), make("jms")]
    scenes["request-reply"] = [make("jms"), make("jms")]
    scenes["browse-sessions"] = [make("jms", requires_session=True), "in sessions"]
    # What a transaction would have taken stays locked when it is rolled back (docs/jms.md).
    scenes["transaction"] = [make("jms", lock_s=5)]
    scenes["unknown"] = ["jms-that-nobody-made"]
    assert played(server, classes, scenes) == dict.fromkeys(scenes, "ok")


async def test_jms_over_a_topic_and_its_subscriptions(
    server: Server, administration: Administration, classes: str
) -> None:
    scenes = {}
    for scene in ("browse-subscription", "no-local", "topics"):
        topic: Topic = administration.make_topic("jms")
        subscription: Subscription = administration.make_subscription(topic)
        scenes[scene] = [str(topic), subscription.name]
    assert played(server, classes, scenes) == dict.fromkeys(scenes, "ok")


async def test_a_jms_browser_sees_dead_letters(
    bus: Bus, server: Server, queue: str, classes: str
) -> None:
    """R-DLQ-02: peeked at as a queue is."""
    await bus.send(queue, AmqpAnnotatedMessage(value_body="dead"))
    async with bus.receiver(queue) as receiver:
        await receiver.dead_letter_message(await receive_one(receiver), reason="r")
    assert played(server, classes, {"browse-dead-letters": [queue]}) == {
        "browse-dead-letters": "ok"
    }
    assert await bus.peek(queue, sub_queue=DEAD_LETTERS) == []


def test_the_example_of_the_page_runs(
    server: Server, administration: Administration, classes: str, tmp_path: Path
) -> None:
    [example] = re.findall(r"```java\n(.*?)```", (ROOT / "docs/jms.md").read_text(), re.DOTALL)
    head, body = example.split("\n\n", 1)
    body = body.replace("localhost:5672", f"localhost:{server.port}")
    body = body.replace('"orders"', f'"{administration.make_queue("jms")}"')
    program = tmp_path / "Example.java"
    program.write_text(
        f"{head}\npublic final class Example {{\n"
        f"public static void main(String[] a) throws Exception {{\n{body}\n}}\n}}\n"
    )
    assert run_source(classes, program).strip() == "two cups of tea"
