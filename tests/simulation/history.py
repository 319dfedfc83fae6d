"""What happened, in order, so that a failure can be read."""

from __future__ import annotations

from postbus.broker.message import CorruptRow

TOLD = 40
LATELY = 12

STAYS = "what was committed stays"


class Violation(AssertionError):
    """A promise was broken: by which checker's word, and about which message."""

    def __init__(self, promise: str, name: str | None, text: str) -> None:
        super().__init__(f"{promise}: {text}")
        self.promise = promise
        self.name = name


def fault_of(error: BaseException) -> Violation:
    """Something raised what nobody expected."""
    lacks_body = isinstance(error, CorruptRow)
    return Violation(
        "no body is wrong or missing" if lacks_body else "the broker has no fault",
        None,
        repr(error),
    )


class History:
    """Lines of one run, each about a message or about everything."""

    def __init__(self) -> None:
        self.receiver_queues: list[tuple[int, str | None, str]] = []

    def note(self, now: int, name: str | None, text: str) -> None:
        self.receiver_queues.append((now, name, text))

    def about(self, name: str | None) -> str:
        """The story of one message with the events that touch all of them, and the very end."""
        chosen = [line for line in self.receiver_queues if name is None or line[1] in (None, name)]
        told = [_line(*line) for line in chosen[-TOLD:]]
        lately = [_line(*line) for line in self.receiver_queues[-LATELY:]]
        return "\n".join([f"story of {name or 'everything'}:", *told, "at the end:", *lately])


def _line(now: int, name: str | None, text: str) -> str:
    return f"  {now % 10_000_000:>7} ms  {name or '*':<6} {text}"
