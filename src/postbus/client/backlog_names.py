"""The names of the backlog queues of a primary namespace (R-PAIR-02)."""

from __future__ import annotations

import ipaddress
from typing import Final

BACKLOG_PATH: Final = "{name}/x-servicebus-transfer/{index}"
NAME_LENGTH_MAX: Final = 200


def is_name(text: str) -> bool:
    """Can a name of a queue begin with this text?"""
    return 0 < len(text) <= NAME_LENGTH_MAX and all(
        each.isalnum() or each in "._-" for each in text
    )


def backlog_paths(host: str, name: str | None, count: int) -> list[str]:
    """The names for a primary namespace at this host, unless it has a name of its own."""
    first = name or _first_label(host)
    return [BACKLOG_PATH.format(name=first, index=index) for index in range(count)]


def _first_label(host: str) -> str:
    bare = host.strip("[]")
    try:
        ipaddress.ip_address(bare)
        is_address = True
    except ValueError:
        is_address = False
    label = bare.partition(".")[0].lower()
    if is_address or label == "localhost" or not is_name(label):
        raise ValueError(f"the host '{host}' gives no name to the backlog queues: set primary_name")
    return label
