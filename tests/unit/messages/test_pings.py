"""Messages that only ask whether an entity takes any, among those that are sent (R-COST-01)."""

from __future__ import annotations

import pytest

from postbus.amqp.sections import Properties, encode_data, encode_header, encode_properties
from postbus.messages.envelope import read_message
from postbus.messages.pings import PING, count_pings


@pytest.mark.parametrize(
    ("content_type", "ttl", "count"),
    [(PING, 1_000, 1), (PING, None, 0), ("text/plain", 1_000, 0), (None, 1_000, 0)],
)
def test_a_ping_is_known_by_its_content_type_and_its_short_life(
    content_type: str | None, ttl: int | None, count: int
) -> None:
    properties = encode_properties(Properties(message_id="m", content_type=content_type))
    raw = encode_header(ttl=ttl) + properties + encode_data(b"")
    assert count_pings([read_message(raw, 32_768)] * 2) == 2 * count
