"""What an entity's description means to the engine: the limits and switches it decides by."""

from typing import Final, NamedTuple

GIGABYTE: Final = 1 << 30
NOWHERE: Final = -1


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
    forward_to: int = NOWHERE
    """The fragment of the entity that its messages go on to, and that of its dead letters."""
    forward_dead_letters_to: int = NOWHERE
    dead_letter_on_filter_errors: bool = True
    requires_session: bool = False
    duplicate_window_ms: int | None = None
    """For how long a message id counts as seen; None: ids are not looked at."""
