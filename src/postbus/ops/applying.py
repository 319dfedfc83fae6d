"""Carries out the steps that make a namespace like a file, one after the other."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from postbus.config.content import destinations
from postbus.config.steps import Step, Verb
from postbus.errors import ServiceBusError
from postbus.model.description import QueueDescription, SubscriptionDescription, TopicDescription
from postbus.namespace.namespace import Namespace


class StepFailed(Exception):
    """A step failed; the steps before it are done, the steps behind it are not."""

    def __init__(self, step: Step, done: int, error: Exception) -> None:
        self.expected = isinstance(error, ServiceBusError)
        """The namespace refused it; otherwise something is wrong with the broker or its disk."""
        text = " ".join(str(error).split())
        super().__init__(text if self.expected else f"{type(error).__name__}: {text}")
        self.step = step
        self.done = done


async def carry_out(
    namespace: Namespace, steps: Sequence[Step], tell: Callable[[Step], None]
) -> None:
    """Take the steps in order, and call `tell` after each. Raises StepFailed."""
    circular: list[Step] = []
    for done, step in enumerate(steps):
        try:
            if not _is_new_entity(step):
                await _close_circles(namespace, circular)
            if await _take(namespace, step):
                circular.append(step)
        except Exception as error:  # any error: the caller must learn how far it went
            raise StepFailed(step, done, error) from error
        tell(step)
    if circular:
        try:
            await _close_circles(namespace, circular)
        except Exception as error:  # as above
            raise StepFailed(steps[-1], len(steps) - 1, error) from error


def _is_new_entity(step: Step) -> bool:
    return step.verb is Verb.CREATE and step.kind in ("queue", "topic")


async def _close_circles(namespace: Namespace, waiting: list[Step]) -> None:
    """Set the destinations of queues that were created before their destinations."""
    while waiting:
        step = waiting[0]
        assert isinstance(step.description, QueueDescription)
        await namespace.change_queue(step.entity, partial(_aimed, step.description))
        waiting.pop(0)


def _aimed(wanted: QueueDescription, present: QueueDescription) -> QueueDescription:
    return replace(
        present,
        forward_to=wanted.forward_to,
        forward_to_sent=wanted.forward_to_sent,
        forward_dead_letters_to=wanted.forward_dead_letters_to,
        forward_dead_letters_to_sent=wanted.forward_dead_letters_to_sent,
    )


async def _take(namespace: Namespace, step: Step) -> bool:
    """Take one step.

    True for a queue whose destination does not exist yet. The queue must not forward until then, or
    its messages would go nowhere.
    """
    if step.kind == "rule":
        await _take_rule(namespace, step)
        return False
    match step.verb, step.description:
        case Verb.CREATE, QueueDescription() as queue:
            waits = any(
                namespace.entity(name) is None and name.casefold() != step.entity.casefold()
                for _, name in destinations(queue)
            )
            if waits:
                queue = replace(queue, forward_to=None, forward_dead_letters_to=None)
            await namespace.create_queue(step.entity, queue)
            return waits
        case Verb.CREATE, TopicDescription() as topic:
            await namespace.create_topic(step.entity, topic)
        case Verb.CREATE, SubscriptionDescription() as subscription:
            name = str(step.subscription)
            await namespace.subscriptions.create_with(step.entity, name, subscription, step.rules)
        case Verb.CHANGE, _:
            await _change(namespace, step)
        case Verb.DELETE, _ if step.subscription is not None:
            await namespace.subscriptions.delete(step.entity, step.subscription)
        case Verb.DELETE, _:
            await namespace.delete_entity(step.entity)
    return False


async def _change(namespace: Namespace, step: Step) -> None:
    assert step.merge is not None
    match step.kind:
        case "queue":
            await namespace.change_queue(step.entity, step.merge)
        case "topic":
            await namespace.change_topic(step.entity, step.merge)
        case _:
            name = str(step.subscription)
            await namespace.subscriptions.change(step.entity, name, step.merge)


async def _take_rule(namespace: Namespace, step: Step) -> None:
    topic, subscription = step.entity, str(step.subscription)
    match step.verb:
        case Verb.CREATE:
            await namespace.subscriptions.create_rule(topic, subscription, step.rules[0])
        case Verb.CHANGE:
            await namespace.subscriptions.update_rule(topic, subscription, step.rules[0])
        case Verb.DELETE:
            await namespace.subscriptions.delete_rule(topic, subscription, str(step.rule))
