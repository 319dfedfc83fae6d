"""Where a message goes that comes into a queue: among the others, on to another entity, or dead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postbus.broker.message import OUTBOX, ForwardingInfo, Message
from postbus.broker.policy import NOWHERE

if TYPE_CHECKING:
    from postbus.broker.queue import Queue

HOPS_MAX: Final = 4
"""Times that a message is forwarded (semantics B §8)."""
HOPS_EXCEEDED: Final = "MaxTransferHopCountExceeded"


def choose_place(queue: Queue, message: Message) -> None:
    """Where a message goes that comes in: among the others or, where the queue forwards,
    straight to the outbox, under the number that it has just been given."""
    message.subqueue = queue.main
    if queue.policy.forward_to == NOWHERE:
        return
    trail = message.trail
    if trail is None:
        trail = message.trail = ForwardingInfo(message.length)
    if trail.hops >= HOPS_MAX:
        message.subqueue = queue.dead_letters
        message.reason = HOPS_EXCEEDED
        return
    trail.destination = queue.policy.forward_to
    message.lane = OUTBOX


def choose_dead_letter_place(queue: Queue, message: Message, reason: str, description: str) -> None:
    """Where a message goes that is a dead letter when it comes in."""
    message.subqueue = queue.dead_letters
    message.reason, message.description = reason, description
    if passes_on(queue, message):
        message.lane = OUTBOX


def passes_on(queue: Queue, message: Message) -> bool:
    """Does this dead letter go on to another entity? If so it says where it comes from."""
    destination = queue.policy.forward_dead_letters_to
    if destination == NOWHERE or message.reason == HOPS_EXCEEDED:
        return False
    trail = message.trail
    if trail is None:
        trail = message.trail = ForwardingInfo(message.length)
    if trail.hops >= HOPS_MAX:
        return False
    trail.destination = destination
    message.source = queue.name
    return True
