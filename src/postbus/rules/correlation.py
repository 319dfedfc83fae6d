"""Correlation filters: a message is selected where it equals all that the filter names (semantics A
§3).

They compile to the same predicates as SQL filters, so they compare alike: texts by their
characters, numbers across widths, and a text never equals a number.
"""

from collections.abc import Mapping
from typing import Final

from postbus.model.rule import SYSTEM_FIELDS, CorrelationFilter
from postbus.rules.expressions import constant, system_value, user_property
from postbus.rules.predicates import Predicate, all_of, equality
from postbus.rules.system import SYSTEM_PROPERTIES

_NAMES: Final[Mapping[str, str]] = {
    field: SYSTEM_PROPERTIES["".join(word.title() for word in field.split("_"))].name
    for field in SYSTEM_FIELDS
}


def compile_correlation(chosen: CorrelationFilter) -> Predicate:
    """The predicate of a filter that has at least one condition."""
    parts = [
        equality(system_value(_NAMES[field]), constant(value)) for field, value in chosen.system()
    ]
    parts += [
        equality(user_property(name), constant(typed.value))
        for name, typed in chosen.properties.items()
    ]
    return parts[0] if len(parts) == 1 else all_of(parts)
