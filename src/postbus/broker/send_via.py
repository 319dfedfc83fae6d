"""Messages that are sent through one entity to another entity (send-via, semantics B §7).

They are never visible in the entity that they are sent through. They lie in an outbox of its
fragment, so that they share a commit with everything else that a transaction does there. From the
outbox they are forwarded (`postbus.broker.forwarding`). A message that its destination refuses ends
in the transfer dead-letter queue beside that outbox.
"""

from collections.abc import Sequence

from postbus.broker.engine import Engine
from postbus.broker.message import OUTBOX, ForwardingInfo, Message
from postbus.broker.pings import accept_ping
from postbus.broker.policy import Policy, admit
from postbus.broker.record_kinds import RecordKind
from postbus.broker.subqueue_numbers import TRANSFER_DEAD_LETTER, kind_of
from postbus.model.times import Instant


def is_posted(subqueue: int) -> bool:
    """Does the outbox of this subqueue hold messages that were sent through its entity?"""
    return kind_of(subqueue) == TRANSFER_DEAD_LETTER


def admit_posts(engine: Engine, size_bytes: int, messages: Sequence[Message]) -> None:
    """Raise the reason why this entity cannot keep the messages for a while, if there is one.

    Only the limits of the entity count. Its rules for its own messages do not apply: these messages
    are not for it.
    """
    own = engine.own
    kind = "Queue" if engine.topic is None else "Topic"
    limits = Policy(
        size_bytes_max=own.policy.size_bytes_max,
        message_size_max=own.policy.message_size_max,
        header_size_max=own.policy.header_size_max,
    )
    admit(kind, own.name, limits, size_bytes, messages)


def post(engine: Engine, destination: int, messages: Sequence[Message], now: Instant) -> None:
    """Put messages on their way to another fragment. They have been admitted."""
    ledger = engine.ledger
    for message in messages:
        if message.is_ping:
            accept_ping(engine.own, message)
            continue
        raw = message.raw
        assert raw is not None
        message.number = message.enqueue_number = ledger.next_number()
        # A scheduled message waits at its destination, not here.
        message.enqueued_at = max(message.enqueued_at, now)
        # A dead letter that is sent again has forwarding info already.
        message.trail = message.trail or ForwardingInfo(message.length)
        message.trail.destination = destination
        message.subqueue, message.lane = TRANSFER_DEAD_LETTER, OUTBOX
        ledger.add(RecordKind.POSTED, message, raw)
        engine.own.placed(message)


def send_through(
    engine: Engine, destination: int, messages: Sequence[Message], now: Instant
) -> None:
    """Take messages for another fragment, all of them or none, outside of any transaction."""
    admit_posts(engine, engine.ledger.size_bytes, messages)
    post(engine, destination, messages, now)
