"""Predicates of the filter language, compiled.

SQL knows three outcomes: true, false, unknown. A predicate here is two functions: the first says
whether it is true, the second whether it is false. If neither does, it is unknown. Nothing else is
needed: NOT exchanges the two functions, and AND and OR call the first or the second of each side.
Sides are asked from left to right, and no more of them than settle the answer.

Everything beyond a short comparison is paid for in steps (`postbus.rules.work_limit`). Running out
of steps is no failure of a predicate: a side that is not needed is not asked.
"""

import operator
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from postbus.rules.expressions import (
    DEPTH_MAX,
    NO_FACTS,
    TEXT_IN_A_STEP,
    Evaluate,
    Expression,
    Slot,
    TooDeep,
    depth_over,
)
from postbus.rules.facts import Facts
from postbus.rules.like import PATTERN_LENGTH_MAX, Pattern, like_pattern
from postbus.rules.values import EvaluationFailed, Value, comparable, key_of, orderable

Test = Callable[[Facts], bool]

STEPS_OF_A_TEST: Final = 3
USUAL_STEPS: Final = 4
"""Steps of a comparison that are in the price of asking it."""


class Key(NamedTuple):
    """An equality that a message can have: this property has this value."""

    slot: Slot
    value: Hashable


class Selector(Protocol):
    """The demands of a topic on a filter of any kind."""

    @property
    def constant(self) -> bool | None:
        """Whether it selects, where that is the same for every message."""

    @property
    def alternatives(self) -> Sequence[Collection[Key]]:
        """Sets of equalities. If a message has none of the equalities of a set, the filter does not
        select the message, and does not fail. So the filter need not be evaluated."""

    @property
    def is_true(self) -> Test:
        """Whether it selects a message. May raise EvaluationFailed."""


class Predicate:
    """A compiled predicate; a Selector."""

    __slots__ = ("alternatives", "can_fail", "constant", "depth", "is_false", "is_true")

    def __init__(
        self,
        is_true: Test,
        is_false: Test,
        depth: int,
        can_fail: bool,
        alternatives: Sequence[Collection[Key]] = (),
    ) -> None:
        if depth > DEPTH_MAX:
            raise TooDeep
        self.is_true = is_true
        self.is_false = is_false
        self.depth = depth
        self.can_fail = can_fail
        self.alternatives = alternatives
        self.constant: bool | None = None


def always(outcome: bool) -> Predicate:
    """TRUE and FALSE filters (semantics A §4)."""
    made = Predicate(lambda facts: outcome, lambda facts: not outcome, 1, can_fail=False)
    made.constant = outcome
    return made


_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def comparison(sign: str, left: Expression, right: Expression) -> Predicate:
    if sign in ("<>", "!="):
        return negation(equality(left, right))
    if sign == "=":
        return equality(left, right)
    compare, first, second = _COMPARISONS[sign], left.evaluate, _right_of(left, right)

    def is_true(facts: Facts) -> bool:
        one, other = first(facts), second(facts)
        return orderable(one, other) and compare(one, other)

    def is_false(facts: Facts) -> bool:
        one, other = first(facts), second(facts)
        return orderable(one, other) and not compare(one, other)

    return _made_of((left, right), is_true, is_false)


def equality(left: Expression, right: Expression) -> Predicate:
    if left.constant and not right.constant:
        left, right = right, left
    if left.slot is not None and right.constant:
        return _property_is(left.slot, left, right.value)
    first, second = left.evaluate, _right_of(left, right)

    def is_true(facts: Facts) -> bool:
        one, other = first(facts), second(facts)
        return comparable(one, other) and one == other

    def is_false(facts: Facts) -> bool:
        one, other = first(facts), second(facts)
        return comparable(one, other) and one != other

    return _made_of((left, right), is_true, is_false)


def _right_of(left: Expression, right: Expression) -> Evaluate:
    """The right side of a comparison. Beside a constant any text is short; of two that come from a
    message neither may be."""
    evaluate = right.evaluate
    if left.constant or right.constant:
        return evaluate

    def paid_for(facts: Facts) -> Value:
        value = evaluate(facts)
        if isinstance(value, str):
            facts.spend(len(value) >> TEXT_IN_A_STEP)
        return value

    return paid_for


def _property_is(slot: Slot, read: Expression, wanted: Value) -> Predicate:
    """By far the commonest filter: a property equals a constant."""
    evaluate, kind = read.evaluate, type(wanted)

    # Texts, ids and times equal only their own kind, so there is no need to ask for it.
    def is_same(facts: Facts) -> bool:
        return evaluate(facts) == wanted

    def is_true(facts: Facts) -> bool:
        value = evaluate(facts)
        return comparable(value, wanted) and value == wanted

    def is_false(facts: Facts) -> bool:
        value = evaluate(facts)
        return comparable(value, wanted) and value != wanted

    return Predicate(
        is_same if kind is str else is_true,
        is_false,
        2,
        can_fail=False,
        alternatives=(_keys(slot, (wanted,)),),
    )


def membership(left: Expression, items: Sequence[Expression]) -> Predicate:
    """`e IN (…)`: equal to any of them. As in SQL, an unknown item makes "equal to none"
    unknown."""
    first = left.evaluate
    parts = [_right_of(left, item) for item in items]

    def is_true(facts: Facts) -> bool:
        value = first(facts)
        if value is None:
            return False
        return any(comparable(value, one := part(facts)) and value == one for part in parts)

    def is_false(facts: Facts) -> bool:
        value = first(facts)
        if value is None:
            return False
        return all(comparable(value, one := part(facts)) and value != one for part in parts)

    made = _made_of((left, *items), is_true, is_false)
    if left.slot is not None and all(item.constant for item in items):
        made.alternatives = (_keys(left.slot, [item.value for item in items]),)
    return made


def likeness(left: Expression, pattern: Expression, escape: Expression | None) -> Predicate:
    """`e LIKE pattern [ESCAPE c]`; the constants among them were checked already."""
    first = left.evaluate
    if not pattern.constant or (escape is not None and not escape.constant):
        return _calculated_likeness(left, pattern, escape)
    if not isinstance(pattern.value, str) or (escape is not None and escape.value is None):
        return always_unknown((left,))
    wanted = like_pattern(pattern.value, None if escape is None else str(escape.value))

    def is_true(facts: Facts) -> bool:
        value = first(facts)
        return isinstance(value, str) and wanted.matches(value, facts.spend)

    def is_false(facts: Facts) -> bool:
        value = first(facts)
        return isinstance(value, str) and not wanted.matches(value, facts.spend)

    return _made_of((left,), is_true, is_false)


def _calculated_likeness(
    left: Expression, pattern: Expression, escape: Expression | None
) -> Predicate:
    first, second = left.evaluate, pattern.evaluate
    third = None if escape is None else escape.evaluate

    def pattern_for(facts: Facts) -> Pattern | None:
        wanted = second(facts)
        mark = None if third is None else third(facts)
        if not isinstance(wanted, str) or (third is not None and mark is None):
            return None
        if mark is not None and (not isinstance(mark, str) or len(mark) != 1):
            raise EvaluationFailed("The escape character of LIKE must be a text of one character.")
        if len(wanted) > PATTERN_LENGTH_MAX:
            raise EvaluationFailed(
                f"The pattern of LIKE has {len(wanted)} characters; "
                f"{PATTERN_LENGTH_MAX} are allowed."
            )
        facts.spend(len(wanted))
        return like_pattern(wanted, mark)

    def is_true(facts: Facts) -> bool:
        value, made = first(facts), pattern_for(facts)
        return isinstance(value, str) and made is not None and made.matches(value, facts.spend)

    def is_false(facts: Facts) -> bool:
        value, made = first(facts), pattern_for(facts)
        return isinstance(value, str) and made is not None and not made.matches(value, facts.spend)

    parts = [left, pattern] if escape is None else [left, pattern, escape]
    return Predicate(is_true, is_false, depth_over(parts), can_fail=True)


def always_unknown(parts: Sequence[Expression]) -> Predicate:
    """A predicate with NULL for an operand. Its other parts are still evaluated: they may fail."""

    def evaluated(facts: Facts) -> bool:
        for part in parts:
            part.evaluate(facts)
        return False

    return _made_of(parts, evaluated, evaluated)


def is_null(slot: Slot) -> Predicate:
    """True for a property that is missing or null."""
    name = slot.name
    if slot.system:
        return Predicate(
            lambda facts: facts.system(name) is None,
            lambda facts: facts.system(name) is not None,
            1,
            can_fail=False,
        )
    return Predicate(
        lambda facts: facts.user.get(name) is None,
        lambda facts: facts.user.get(name) is not None,
        1,
        can_fail=False,
    )


def existence(slot: Slot) -> Predicate:
    """`EXISTS(p)`: also true of a property that is there and null. A system property that is not
    set is not there."""
    name = slot.name
    if slot.system:
        return negation(is_null(slot))
    return Predicate(
        lambda facts: name in facts.user,
        lambda facts: name not in facts.user,
        1,
        can_fail=False,
    )


def negation(part: Predicate) -> Predicate:
    made = Predicate(part.is_false, part.is_true, part.depth, part.can_fail)
    # True for every message means false for none; a part that is not true may still be unknown.
    made.constant = _settled(made) if part.constant is not None else None
    return made


def all_of(parts: Sequence[Predicate]) -> Predicate:
    """AND of two or more."""
    trues, falses = [part.is_true for part in parts], [part.is_false for part in parts]
    # A side is asked only when all sides before it are true. So it can stand for the whole, if no
    # side before it can fail.
    alternatives: list[Collection[Key]] = []
    for part in parts:
        alternatives += part.alternatives
        if part.can_fail:
            break
    return _joined(parts, _every(trues), _any(falses), alternatives)


def any_of(parts: Sequence[Predicate]) -> Predicate:
    """OR of two or more."""
    trues, falses = [part.is_true for part in parts], [part.is_false for part in parts]
    alternatives: list[Collection[Key]] = []
    if all(part.alternatives for part in parts):
        alternatives.append(
            frozenset().union(*(min(part.alternatives, key=len) for part in parts)),
        )
    return _joined(parts, _any(trues), _every(falses), alternatives)


def _every(tests: Sequence[Test]) -> Test:
    first, *others = tests

    def every(facts: Facts) -> bool:
        if not first(facts):
            return False
        for test in others:
            facts.spend(STEPS_OF_A_TEST)
            if not test(facts):
                return False
        return True

    return every


def _any(tests: Sequence[Test]) -> Test:
    first, *others = tests

    def any_one(facts: Facts) -> bool:
        if first(facts):
            return True
        for test in others:
            facts.spend(STEPS_OF_A_TEST)
            if test(facts):
                return True
        return False

    return any_one


def _joined(
    parts: Sequence[Predicate],
    is_true: Test,
    is_false: Test,
    alternatives: Sequence[Collection[Key]],
) -> Predicate:
    depth = 1 + max(part.depth for part in parts)
    can_fail = any(part.can_fail for part in parts)
    made = Predicate(is_true, is_false, depth, can_fail, alternatives)
    if all(part.constant is not None for part in parts):
        made.constant = _settled(made)
    return made


def _made_of(parts: Sequence[Expression], is_true: Test, is_false: Test) -> Predicate:
    can_fail = any(part.can_fail for part in parts)
    steps = sum(part.size for part in parts)
    if steps > USUAL_STEPS:
        is_true, is_false = _charged(is_true, steps), _charged(is_false, steps)
    made = Predicate(is_true, is_false, depth_over(parts), can_fail)
    if not can_fail and all(part.constant for part in parts):
        made.constant = _settled(made)
    return made


def _charged(test: Test, steps: int) -> Test:
    def charged(facts: Facts) -> bool:
        facts.spend(steps)
        return test(facts)

    return charged


def _settled(made: Predicate) -> bool:
    return made.is_true(NO_FACTS)


def _keys(slot: Slot, values: Iterable[Value]) -> frozenset[Key]:
    """The equalities, at least one of which must hold; NULL and NaN equal nothing."""
    keys = (key_of(value) for value in values)
    return frozenset(Key(slot, key) for key in keys if key is not None)
