"""The official Java SDK: of the SDKs for which there are tests here, the one with transactions.
Also what it sends, reads and closes in its own way.

Run where Maven has a copy of it; `make test-long` gets one where there is a network.
"""

from __future__ import annotations

import pytest

from tests.support.administration import Administration
from tests.support.java import NoJava, class_path, play
from tests.support.server import Server


def _classes(tmp_path_factory: pytest.TempPathFactory, download: bool) -> str:
    try:
        return class_path(tmp_path_factory.mktemp("java"), download)
    except NoJava as reason:
        pytest.skip(f"no Java SDK: {reason}")


def test_every_section_of_a_message_with_the_java_sdk(
    server: Server, administration: Administration, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A footer, which Java sends with strings for keys and reads with symbols; annotations."""
    classes = _classes(tmp_path_factory, download=False)
    scenes = {scene: administration.make_queue("java") for scene in ("receive", "peek", "delete")}
    arguments = [f"{scene}={queue}" for scene, queue in scenes.items()]
    said = play(classes, "Fields.java", server.connection_string, *arguments)
    assert said == dict.fromkeys(scenes, "ok")


def test_locks_outlive_an_orderly_close_of_the_java_sdk(
    server: Server, administration: Administration, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """R-SETTLE-10."""
    classes = _classes(tmp_path_factory, download=False)
    queue = administration.make_queue("java", lock_s=120)
    said = play(classes, "Closing.java", server.connection_string, f"close={queue}")
    assert said == {"close": "ok"}


def test_transactions_with_the_java_sdk(
    server: Server, administration: Administration, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A send and a completion as one step: committed, and rolled back."""
    classes = _classes(tmp_path_factory, download=False)
    queues = [administration.make_queue("java") for _ in range(2)]
    scenes = [f"commit={queues[0]}", f"rollback={queues[1]}"]
    said = play(classes, "Transactions.java", server.connection_string, *scenes)
    assert said == dict.fromkeys(["commit", "rollback"], "ok")


def test_what_a_client_sees_with_the_java_sdk(
    server: Server, administration: Administration, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """An entity that is not there, every kind of filter, a message that was scheduled."""
    classes = _classes(tmp_path_factory, download=False)
    topic = administration.make_topic("java")
    subscription = administration.make_subscription(topic)
    scenes = {
        "missing": "Java-Absent",
        "rules": f"{topic},{subscription.name}",
        "scheduled": administration.make_queue("java"),
    }
    arguments = [f"{scene}={entities}" for scene, entities in scenes.items()]
    said = play(classes, "Fidelity.java", server.connection_string, *arguments)
    assert said == dict.fromkeys(scenes, "ok")


@pytest.mark.long
def test_everything_about_transactions_with_the_java_sdk(
    server: Server, administration: Administration, tmp_path_factory: pytest.TempPathFactory
) -> None:
    classes = _classes(tmp_path_factory, download=True)
    make = administration.make_queue
    topic = administration.make_topic("java")
    subscription = administration.make_subscription(topic)
    entities = {
        "commit": [make("java")],
        "rollback": [make("java")],
        "outcomes": [make("java")],
        "schedule": [make("java")],
        "span": [make("java"), make("java")],
        "cross-entity": [make("java"), make("java")],
        "cross-entity-subscription": [topic, subscription.name, make("java")],
        "second-receiver": [make("java"), make("java")],
    }
    scenes = [f"{scene}={','.join(names)}" for scene, names in entities.items()]
    said = play(classes, "Transactions.java", server.connection_string, *scenes)
    assert said == dict.fromkeys(entities, "ok")


@pytest.mark.long
def test_a_transaction_in_a_session_with_the_java_sdk(
    server: Server, administration: Administration, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """R-PART-18: what is sent in it must have a session id."""
    classes = _classes(tmp_path_factory, download=True)
    queue = administration.make_queue("java", requires_session=True)
    said = play(classes, "Transactions.java", server.connection_string, f"session={queue}")
    assert said == {"session": "ok"}
