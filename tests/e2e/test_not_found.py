"""What is not there is told in one sentence everywhere, in the client's own words.

Node, Java and .NET take "entity not found" from this very text (wire §7.2), and Node's
live tests compare host and path with those that they asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from postbus.amqp.codec.types import Symbol
from postbus.amqp.frames.performatives import ROLE_SENDER, Attach
from postbus.amqp.frames.terminus import Source, Target
from postbus.amqp.sending import SenderLink
from tests.support.access import Caller, Refused, ask, sas
from tests.support.administration import Administration
from tests.support.bus import Topic
from tests.support.server import Server

ROOT = "RootManageSharedAccessKey", "SAS_KEY_VALUE"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(Path(tmp_path_factory.mktemp("absent")) / "data").start()
    yield running
    running.discard()


@pytest.fixture(scope="module")
def topic(server: Server) -> str:
    return str(Administration(server.connection_string).make_topic("There"))


def sentence(path: str, host: str = "localhost") -> str:
    return f"The messaging entity 'sb://{host}/{path}' could not be found. TrackingId:"


PATHS = [
    "Some-Queue",
    "Some/Folder/Queue",
    "Some-Topic/Subscriptions/Some-Sub",
    "some-topic/subscriptions/SOME-SUB",  # as Java writes it
    "Some-Queue/$DeadLetterQueue",
    "Some-Queue/$deadletterqueue",
    "Some-Queue/$Transfer/$DeadLetterQueue",
    "Some-Queue/$management",
    "Some-Topic/Subscriptions/Some-Sub/$DeadLetterQueue/$management",
]


@pytest.mark.parametrize("path", PATHS)
def test_a_token_for_what_is_not_there(server: Server, path: str) -> None:
    with Caller(server) as caller:
        for audience in (f"sb://localhost:{server.port}/{path}", f"amqp://localhost/{path}"):
            status, text = caller.put_token(audience, sas(*ROOT))
            assert (status, text[: len(sentence(path))]) == (404, sentence(path))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("form", ["{}", "/{}", "amqps://localhost:5671/{}"])
@pytest.mark.parametrize("kind", ["send", "receive"])
def test_a_link_to_what_is_not_there(server: Server, kind: str, form: str, path: str) -> None:
    with Caller(server, *ROOT) as caller:
        refused = caller.attach(kind, form.format(path))
        assert isinstance(refused, Refused)
        assert refused.condition == "amqp:not-found"
        assert refused.text.startswith(sentence(path))


def test_a_subscription_of_a_topic_that_is_there(server: Server, topic: str) -> None:
    path = f"{topic.upper()}/subscriptions/Absent"
    with Caller(server, *ROOT) as caller:
        refused = caller.attach("receive", path)
        assert isinstance(refused, Refused)
        assert refused.text.startswith(sentence(path))


def test_a_destination_that_is_not_there(server: Server, topic: str) -> None:
    with Caller(server, *ROOT) as caller:
        frame = Attach("via", 0, ROLE_SENDER, source=Source("s"), target=Target(topic))
        destination = Symbol("com.microsoft:transfer-destination-address")
        frame.properties = {destination: "Absent/One"}
        link = caller.session.attach(SenderLink, frame)
        caller.write()
        assert isinstance(link, SenderLink)
        refused = caller.detached(link)
        assert refused.condition == "amqp:not-found"
        assert refused.text.startswith(sentence("Absent/One"))


def test_an_entity_that_is_deleted_under_its_links(server: Server) -> None:
    administration = Administration(server.connection_string)
    queue = administration.make_queue("Going")
    with Caller(server, *ROOT) as caller:
        links = [caller.attach("send", queue), caller.attach("receive", queue)]
        assert ask(server, "DELETE", queue, sas(*ROOT)).status == 200
        for link in links:
            assert not isinstance(link, Refused)
            refused = caller.detached(link)
            assert (refused.condition, refused.text[: len(sentence(queue))]) == (
                "amqp:not-found",
                sentence(queue),
            )


def test_a_rule_that_is_not_there(server: Server, topic: str) -> None:
    subscription = Administration(server.connection_string).make_subscription(Topic(topic))
    path = f"{topic}/Subscriptions/{subscription.name}"
    with Caller(server, *ROOT) as caller:
        asked = {"operation": "com.microsoft:remove-rule"}
        status, text, _ = caller.call(f"{path}/$management", asked, {"rule-name": "Absent"})
        assert (status, text.startswith(sentence(f"{path}/Rules/Absent"))) == (404, True)


@pytest.mark.parametrize(
    ("method", "path", "entity"),
    [
        ("POST", "Some-Queue/messages", "Some-Queue"),
        ("DELETE", "Some-Queue/messages/head", "Some-Queue"),
        (
            "POST",
            "Some-Topic/subscriptions/Sub/messages/head",
            "Some-Topic/subscriptions/Sub",
        ),
        ("GET", "Some-Queue/$feed", "Some-Queue"),
        ("GET", "Some-Queue/$usage", "Some-Queue"),
    ],
)
def test_a_request_over_http(server: Server, method: str, path: str, entity: str) -> None:
    """HTTP clients name the port as part of the host."""
    answer = ask(server, method, path, sas(*ROOT))
    assert answer.status == 404
    assert sentence(entity, f"localhost:{server.port}") in answer.text
