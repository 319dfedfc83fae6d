"""SQL text to compiled predicates and statements: each rule of the grammar builds its part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isinf
from typing import TYPE_CHECKING, Any, Final

from postbus.errors import InvalidArgument
from postbus.model.values import TypedValue
from postbus.rules.actions import ChangedProperty, Statement
from postbus.rules.expressions import (
    DEPTH_MAX,
    Expression,
    NewId,
    Slot,
    TooDeep,
    calculation,
    constant,
    new_id,
    property_named_by,
    signed,
    system_value,
    user_property,
)
from postbus.rules.facts import fold
from postbus.rules.grammar import parse, refused_token
from postbus.rules.predicates import (
    Predicate,
    all_of,
    any_of,
    comparison,
    existence,
    is_null,
    likeness,
    membership,
    negation,
)
from postbus.rules.system_properties import system_property
from postbus.rules.values import INT64_MAX

if TYPE_CHECKING:
    from lark import Token, Tree

STATEMENTS_MAX: Final = 32
"""Statements of an action (semantics A §1.5)."""


def compile_predicate(
    expression: str, parameters: Mapping[str, TypedValue], new_id_source: NewId
) -> Predicate:
    """The predicate of an SQL filter. Raises InvalidArgument."""
    built: Predicate = _Builder(parameters, new_id_source).build(parse(expression, "filter"))
    return built


def compile_statements(
    expression: str, parameters: Mapping[str, TypedValue], new_id_source: NewId
) -> list[Statement]:
    """The statements of an SQL action. Raises InvalidArgument."""
    built: list[Statement] = _Builder(parameters, new_id_source).build(parse(expression, "action"))
    if len(built) > STATEMENTS_MAX:
        raise InvalidArgument(
            f"The action has {len(built)} statements; {STATEMENTS_MAX} are allowed."
        )
    return built


class _Name:
    """A property that a text names, before anything is done with it."""

    __slots__ = ("slot", "spelled", "token")

    def __init__(self, slot: Slot, spelled: str, token: Token) -> None:
        self.slot = slot
        self.spelled = spelled
        self.token = token


class _Builder:
    """Builds from the leaves up. Each method is a rule of the grammar, and takes its parts'
    results."""

    def __init__(self, parameters: Mapping[str, TypedValue], new_id_source: NewId) -> None:
        self._parameters = {_parameter_key(name): one for name, one in parameters.items()}
        self._new_id_source = new_id_source
        # The only number that is out of range unless a minus stands before it.
        self._too_large: dict[int, Token] = {}

    def build(self, tree: Tree[Token]) -> Any:
        """Without recursion: a text can nest deeper than Python's stack."""
        built: dict[int, Any] = {}
        try:
            for part in tree.iter_subtrees():
                build: Callable[..., Any] = getattr(self, str(part.data))
                built[id(part)] = build(*(built.get(id(one), one) for one in part.children))
        except TooDeep:
            raise InvalidArgument(
                f"The SQL expression is nested too deep: {DEPTH_MAX} levels are allowed."
            ) from None
        for token in self._too_large.values():
            raise refused_token(token, "the number is out of the range of Int64")
        return built[id(tree)]

    # Whole texts

    def filter(self, predicate: Predicate) -> Predicate:
        return predicate

    def action(self, *statements: Statement) -> list[Statement]:
        return list(statements)

    def set(self, name: _Name, _: Token, value: Expression) -> Statement:
        return Statement(self._target(name), value)

    def remove(self, name: _Name) -> Statement:
        return Statement(self._target(name), None)

    def _target(self, name: _Name) -> ChangedProperty:
        target = ChangedProperty(name.slot, name.spelled)
        if not target.settable:
            raise refused_token(
                name.token, f"the system property '{name.slot.name}' cannot be changed"
            )
        return target

    # Predicates

    def any_of(self, *parts: Predicate) -> Predicate:
        return any_of(parts)

    def all_of(self, *parts: Predicate) -> Predicate:
        return all_of(parts)

    def negation(self, part: Predicate) -> Predicate:
        return negation(part)

    def comparison(self, left: Expression, sign: Token, right: Expression) -> Predicate:
        return comparison(str(sign), left, right)

    def is_null(self, name: _Name) -> Predicate:
        return is_null(name.slot)

    def is_not_null(self, name: _Name) -> Predicate:
        return negation(is_null(name.slot))

    def existence(self, name: _Name) -> Predicate:
        return existence(name.slot)

    def membership(self, left: Expression, *items: Expression) -> Predicate:
        return membership(left, items)

    def no_membership(self, left: Expression, *items: Expression) -> Predicate:
        return negation(membership(left, items))

    def likeness(
        self, left: Expression, pattern: Expression, escape: Expression | None = None
    ) -> Predicate:
        if pattern.constant and not isinstance(pattern.value, str | None):
            raise InvalidArgument("The pattern of LIKE in the SQL expression must be a text.")
        if escape is not None and escape.constant and escape.value is not None:
            mark = escape.value
            if not isinstance(mark, str) or len(mark) != 1:
                raise InvalidArgument(
                    "The escape character of LIKE in the SQL expression must be a text of one "
                    "character."
                )
        return likeness(left, pattern, escape)

    def no_likeness(
        self, left: Expression, pattern: Expression, escape: Expression | None = None
    ) -> Predicate:
        return negation(self.likeness(left, pattern, escape))

    # Expressions

    def calculation(self, left: Expression, sign: Token, right: Expression) -> Expression:
        return calculation(str(sign), left, right)

    def signed(self, sign: Token, operand: Expression) -> Expression:
        if sign == "-" and self._too_large.pop(id(operand), None) is not None:
            return constant(-INT64_MAX - 1)
        return signed(str(sign), operand)

    def function(self, name: Token, argument: Expression | None = None) -> Expression:
        match name.lower(), argument:
            case ("newid", None):
                return new_id(self._new_id_source)
            case ("property" | "p", Expression()):
                return property_named_by(argument)
            case ("newid" | "property" | "p", _):
                raise refused_token(name, f"wrong number of arguments of the function '{name}'")
        raise refused_token(name, f"there is no function '{name}'")

    def parameter(self, token: Token) -> Expression:
        given = self._parameters.get(_parameter_key(token))
        if given is None:
            raise refused_token(token, f"the parameter '{token}' has no value")
        return constant(given.value)

    def integer(self, token: Token) -> Expression:
        number = int(token) if len(token.lstrip("0")) <= len(str(INT64_MAX)) else INT64_MAX + 2
        if number > INT64_MAX + 1:
            raise refused_token(token, "the number is out of the range of Int64")
        made = constant(number)
        if number > INT64_MAX:
            self._too_large[id(made)] = token
        return made

    def float(self, token: Token) -> Expression:
        number = float(token)
        if isinf(number):
            raise refused_token(token, "the number is out of the range of Double")
        return constant(number)

    def string(self, token: Token) -> Expression:
        return constant(_unquoted(token))

    def true(self) -> Expression:
        return constant(True)

    def false(self) -> Expression:
        return constant(False)

    def null(self) -> Expression:
        return constant(None)

    def property_value(self, name: _Name) -> Expression:
        return system_value(name.slot.name) if name.slot.system else user_property(name.spelled)

    def user_property(self, token: Token) -> _Name:
        spelled = _name(token)
        return _Name(Slot(False, fold(spelled)), spelled, token)

    def scoped_property(self, scope: Token, token: Token) -> _Name:
        match scope.lower():
            case "user":
                return self.user_property(token)
            case "sys":
                spelled = _name(token)
                known = system_property(spelled)
                if known is None:
                    # Azure says so when it evaluates. Names are fixed, so we say it now.
                    raise refused_token(token, f"there is no system property '{spelled}'")
                return _Name(Slot(True, known.name), spelled, token)
        raise refused_token(scope, f"there is no scope '{scope}', only 'sys' and 'user'")


def _parameter_key(name: str) -> str:
    return name.removeprefix("@").lower()


def _name(token: Token) -> str:
    return _unquoted(token) if token.type == "DELIMITED" else str(token)


def _unquoted(text: str) -> str:
    end = text[-1]
    return text[1:-1].replace(end * 2, end)
