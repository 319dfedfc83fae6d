"""The history of one seed: what happened, in order, so that a failure can be read."""

from __future__ import annotations

from postbus.broker.message import CorruptRow
from tests.simulation.promises import BODY, FAULT

STORY_LINES = 40
LAST_LINES = 12


class Violation(AssertionError):
    """A promise was broken: which promise, and for which message."""

    def __init__(self, promise: str, name: str | None, text: str) -> None:
        super().__init__(f"{promise}: {text}")
        self.promise = promise
        self.name = name


def fault_of(error: BaseException) -> Violation:
    """The broker raised an error that no client may see."""
    return Violation(BODY if isinstance(error, CorruptRow) else FAULT, None, repr(error))


class History:
    """Lines of one run, each about one message or about all of them."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, str | None, str]] = []

    def note(self, now: int, name: str | None, text: str) -> None:
        self.lines.append((now, name, text))

    def about(self, name: str | None) -> str:
        """The story of one message, with the events that touch all messages, and the very end."""
        chosen = [line for line in self.lines if name is None or line[1] in (None, name)]
        story = [_line(*line) for line in chosen[-STORY_LINES:]]
        end = [_line(*line) for line in self.lines[-LAST_LINES:]]
        return "\n".join([f"story of {name or 'everything'}:", *story, "at the end:", *end])


def _line(now: int, name: str | None, text: str) -> str:
    return f"  {now % 10_000_000:>7} ms  {name or '*':<6} {text}"
