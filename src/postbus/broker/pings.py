"""Pings: messages that only ask whether an entity could store a message now (R-PAIR-07).

A ping is admitted like a message, and leaves one record. So its answer needs a real commit. Nothing
of it comes into a lane, a subscription, the history of message ids or the change feed.
"""

from postbus.broker.message import Message
from postbus.broker.queue import Queue


def accept_ping(own: Queue, ping: Message) -> int:
    """Write the record of a ping that was admitted; returns the number in it."""
    accepted = Message(None)
    # A transaction has promised a number to a client that scheduled the ping.
    accepted.number = accepted.enqueue_number = ping.number or own.ledger.next_number()
    own.ledger.ping(accepted)
    return accepted.number
