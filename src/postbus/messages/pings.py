"""Pings as they come in: messages that only ask whether an entity takes messages (R-PAIR-07)."""

from typing import Final

from postbus.amqp.sections import Sections, read_properties

PING: Final = "application/vnd.ms-servicebus-ping"
"""Their content type, and all that makes a ping: neither its body nor its time to live counts."""
_BYTES: Final = PING.encode()


def is_ping(payload: bytes, sections: Sections) -> bool:
    """Tell a ping from other messages, which pay for a search in their properties section only."""
    if payload.find(_BYTES, sections.properties, sections.application_properties) < 0:
        return False
    return read_properties(payload, sections).content_type == PING  # and not another field
