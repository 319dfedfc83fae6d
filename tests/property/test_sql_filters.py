"""SQL filters beside SQLite: where both have the same language, they say the same of each message.

Left out is what the two do differently on purpose: operands of types that do not go together
(SQLite orders types, here the outcome is unknown), and calculations that fail here (SQLite has NULL
or a double for them).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from postbus.rules.values import EvaluationFailed
from tests.unit.rules.samples import Sample, predicate

COLUMNS = ("i", "j", "r", "s", "t")


class Sql(NamedTuple):
    """A piece of SQL in both spellings, and how tightly it holds together."""

    ours: str
    theirs: str
    rank: int

    def within(self, rank: int) -> Sql:
        """In parentheses, if it would fall apart among operators of this rank."""
        if self.rank >= rank:
            return self
        return Sql(f"({self.ours})", f"({self.theirs})", ATOM)


OR, AND, NOT, CONDITION, SUM, PRODUCT, SIGN, ATOM = range(8)


def same(text: str, rank: int = ATOM) -> Sql:
    return Sql(text, text, rank)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def binary(left: Sql, sign: str, right: Sql, rank: int, theirs: str | None = None) -> Sql:
    """The left side may be of the same rank: `a - b - c` is `(a - b) - c`."""
    left, right = left.within(rank), right.within(rank + 1)
    return Sql(
        f"{left.ours} {sign} {right.ours}", f"{left.theirs} {theirs or sign} {right.theirs}", rank
    )


letters = st.text(st.sampled_from("abé%_!'"), max_size=5)
integers = st.one_of(
    st.sampled_from(["i", "j", "NULL"]), st.integers(0, 20).map(str), st.integers(0, 2**62).map(str)
).map(same)
doubles = st.one_of(st.just("r"), st.integers(0, 400).map(lambda n: repr(n / 8))).map(same)
texts = st.one_of(
    st.sampled_from(["s", "t", "NULL"]),
    letters.map(quoted),
).map(same)


@st.composite
def calculations(draw: DrawFn, parts: SearchStrategy[Sql]) -> Sql:
    if draw(st.booleans()):
        operand = draw(parts).within(SIGN)
        sign = draw(st.sampled_from("+-"))
        return Sql(f"{sign} {operand.ours}", f"{sign} {operand.theirs}", SIGN)
    sign, rank = draw(
        st.sampled_from([("+", SUM), ("-", SUM), ("*", PRODUCT), ("/", PRODUCT), ("%", PRODUCT)])
    )
    return binary(draw(parts), sign, draw(parts), rank)


@st.composite
def sums_of_doubles(draw: DrawFn, parts: SearchStrategy[Sql]) -> Sql:
    sign, rank = draw(st.sampled_from([("+", SUM), ("-", SUM), ("*", PRODUCT)]))
    return binary(draw(parts), sign, draw(parts | integers), rank)


@st.composite
def joined_texts(draw: DrawFn, parts: SearchStrategy[Sql]) -> Sql:
    # In SQLite `||` binds more tightly than anything, so each side of it is an atom.
    left, right = draw(parts).within(ATOM), draw(parts).within(ATOM)
    return Sql(f"{left.ours} + {right.ours}", f"{left.theirs} || {right.theirs}", SUM)


integer_expressions = st.recursive(integers, calculations, max_leaves=4)
numbers = st.one_of(integer_expressions, st.recursive(doubles, sums_of_doubles, max_leaves=3))
text_expressions = st.recursive(texts, joined_texts, max_leaves=3)


@st.composite
def comparisons(draw: DrawFn) -> Sql:
    kind = draw(st.sampled_from([numbers, text_expressions]))
    sign = draw(st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="]))
    left, right = draw(kind).within(SUM), draw(kind).within(SUM)
    return Sql(
        f"{left.ours} {sign} {right.ours}", f"{left.theirs} {sign} {right.theirs}", CONDITION
    )


@st.composite
def memberships(draw: DrawFn) -> Sql:
    kind = draw(st.sampled_from([numbers, text_expressions]))
    left = draw(kind).within(SUM)
    items = draw(st.lists(kind, min_size=1, max_size=3))
    word = draw(st.sampled_from(["IN", "NOT IN"]))
    return Sql(
        f"{left.ours} {word} ({', '.join(item.ours for item in items)})",
        f"{left.theirs} {word} ({', '.join(item.theirs for item in items)})",
        CONDITION,
    )


@st.composite
def likenesses(draw: DrawFn) -> Sql:
    left, pattern = draw(text_expressions).within(SUM), draw(text_expressions).within(SUM)
    word = draw(st.sampled_from(["LIKE", "NOT LIKE"]))
    mark = draw(st.sampled_from(["", " ESCAPE '!'", " ESCAPE 'a'", " ESCAPE '%'", " ESCAPE '_'"]))
    return Sql(
        f"{left.ours} {word} {pattern.ours}{mark}",
        f"{left.theirs} {word} {pattern.theirs}{mark}",
        CONDITION,
    )


nulls = st.builds(
    lambda name, word: same(f"{name} {word}", CONDITION),
    st.sampled_from(COLUMNS),
    st.sampled_from(["IS NULL", "IS NOT NULL"]),
)


@st.composite
def connections(draw: DrawFn, parts: SearchStrategy[Sql]) -> Sql:
    match draw(st.integers(0, 2)):
        case 0:
            operand = draw(parts).within(NOT)
            return Sql(f"NOT {operand.ours}", f"NOT {operand.theirs}", NOT)
        case 1:
            return binary(draw(parts), "AND", draw(parts), AND)
    return binary(draw(parts), "OR", draw(parts), OR)


predicates = st.recursive(
    st.one_of(comparisons(), memberships(), likenesses(), nulls), connections, max_leaves=5
)
messages = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-20, 20) | st.integers(-(2**63), 2**63 - 1),
        "j": st.none() | st.integers(-20, 20),
        "r": st.none() | st.integers(-400, 400).map(lambda n: n / 8),
        "s": st.none() | letters,
        "t": st.none() | letters,
    }
)


@pytest.fixture(scope="module")
def reference() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    # Filters compare characters as they are; SQLite's LIKE ignores case unless told.
    connection.execute("PRAGMA case_sensitive_like = ON")
    yield connection
    connection.close()


@settings(max_examples=600, deadline=None)
@given(sql=predicates, message=messages)
def test_sqlite_agrees(
    reference: sqlite3.Connection, sql: Sql, message: dict[str, int | float | str | None]
) -> None:
    assume(len(sql.ours) <= 1_024)
    compiled = predicate(sql.ours)
    facts = Sample({name: value for name, value in message.items() if value is not None})
    try:
        is_true, is_false = compiled.is_true(facts), compiled.is_false(facts)
    except EvaluationFailed:
        assume(False)
    columns = ", ".join(f"? AS {name}" for name in COLUMNS)
    [(outcome,)] = reference.execute(
        f"SELECT {sql.theirs} FROM (SELECT {columns})", [message[name] for name in COLUMNS]
    )
    assert (is_true, is_false) == (outcome == 1, outcome == 0), sql.ours


@settings(max_examples=150, deadline=None)
@given(sql=predicates, message=messages)
def test_null_and_missing_are_the_same_to_every_operator(
    sql: Sql, message: dict[str, int | float | str | None]
) -> None:
    assume(len(sql.ours) <= 1_024)
    compiled = predicate(sql.ours)
    outcomes = []
    for facts in (
        Sample(message),
        Sample({name: value for name, value in message.items() if value is not None}),
    ):
        try:
            outcomes.append((compiled.is_true(facts), compiled.is_false(facts)))
        except EvaluationFailed as failure:
            outcomes.append(str(failure))
    assert outcomes[0] == outcomes[1]
