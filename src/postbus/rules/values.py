"""The values of the filter language, and calculation with them.

Values are plain Python values of exactly these types: None stands for both null and unknown, which
no operator tells apart. Azure says "as C# does" (semantics A §1.4), and this module implements it:
numbers are promoted, everything else only meets its own kind. Operands that do not go together have
an unknown result. Only a calculation that C# would break off with an exception fails.
"""

import math
from collections.abc import Callable, Hashable
from typing import ClassVar, Final
from uuid import UUID

from postbus.model.values import DATE_TIME_MAX_TICKS, DateTime, TimeSpan

INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1
TEXT_LENGTH_MAX: Final = 65_536
"""Characters that `+` may make of strings: as many as a whole header. 32 statements that double a
property would make four billion otherwise."""


class Opaque:
    """A value that is there and equals nothing: a list, a map. An action can pass it on."""

    __slots__ = ("content",)

    def __init__(self, content: object) -> None:
        self.content = content


Value = bool | int | float | str | UUID | bytes | DateTime | TimeSpan | Opaque | None


class EvaluationFailed(Exception):
    """A filter could not be evaluated for this message; its text goes to the dead letter."""

    reason: ClassVar[str] = "FilterException"
    """The name of Azure's exception, which becomes the dead letter's reason (R-DLQ-05)."""


class ActionFailed(EvaluationFailed):
    """An action could not be carried out on this message."""

    reason = "RuleActionException"


_NUMBER: Final = 1
_KINDS: Final[dict[type, int]] = {
    int: _NUMBER,
    float: _NUMBER,
    str: 2,
    DateTime: 3,
    TimeSpan: 4,
    # From here on only equality has a meaning.
    bool: 5,
    UUID: 6,
    bytes: 7,
}
_ORDERED: Final = {kind: number for kind, number in _KINDS.items() if number < 5}


def comparable(left: Value, right: Value) -> bool:
    """Does `=` have an answer other than unknown?

    An int and a float are compared as the numbers they are, without rounding the int first.
    """
    kind = _KINDS.get(type(left))
    return kind is not None and kind == _KINDS.get(type(right))


def orderable(left: Value, right: Value) -> bool:
    """Does `<` have an answer other than unknown?"""
    kind = _ORDERED.get(type(left))
    return kind is not None and kind == _ORDERED.get(type(right))


def key_of(value: Value) -> Hashable | None:
    """The key that equal values share and other values do not; None if nothing equals the value."""
    if type(value) is bool:
        return (bool, value)  # in Python, True is 1
    if type(value) not in _KINDS or (type(value) is float and math.isnan(value)):
        return None
    return value


def add(left: Value, right: Value) -> Value:
    if type(left) is int and type(right) is int:
        return _int64(left + right)
    if isinstance(left, str) and isinstance(right, str):
        return _joined(left, right)
    if doubles := _as_doubles(left, right):
        return doubles[0] + doubles[1]
    match left, right:
        case (DateTime(), TimeSpan()):
            return _date_time(left.ticks + right.ticks)
        case (TimeSpan(), DateTime()):
            return _date_time(left.ticks + right.ticks)
        case (TimeSpan(), TimeSpan()):
            return TimeSpan(_int64(left.ticks + right.ticks))
    return None


def subtract(left: Value, right: Value) -> Value:
    if type(left) is int and type(right) is int:
        return _int64(left - right)
    if doubles := _as_doubles(left, right):
        return doubles[0] - doubles[1]
    match left, right:
        case (DateTime(), DateTime()):
            return TimeSpan(left.ticks - right.ticks)
        case (DateTime(), TimeSpan()):
            return _date_time(left.ticks - right.ticks)
        case (TimeSpan(), TimeSpan()):
            return TimeSpan(_int64(left.ticks - right.ticks))
    return None


def multiply(left: Value, right: Value) -> Value:
    if type(left) is int and type(right) is int:
        return _int64(left * right)
    if doubles := _as_doubles(left, right):
        return doubles[0] * doubles[1]
    return None


def divide(left: Value, right: Value) -> Value:
    """Of two integers, towards zero; with a double among them, as IEEE 754 has it."""
    if type(left) is int and type(right) is int:
        _refuse_zero(right)
        quotient = abs(left) // abs(right)
        return _int64(quotient if (left < 0) == (right < 0) else -quotient)
    doubles = _as_doubles(left, right)
    if doubles is None:
        return None
    over, under = doubles
    if under:
        return over / under
    if not over or math.isnan(over):
        return math.nan
    return math.copysign(math.inf, over) * math.copysign(1.0, under)


def modulo(left: Value, right: Value) -> Value:
    """The rest has the sign of the left side, as in C#."""
    if type(left) is int and type(right) is int:
        _refuse_zero(right)
        rest = abs(left) % abs(right)
        return -rest if left < 0 else rest
    doubles = _as_doubles(left, right)
    if doubles is None:
        return None
    try:
        return math.fmod(*doubles)
    except ValueError:
        return math.nan


def negative(value: Value) -> Value:
    if type(value) is int:
        return _int64(-value)
    if type(value) is float:
        return -value
    if type(value) is TimeSpan:
        return TimeSpan(_int64(-value.ticks))
    return None


def positive(value: Value) -> Value:
    return value if _KINDS.get(type(value)) == _NUMBER or type(value) is TimeSpan else None


OPERATORS: Final[dict[str, Callable[[Value, Value], Value]]] = {
    "+": add,
    "-": subtract,
    "*": multiply,
    "/": divide,
    "%": modulo,
}
SIGNS: Final[dict[str, Callable[[Value], Value]]] = {"+": positive, "-": negative}


def _as_doubles(left: Value, right: Value) -> tuple[float, float] | None:
    """Both as doubles, if both are numbers."""
    if _KINDS.get(type(left)) == _NUMBER == _KINDS.get(type(right)):
        return float(left), float(right)  # type: ignore[arg-type]
    return None


def _int64(number: int) -> int:
    if not INT64_MIN <= number <= INT64_MAX:
        raise EvaluationFailed("Arithmetic operation resulted in an overflow.")
    return number


def _refuse_zero(divisor: int) -> None:
    if divisor == 0:
        raise EvaluationFailed("Attempted to divide by zero.")


def _date_time(ticks: int) -> DateTime:
    if not 0 <= ticks <= DATE_TIME_MAX_TICKS:
        raise EvaluationFailed("The added or subtracted value results in an un-representable time.")
    return DateTime(ticks)


def _joined(left: str, right: str) -> str:
    length = len(left) + len(right)
    if length > TEXT_LENGTH_MAX:
        raise EvaluationFailed(
            f"A text of {length} characters was put together; {TEXT_LENGTH_MAX} are allowed."
        )
    return left + right
