"""The limits and switches that an entity's description means to the engine.

They admit all messages of a send, or none.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from postbus.broker.destination import Destination
from postbus.broker.message import Message
from postbus.errors import (
    EntityDisabled,
    InvalidArgument,
    InvalidOperation,
    MessageSizeExceeded,
    QuotaExceeded,
)

GIGABYTE: Final = 1 << 30
ID_LENGTH_MAX: Final = 128
"""Characters of a message id, a session id or a partition key (semantics B §11)."""

SESSION_MISSING: Final = (
    "The SessionId was not set on a message, and it cannot be sent to the entity. Entities that "
    "have session support enabled can only receive messages that have the SessionId set to a "
    "valid value."
)


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
    forward_to: Destination | None = None
    """Where its messages are forwarded to, and where its dead letters are."""
    forward_dead_letters_to: Destination | None = None
    dead_letter_on_filter_errors: bool = True
    requires_session: bool = False
    duplicate_window_ms: int | None = None
    """How long a message id counts as seen; None where duplicates are not detected."""


def admit(
    kind: str, name: str, policy: Policy, size_bytes: int, messages: Sequence[Message]
) -> None:
    """Raise the refusal of these messages, if the entity refuses any; `kind` is Queue or Topic."""
    if not policy.sends:
        raise EntityDisabled(name, "Send")
    size = size_bytes
    for message in messages:
        _check(name, policy, message)
        size += message.length
    if size > policy.size_bytes_max:
        raise QuotaExceeded(
            f"The maximum entity size has been reached or exceeded for {kind}: '{name}'. "
            f"Size of entity in bytes:{size_bytes}, "
            f"Max entity size in bytes:{policy.size_bytes_max}."
        )


def _check(name: str, policy: Policy, message: Message) -> None:
    if message.length > policy.message_size_max:
        raise MessageSizeExceeded(
            f"The received message (delivery-size: {message.length} bytes) exceeds the limit "
            f"({policy.message_size_max} bytes) currently allowed on the entity '{name}'."
        )
    if message.header_size > policy.header_size_max:
        raise MessageSizeExceeded(
            f"The headers of the message take {message.header_size} bytes, "
            f"{policy.header_size_max} bytes are allowed on the entity '{name}'."
        )
    if policy.requires_session and message.session_id is None and not message.is_ping:
        raise InvalidOperation(SESSION_MISSING)
    if len(message.message_id) > ID_LENGTH_MAX:
        raise InvalidArgument(f"The MessageId is longer than {ID_LENGTH_MAX} characters.")
    if message.session_id is not None and len(message.session_id) > ID_LENGTH_MAX:
        raise InvalidArgument(f"The SessionId is longer than {ID_LENGTH_MAX} characters.")
    if message.partition_key is not None and len(message.partition_key) > ID_LENGTH_MAX:
        raise InvalidArgument(f"The PartitionKey is longer than {ID_LENGTH_MAX} characters.")
