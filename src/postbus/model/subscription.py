"""What a subscription of a topic is told to be. Its rules are kept beside it, not in it."""

from dataclasses import dataclass
from typing import ClassVar

from postbus.model.description import FORWARDING_SPELLINGS, Description
from postbus.model.limits import (
    check_lock_duration,
    check_max_delivery_count,
    check_session_forward,
)


@dataclass(frozen=True, slots=True)
class SubscriptionDescription(Description):
    """Everything about a subscription that its owner chooses."""

    WORD: ClassVar[str] = "subscription"
    _SPELLINGS: ClassVar[tuple[str, ...]] = ("default_ttl_sent", *FORWARDING_SPELLINGS)

    lock_duration_ms: int = 30_000
    dead_lettering_on_expiration: bool = False
    dead_lettering_on_filter_errors: bool = True
    """Is a message that a rule cannot be evaluated on dead-lettered, or left out?"""
    max_delivery_count: int = 10
    requires_session: bool = False
    forward_to: str | None = None
    """The queue or topic that takes what arrives; its name, without scheme and host."""
    forward_to_sent: str | None = None
    """The same as the client wrote it, which it is given back (`model.destination`)."""
    forward_dead_letters_to: str | None = None
    forward_dead_letters_to_sent: str | None = None

    def validate(self) -> None:
        Description.validate(self)
        check_lock_duration(self.lock_duration_ms)
        check_max_delivery_count(self.max_delivery_count)
        check_session_forward(self.requires_session, self.forward_to)
