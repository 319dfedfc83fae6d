"""Expressions of the filter language, compiled: constants, properties, calculations.

Each is built once, from the bottom up, and holds a function from a message to a value. Parts that
do not depend on the message are calculated at once.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from postbus.rules.facts import Facts, fold
from postbus.rules.values import OPERATORS, SIGNS, EvaluationFailed, Value

DEPTH_MAX: Final = 100
"""How deep calculations may nest. Each level is a call, and Python's stack has an end."""

TEXT_IN_A_STEP: Final = 8
"""Bits of the number of characters that are compared, copied or folded in the time of a step."""
_NEW_ID_STEPS: Final = 8

NewId = Callable[[], UUID]
"""Where `newid()` has its ids from: rules know no chance themselves."""

Evaluate = Callable[[Facts], Value]


class TooDeep(Exception):
    """An expression is nested more than DEPTH_MAX deep."""


class Slot(NamedTuple):
    """A property that a rule reads."""

    system: bool
    name: str
    """Folded, or the canonical name of a system property."""


class Expression:
    """A compiled expression."""

    __slots__ = ("can_fail", "constant", "depth", "evaluate", "size", "slot", "value")

    def __init__(
        self,
        evaluate: Evaluate,
        depth: int = 1,
        can_fail: bool = False,
        slot: Slot | None = None,
        size: int = 1,
    ) -> None:
        if depth > DEPTH_MAX:
            raise TooDeep
        self.evaluate = evaluate
        self.depth = depth
        self.can_fail = can_fail
        self.slot = slot
        self.size = size
        """Steps that it takes, except for steps that depend on the message."""
        self.constant = False
        self.value: Value = None


class NoFacts:
    """The message that a constant is evaluated for: it has nothing."""

    user: dict[str, Value] = {}  # noqa: RUF012 - never written

    def spend(self, steps: int) -> None:
        """Done once, for all messages."""

    def system(self, name: str) -> Value:
        return None


NO_FACTS: Final = NoFacts()


def depth_over(parts: Sequence[Expression]) -> int:
    """How deep something is that is made of these."""
    return 1 + max((part.depth for part in parts), default=0)


def constant(value: Value) -> Expression:
    made = Expression(lambda facts: value)
    made.constant = True
    made.value = value
    return made


def user_property(name: str) -> Expression:
    folded = fold(name)
    return Expression(lambda facts: facts.user.get(folded), slot=Slot(False, folded))


def system_value(name: str) -> Expression:
    """A system property by its canonical name."""
    return Expression(lambda facts: facts.system(name), slot=Slot(True, name))


def property_named_by(name: Expression) -> Expression:
    """`property(e)`: the application property whose name is calculated. It does not reach system
    properties (semantics A §1.2)."""
    if name.constant:
        return user_property(name.value) if isinstance(name.value, str) else constant(None)
    evaluate = name.evaluate

    def look_up(facts: Facts) -> Value:
        found = evaluate(facts)
        if not isinstance(found, str):
            return None
        facts.spend(len(found) >> TEXT_IN_A_STEP)
        return facts.user.get(fold(found))

    return Expression(look_up, depth_over([name]), name.can_fail, size=1 + name.size)


def new_id(source: NewId) -> Expression:
    return Expression(lambda facts: source(), size=_NEW_ID_STEPS)


def calculation(operator: str, left: Expression, right: Expression) -> Expression:
    calculate, first, second = OPERATORS[operator], left.evaluate, right.evaluate

    def result(facts: Facts) -> Value:
        return calculate(first(facts), second(facts))

    def sum_of(facts: Facts) -> Value:
        made = calculate(first(facts), second(facts))
        if isinstance(made, str):
            facts.spend(len(made) >> TEXT_IN_A_STEP)
        return made

    return _folded(
        Expression(
            sum_of if operator == "+" else result,
            depth_over([left, right]),
            can_fail=True,
            size=2 + left.size + right.size,
        ),
        left.constant and right.constant,
    )


def signed(sign: str, operand: Expression) -> Expression:
    apply, evaluate = SIGNS[sign], operand.evaluate
    return _folded(
        Expression(
            lambda facts: apply(evaluate(facts)),
            depth_over([operand]),
            can_fail=operand.can_fail or sign == "-",
            size=1 + operand.size,
        ),
        operand.constant,
    )


def _folded(made: Expression, is_constant: bool) -> Expression:
    """The value itself, if it is the same for every message. A calculation that fails stays: it
    fails for each message, not for the author of the rule."""
    if not is_constant:
        return made
    try:
        return constant(made.evaluate(NO_FACTS))
    except EvaluationFailed:
        return made
