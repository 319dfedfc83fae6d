"""The steps that would make a namespace like a file, and their report."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple, Self

from postbus.config.content import Chosen
from postbus.model.rule import RuleDescription


class Verb(Enum):
    """The kind of a step."""

    CREATE = "create"
    CHANGE = "change"
    DELETE = "delete"
    LEAVE = "leave"
    """The file lacks it, and nobody asked to delete it."""

    @property
    def mark(self) -> str:
        return {"create": "+", "change": "~", "delete": "-", "leave": "="}[self.value]


class Change(NamedTuple):
    """One field, with its present and its new value."""

    key: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Step:
    verb: Verb
    kind: str
    """queue, topic, subscription or rule"""
    entity: str
    subscription: str | None = None
    rule: str | None = None
    changes: tuple[Change, ...] = ()
    description: Chosen | None = None
    """The new description; None for a rule, and where the step deletes or leaves."""
    merge: Callable[[Any], Any] | None = field(default=None, compare=False, repr=False)
    """For a change: turns the description of that moment into the new one. It sets only the fields
    that differed; others, such as keys, may have changed since."""
    rules: tuple[RuleDescription, ...] = ()
    """The first rules of a new subscription, or the one rule of the step."""

    @property
    def path(self) -> str:
        parts = self.entity
        if self.subscription is not None:
            parts += f"/Subscriptions/{self.subscription}"
        return parts if self.rule is None else f"{parts}/Rules/{self.rule}"


@dataclass(frozen=True, slots=True)
class StepReport:
    """A step in the report to the caller."""

    verb: Verb
    kind: str
    path: str
    changes: tuple[Change, ...] = ()

    @classmethod
    def of(cls, step: Step) -> Self:
        return cls(step.verb, step.kind, step.path, step.changes)

    def lines(self) -> Iterator[str]:
        note = " (not in the file)" if self.verb is Verb.LEAVE else ""
        yield f"{self.verb.mark} {self.verb.value} {self.kind} {self.path}{note}"
        for change in self.changes:
            yield f"    {change.key}: {change.before} → {change.after}"

    def to_json(self) -> dict[str, Any]:
        return {
            "verb": self.verb.value,
            "kind": self.kind,
            "path": self.path,
            "changes": [list(change) for change in self.changes],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        changes = tuple(Change(*each) for each in values["changes"])
        return cls(Verb(values["verb"]), values["kind"], values["path"], changes)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of reading a file again."""

    steps: tuple[StepReport, ...] = ()
    """All differences, in the order of the steps."""
    left: tuple[StepReport, ...] = ()
    done: int = 0
    """How many of the steps are done."""
    notes: tuple[str, ...] = ()
    """Changes in the file that take effect only with the next start."""
    error: str | None = None
    """Why the first step that is not done has failed; None where no step failed."""

    def carried_out(self) -> Self:
        return replace(self, done=len(self.steps))

    def failed(self, done: int, error: str) -> Self:
        return replace(self, done=done, error=error)

    def to_json(self) -> dict[str, Any]:
        return {
            "steps": [each.to_json() for each in self.steps],
            "left": [each.to_json() for each in self.left],
            "done": self.done,
            "notes": list(self.notes),
            "error": self.error,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        return cls(
            _told(values["steps"]),
            _told(values["left"]),
            int(values["done"]),
            tuple(values["notes"]),
            values["error"],
        )


def _told(values: Sequence[Mapping[str, Any]]) -> tuple[StepReport, ...]:
    return tuple(StepReport.from_json(each) for each in values)
