"""Messages that only ask whether an entity takes messages (R-PAIR-07).

The cost of an entity counts them apart (R-COST-01).
"""

from collections.abc import Sequence
from typing import Final

from postbus.amqp.sections import read_properties, scan
from postbus.broker.message import Message

PING: Final = "application/vnd.ms-servicebus-ping"
"""Their content type."""
PING_TTL_MS: Final = 1_000
"""Pings live for a second. Few other messages do, so few others must be decoded to tell."""


def count_pings(messages: Sequence[Message]) -> int:
    """How many of these messages, which are about to be sent, are pings."""
    found = 0
    for message in messages:
        raw = message.raw
        if message.ttl == PING_TTL_MS and raw is not None:
            found += read_properties(raw, scan(raw)).content_type == PING
    return found
