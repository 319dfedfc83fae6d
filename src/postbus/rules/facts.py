"""The view that a rule has of a message."""

from collections.abc import Mapping
from typing import Protocol

from postbus.rules.values import Value


class Facts(Protocol):
    """A message as filters and actions read it. An implementation may look things up lazily."""

    @property
    def user(self) -> Mapping[str, Value]:
        """The application properties by name in lower case, for names compare that way. Of several
        that differ in nothing else, the first counts."""

    def spend(self, steps: int) -> None:
        """Count steps of rules; raises TooMuchWork (`postbus.rules.work_limit`)."""

    def system(self, name: str) -> Value:
        """A system property (`postbus.rules.system_properties`); None where it is not set."""


def fold(name: str) -> str:
    """A name of a property as it compares (semantics A §1.2)."""
    return name.lower()
