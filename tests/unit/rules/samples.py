"""Messages and rules for tests: as short to write as they are to read."""

from __future__ import annotations

from uuid import UUID

from postbus.model.rule import Filter, RuleDescription, SqlAction, SqlFilter, TrueFilter
from postbus.model.values import TypedValue
from postbus.rules.compiling import compile_predicate
from postbus.rules.predicates import Predicate
from postbus.rules.rule import Rule, compile_rule
from postbus.rules.values import EvaluationFailed, Value
from postbus.rules.work_limit import Work

NEW_ID = UUID("11111111-2222-3333-4444-555555555555")


class Sample:
    """A message with these application properties, and these system properties."""

    def __init__(self, user: dict[str, Value] | None = None, **system: Value) -> None:
        self.user = {name.lower(): value for name, value in (user or {}).items()}
        self._system = system
        self.work = Work()

    def spend(self, steps: int) -> None:
        self.work.spend(steps)

    def system(self, name: str) -> Value:
        return self._system.get(name)


def new_id() -> UUID:
    return NEW_ID


def rule(chosen: Filter | str | None = None, action: str | None = None, name: str = "rule") -> Rule:
    """A compiled rule; a text is that of an SQL filter, and none selects everything."""
    if isinstance(chosen, str):
        chosen = SqlFilter(chosen)
    chosen = chosen or TrueFilter()
    return compile_rule(
        RuleDescription(name, chosen, None if action is None else SqlAction(action)), new_id
    )


def predicate(sql: str, **parameters: TypedValue) -> Predicate:
    RuleDescription(filter=SqlFilter(sql, parameters)).validate()
    return compile_predicate(sql, parameters, new_id)


def outcome(sql: str, facts: Sample, **parameters: TypedValue) -> bool | str | None:
    """True, False or None for unknown; the text of a failure."""
    compiled = predicate(sql, **parameters)
    try:
        is_true, is_false = compiled.is_true(facts), compiled.is_false(facts)
    except EvaluationFailed as failure:
        return str(failure)
    assert not (is_true and is_false)
    return True if is_true else False if is_false else None
