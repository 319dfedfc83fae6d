"""Entities from options of `postbus serve`: `--queue orders`, `--topic news/audit`.

An option gives a name and no description. It makes sure that the entity exists, and decides no
field. An existing entity of the namespace or the file stays as it is.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from postbus.config.content import Content, Described, Queue, Subscription, Topic
from postbus.config.mistakes import ConfigMistake, refusals_at
from postbus.model.address import check_entity_name, check_subscription_name
from postbus.model.description import QueueDescription, SubscriptionDescription, TopicDescription

Named = TypeVar("Named", bound=Described)


def read_options(
    queues: Sequence[str], topics: Sequence[str], defaults: QueueDescription
) -> Content:
    """The entities that the options name, each once. `defaults` are the values of a new queue.

    Raises ConfigMistake.
    """
    content = Content()
    for name in queues:
        content = with_missing(content, Content(queues=(_queue(name, defaults),)))
    for text in topics:
        content = with_missing(content, Content(topics=(_topic(text, defaults),)))
    return content


def with_missing(content: Content, named: Content) -> Content:
    """The content, plus the named entities that it lacks.

    Raises ConfigMistake where a name belongs to a queue in one and to a topic in the other.
    """
    _refuse_other_kind(named.queues, content.topics, "topic")
    _refuse_other_kind(named.topics, content.queues, "queue")
    subscriptions = {topic.name.casefold(): topic.subscriptions for topic in named.topics}
    topics = tuple(
        replace(
            topic,
            subscriptions=_joined(
                topic.subscriptions, subscriptions.get(topic.name.casefold(), ())
            ),
        )
        for topic in content.topics
    )
    return Content(_joined(content.queues, named.queues), _joined(topics, named.topics))


def _joined(first: tuple[Named, ...], more: tuple[Named, ...]) -> tuple[Named, ...]:
    names = {each.name.casefold() for each in first}
    return (*first, *(each for each in more if each.name.casefold() not in names))


def _refuse_other_kind(
    named: Sequence[Queue | Topic], content: Sequence[Queue | Topic], kind: str
) -> None:
    names = {each.name.casefold(): each for each in content}
    for each in named:
        if (found := names.get(each.name.casefold())) is not None:
            raise ConfigMistake(each.place, f"'{each.name}' is a {kind} already, at {found.place}")


def _queue(name: str, defaults: QueueDescription) -> Queue:
    place = f"--queue {name}"
    with refusals_at(place):
        check_entity_name(name)
    return Queue(name, defaults, place=place)


def _topic(text: str, defaults: QueueDescription) -> Topic:
    """A topic, or a topic and a subscription behind the last slash."""
    place = f"--topic {text}"
    name, slash, subscription = text.rpartition("/")
    if not slash:
        name = text
    with refusals_at(place):
        check_entity_name(name)
        if slash:
            check_subscription_name(subscription)
    description = TopicDescription(max_message_size_kb=defaults.max_message_size_kb)
    if not slash:
        return Topic(name, description, place=place)
    below = SubscriptionDescription(lock_duration_ms=defaults.lock_duration_ms)
    return Topic(name, description, (Subscription(subscription, below, place=place),), place=place)
