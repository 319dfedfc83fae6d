"""Entities that options of `serve` name: read, refused, and added to those of a file."""

from __future__ import annotations

import pytest

from postbus.config.content import Content, Queue, Topic
from postbus.config.mistakes import ConfigMistake
from postbus.config.option_reading import read_options, with_missing
from postbus.config.planning import Limits, make_plan
from postbus.config.toml import read_content
from postbus.model.description import QueueDescription

DEFAULTS = QueueDescription(lock_duration_ms=45_000, max_message_size_kb=512)
LIMITS = Limits(10, 10, 10, 10)


def named(*queues: str, topics: tuple[str, ...] = ()) -> Content:
    return read_options(queues, topics, DEFAULTS)


def steps(content: Content, present: Content, *, prune: bool = False) -> list[str]:
    plan = make_plan(content, present, LIMITS, prune=prune)
    return [f"{step.verb.value} {step.path}" for step in plan.steps]


def test_a_queue_is_what_a_queue_is_by_default() -> None:
    (queue,) = named("orders").queues
    assert (queue.name, queue.description) == ("orders", DEFAULTS)


def test_what_is_behind_the_last_slash_is_a_subscription() -> None:
    news, team = named(topics=("news/audit", "team/news/all")).topics
    assert (news.name, [each.name for each in news.subscriptions]) == ("news", ["audit"])
    assert (team.name, [each.name for each in team.subscriptions]) == ("team/news", ["all"])
    assert news.description.max_message_size_kb == 512
    assert news.subscriptions[0].description.lock_duration_ms == 45_000


def test_a_name_that_is_given_twice_is_one_entity() -> None:
    content = named("a", "A", topics=("news", "news/all", "News/audit", "news/ALL"))
    assert [queue.name for queue in content.queues] == ["a"]
    (news,) = content.topics
    assert [each.name for each in news.subscriptions] == ["all", "audit"]


@pytest.mark.parametrize(
    ("queues", "topics", "said"),
    [
        (("a//b",), (), "--queue a//b: 'URI_PATH' contains disallowed characters: 'a//b'"),
        (("",), (), "--queue : The entity name is empty"),
        ((), ("/audit",), "--topic /audit: The entity name is empty"),
        ((), ("news/",), "--topic news/: 'URI_PATH' contains disallowed characters: ''"),
        ((), ("news/a b",), "--topic news/a b: 'URI_PATH' contains disallowed characters: 'a b'"),
        ((), ("news/subscriptions/a",), "'Subscriptions' is reserved"),
        (("x",), ("X/y",), "--topic X/y: 'X' is a queue already, at --queue x"),
    ],
)
def test_a_mistake_names_the_option(
    queues: tuple[str, ...], topics: tuple[str, ...], said: str
) -> None:
    with pytest.raises(ConfigMistake) as caught:
        named(*queues, topics=topics)
    assert said in str(caught.value)


def test_the_file_decides_what_it_describes_and_the_rest_is_added() -> None:
    file = read_content(
        {
            "queues": {"orders": {"max_delivery_count": 3}},
            "topics": {"news": {"subscriptions": {"all": {"max_delivery_count": 4}}}},
        },
        DEFAULTS,
    )
    content = with_missing(file, named("Orders", "bills", topics=("news/ALL", "news/audit", "t")))
    assert [queue.name for queue in content.queues] == ["orders", "bills"]
    assert content.queues[0].description.max_delivery_count == 3
    news, other = content.topics
    assert [each.name for each in news.subscriptions] == ["all", "audit"]
    assert news.subscriptions[0].description.max_delivery_count == 4
    assert other.name == "t"


def test_a_name_that_is_of_another_kind_in_the_file_is_refused() -> None:
    file = read_content({"topics": {"news": {}}}, DEFAULTS)
    with pytest.raises(ConfigMistake) as caught:
        with_missing(file, named("news"))
    assert str(caught.value) == """--queue news: 'news' is a topic already, at [topics."news"]"""


def test_an_entity_that_exists_is_neither_changed_nor_pruned() -> None:
    other = QueueDescription(max_delivery_count=99)
    present = Content(queues=(Queue("orders", other), Queue("old", other)))
    assert steps(named("orders", "new"), present) == ["create new"]
    assert steps(named("orders"), present, prune=True) == ["delete old"]


def test_a_name_that_is_of_another_kind_in_the_namespace_is_refused() -> None:
    (topic,) = named(topics=("news",)).topics
    with pytest.raises(ConfigMistake) as caught:
        steps(named("news"), Content(topics=(Topic("news", topic.description),)))
    assert str(caught.value) == "--queue news: the namespace has a topic of this name"
