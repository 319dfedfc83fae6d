"""What a topic is told to be."""

from dataclasses import dataclass
from typing import ClassVar

from postbus.model.authorization import Rules, validate_rules
from postbus.model.description import Description
from postbus.model.limits import (
    check_duplicate_window,
    check_express,
    check_message_size,
    check_retention,
    check_size,
)


@dataclass(frozen=True, slots=True)
class TopicDescription(Description):
    """Everything about a topic that its owner chooses; its subscriptions have their own."""

    WORD: ClassVar[str] = "topic"

    max_size_mb: int = 1_024
    """For the messages of all its subscriptions together."""
    requires_duplicate_detection: bool = False
    duplicate_window_ms: int = 600_000
    max_message_size_kb: int = 256
    enable_express: bool = False
    support_ordering: bool = True
    authorization_rules: Rules = ()
    retention_hours: int | None = None
    """How long its change feed goes back; None: as the settings say."""
    retention_mb: int | None = None

    def validate(self) -> None:
        Description.validate(self)
        check_duplicate_window(self.duplicate_window_ms)
        check_express(self.enable_express, self.requires_duplicate_detection)
        check_size(self.max_size_mb)
        check_message_size(self.max_message_size_kb)
        check_retention(self.retention_hours, self.retention_mb)
        validate_rules(self.authorization_rules)
