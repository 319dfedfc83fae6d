"""What an entity's description means to the engine: the limits and switches it decides by."""

from typing import Final, NamedTuple

GIGABYTE: Final = 1 << 30


class Policy(NamedTuple):
    """Replaced whole when the entity is updated."""

    lock_ms: int = 30_000
    max_delivery_count: int = 10
    default_ttl_ms: int | None = None
    dead_letter_on_expiry: bool = False
    size_bytes_max: int = GIGABYTE
    message_size_max: int = 256 * 1024
    header_size_max: int = 64 * 1024
    sends: bool = True
    receives: bool = True
