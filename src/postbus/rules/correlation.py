"""Correlation filters select a message that equals everything the filter names (semantics A §3).

They compare as SQL filters do: texts by their characters, numbers across widths, and a text never
equals a number. A topic may have 100,000 of them, so a filter is a few values and no function of
its own.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from postbus.model.rule import SYSTEM_FIELDS, CorrelationFilter
from postbus.rules.expressions import Slot
from postbus.rules.facts import Facts, fold
from postbus.rules.predicates import Key
from postbus.rules.system_properties import SYSTEM_PROPERTIES
from postbus.rules.values import Value, comparable, key_of

_SLOTS: Final[Mapping[str, Slot]] = {
    field: Slot(True, SYSTEM_PROPERTIES["".join(word.title() for word in field.split("_"))].name)
    for field in SYSTEM_FIELDS
}


class Correlation:
    """A compiled correlation filter: equalities that must all hold. None of them can fail."""

    __slots__ = ("_conditions",)

    constant: Final = None

    def __init__(self, chosen: CorrelationFilter) -> None:
        conditions: list[tuple[Slot, Value]] = [
            (_SLOTS[field], value) for field, value in chosen.system()
        ]
        for name, typed in chosen.properties.items():
            conditions.append((Slot(False, fold(name)), typed.value))
        self._conditions = tuple(conditions)

    @property
    def alternatives(self) -> Sequence[Sequence[Key]]:
        """Each condition by itself; a condition that nothing equals is empty."""
        return [
            () if (key := key_of(value)) is None else (Key(slot, key),)
            for slot, value in self._conditions
        ]

    def is_true(self, facts: Facts) -> bool:
        for (system, name), wanted in self._conditions:
            value = facts.system(name) if system else facts.user.get(name)
            if not comparable(value, wanted) or value != wanted:
                return False
        return True
