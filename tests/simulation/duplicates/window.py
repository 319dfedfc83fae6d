"""Which ids a queue must have seen, when it saw them first, and for how long that counts."""

from __future__ import annotations

from postbus.model.times import NEVER
from tests.simulation.history import Violation
from tests.simulation.promises import DROPPED, DUPLICATE


class Window:
    """The window of a queue that detects duplicates, in all its versions."""

    def __init__(self, window_ms: int) -> None:
        self._versions: list[list[int]] = [[window_ms, NEVER]]
        """Each with the last instant at which it may have been in force: a version that is to be
        replaced is so until the next version is known to be in force."""
        self.first: dict[str, int] = {}
        """When each id was first seen."""
        self._forgot_at = 0
        """When upkeep last dropped ids. A clock that is set back brings none of them back."""

    def ask(self, window_ms: int) -> int:
        """A client asks for another version; returns its number."""
        self._versions.append([window_ms, NEVER])
        return len(self._versions) - 1

    def set(self, version: int, at: int) -> None:
        """This version is in force."""
        for earlier in self._versions[:version]:
            earlier[1] = min(earlier[1], at)

    def since(self, at: int) -> list[int]:
        """All versions in force since then: an id that a shorter one forgot does not come back."""
        return [window_ms for window_ms, until in self._versions if until >= at]

    def forget(self, at: int) -> None:
        """Upkeep drops the ids that are past the window."""
        self._forgot_at = max(self._forgot_at, at)

    def must_know(self, message_id: str, at: int) -> bool:
        first = self.first.get(message_id)
        return first is not None and max(at, self._forgot_at) - first < min(self.since(first))

    def may_know(self, message_id: str, at: int) -> bool:
        first = self.first.get(message_id)
        return first is not None and at - first < max(self.since(first))

    def came(self, message_id: str, name: str, at: int) -> None:
        first = self.first.get(message_id)
        if first is not None and self.must_know(message_id, at):
            text = f"{message_id} was first seen {at - first} ms before"
            raise Violation(DUPLICATE, name, text)
        if message_id:
            self.first[message_id] = at

    def dropped(self, message_id: str, at: int) -> None:
        if not self.may_know(message_id, at):
            first = self.first.get(message_id)
            raise Violation(DROPPED, None, f"{message_id} at {at}, first seen at {first}")
