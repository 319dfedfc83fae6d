"""Messages that only ask whether an entity takes any, as they come in (R-PAIR-07)."""

from __future__ import annotations

from typing import Any

import pytest

from postbus.amqp.sections import Properties, encode_data, encode_header, encode_properties
from postbus.messages.envelope import read_message
from postbus.messages.pings import PING


@pytest.mark.parametrize(
    ("fields", "is_ping"),
    [
        ({"content_type": PING}, True),
        ({"content_type": PING, "group_id": "s", "subject": PING}, True),
        ({"content_type": "text/plain"}, False),
        ({"subject": PING, "content_type": "text/plain"}, False),
        ({"content_type": PING + "s"}, False),
        ({}, False),
    ],
)
@pytest.mark.parametrize(("ttl", "body"), [(1_000, b""), (None, b"a body")])
def test_a_ping_is_known_by_its_content_type_alone(
    fields: dict[str, Any], is_ping: bool, ttl: int | None, body: bytes
) -> None:
    properties = encode_properties(Properties(message_id="m", **fields))
    raw = encode_header(ttl=ttl) + properties + encode_data(body)
    assert read_message(raw, 32_768).is_ping is is_ping
