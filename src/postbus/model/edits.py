"""What is to be different about a message that is sent again."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

TEXT_FIELDS: Final = frozenset(
    {
        "contentEncoding",
        "contentType",
        "correlationId",
        "messageId",
        "partitionKey",
        "replyTo",
        "replyToSessionId",
        "sessionId",
        "subject",
        "to",
    }
)
TIME_FIELDS: Final = frozenset({"scheduledEnqueueTime", "timeToLive"})
"""In milliseconds: since the Unix epoch, and as long as."""

EditedValue = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Edits:
    """A field that is not named is as it was; None takes away what was there."""

    body: bytes | None = None
    """None: as it was. A message always has one."""
    properties: Mapping[str, EditedValue | None] = field(default_factory=dict)
    """Application properties, of which the others stay."""
    texts: Mapping[str, str | None] = field(default_factory=dict)
    """By the names in TEXT_FIELDS."""
    times: Mapping[str, int | None] = field(default_factory=dict)
    """By the names in TIME_FIELDS."""

    @property
    def empty(self) -> bool:
        return self.body is None and not (self.properties or self.texts or self.times)
