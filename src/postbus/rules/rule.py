"""A rule, compiled: its selection, and its action on the copy."""

from typing import NamedTuple

from postbus.model.rule import CorrelationFilter, FalseFilter, Filter, RuleDescription, TrueFilter
from postbus.rules.actions import Action
from postbus.rules.compiling import compile_predicate, compile_statements
from postbus.rules.correlation import Correlation
from postbus.rules.expressions import NewId
from postbus.rules.predicates import Selector, always


class Rule(NamedTuple):
    name: str
    selector: Selector
    action: Action | None
    is_correlation: bool
    """Which limit it counts towards; TRUE and FALSE filters are SQL filters (semantics A §1.5)."""


def compile_rule(description: RuleDescription, new_id: NewId) -> Rule:
    """Compile a rule once. Raises InvalidArgument for a rule that does not compile."""
    description.validate()
    action = description.action
    return Rule(
        description.name,
        _compiled(description.filter, new_id),
        None
        if action is None
        else Action(
            description.name, compile_statements(action.expression, action.parameters, new_id)
        ),
        isinstance(description.filter, CorrelationFilter),
    )


def _compiled(chosen: Filter, new_id: NewId) -> Selector:
    match chosen:
        case TrueFilter():
            return always(True)
        case FalseFilter():
            return always(False)
        case CorrelationFilter():
            return Correlation(chosen)
        case _:
            return compile_predicate(chosen.expression, chosen.parameters, new_id)
