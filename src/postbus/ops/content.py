"""What a namespace holds, as the catalog has it: the side of a comparison that is no file."""

from postbus.config.content import Content, Queue, Subscription, Topic
from postbus.model.description import QueueDescription
from postbus.model.rule import RuleDescription
from postbus.model.subscription import SubscriptionDescription
from postbus.model.topic import TopicDescription
from postbus.namespace.namespace import TOPIC
from postbus.store.sqlite.catalog import Catalog


def content_of(catalog: Catalog) -> Content:
    """All entities and rules, by name. On the catalog's thread."""
    queues: list[Queue] = []
    topics: list[Topic] = []
    for record in catalog.entities():
        if record.kind == TOPIC:
            described = TopicDescription.from_json(record.description)
            topics.append(Topic(record.name, described, _subscriptions(catalog, record.name)))
        else:
            queues.append(Queue(record.name, QueueDescription.from_json(record.description)))
    return Content(tuple(queues), tuple(topics))


def _subscriptions(catalog: Catalog, topic: str) -> tuple[Subscription, ...]:
    return tuple(
        Subscription(
            record.name,
            SubscriptionDescription.from_json(record.description),
            tuple(map(RuleDescription.from_json, record.rules)),
        )
        for record in catalog.subscriptions.of(topic)
    )
