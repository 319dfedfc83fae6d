"""SQL filters beside SQLite: where both have the same language, they say the same of each message.

Left out is what the two do differently on purpose: operands of types that do not go together
(SQLite orders types, here the outcome is unknown), and calculations that fail here (SQLite has NULL
or a double for them). Filters come from a seed; of those that go wrong the shortest is shown.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from postbus.rules.values import EvaluationFailed, Value
from tests.unit.rules.samples import Sample, predicate

COLUMNS = ("i", "j", "r", "s", "t")
FILTERS = 400
MESSAGES = 12
Message = dict[str, Value]


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
Make = Callable[[int], Sql]


def same(text: str, rank: int = ATOM) -> Sql:
    return Sql(text, text, rank)


def binary(left: Sql, sign: str, right: Sql, rank: int) -> Sql:
    """The left side may be of the same rank: `a - b - c` is `(a - b) - c`."""
    left, right = left.within(rank), right.within(rank + 1)
    return Sql(f"{left.ours} {sign} {right.ours}", f"{left.theirs} {sign} {right.theirs}", rank)


class Generator:
    """Filters and messages from one seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def letters(self) -> str:
        return "".join(self.chance.choices("abé%_!'", k=self.chance.randrange(5)))

    def message(self) -> Message:
        chance = self.chance
        return {
            "i": chance.choice(
                (None, chance.randint(-20, 20), chance.randint(-(2**63), 2**63 - 1))
            ),
            "j": chance.choice((None, chance.randint(-5, 5), chance.randint(-5, 5))),
            "r": chance.choice((None, chance.randint(-80, 80) / 8)),
            "s": chance.choice((None, self.letters(), self.letters())),
            "t": chance.choice((None, self.letters(), self.letters())),
        }

    def integer(self, depth: int) -> Sql:
        chance = self.chance
        if depth == 0 or chance.random() < 0.4:
            literal = chance.choice((chance.randrange(12), chance.randrange(2**62)))
            return same(chance.choice(("i", "j", "i", "j", "NULL", str(literal), str(literal))))
        if chance.random() < 0.2:
            operand = self.integer(depth - 1).within(SIGN)
            return same(f"{chance.choice('+-')} {operand.ours}", SIGN)
        sign = chance.choice("+-*/%")
        rank = SUM if sign in "+-" else PRODUCT
        return binary(self.integer(depth - 1), sign, self.integer(depth - 1), rank)

    def number(self, depth: int) -> Sql:
        """An integer, or a double; only integers are divided, for SQLite knows no infinity."""
        chance = self.chance
        if chance.random() < 0.5:
            return self.integer(depth)
        if depth == 0 or chance.random() < 0.5:
            return same(chance.choice(("r", "r", repr(chance.randrange(80) / 8))))
        sign = chance.choice("+-*")
        rank = SUM if sign in "+-" else PRODUCT
        return binary(self.number(depth - 1), sign, self.integer(0), rank)

    def text(self, depth: int) -> Sql:
        chance = self.chance
        if depth == 0 or chance.random() < 0.6:
            literal = "'" + self.letters().replace("'", "''") + "'"
            return same(chance.choice(("s", "t", "s", "t", literal, literal, "NULL")))
        # In SQLite `||` binds more tightly than anything, so each side of it is an atom.
        left, right = self.text(depth - 1).within(ATOM), self.text(depth - 1).within(ATOM)
        return Sql(f"{left.ours} + {right.ours}", f"{left.theirs} || {right.theirs}", SUM)

    def condition(self) -> Sql:
        chance = self.chance
        kind = chance.choice(("comparison", "comparison", "membership", "likeness", "null"))
        if kind == "null":
            word = chance.choice(("IS NULL", "IS NOT NULL"))
            return same(f"{chance.choice(COLUMNS)} {word}", CONDITION)
        make: Make = self.text if kind == "likeness" else chance.choice((self.number, self.text))
        left = make(2).within(SUM)
        if kind == "comparison":
            sign = chance.choice(("=", "<>", "!=", "<", "<=", ">", ">="))
            right = make(2).within(SUM)
            return Sql(
                f"{left.ours} {sign} {right.ours}",
                f"{left.theirs} {sign} {right.theirs}",
                CONDITION,
            )
        negated = chance.choice(("", "NOT "))
        if kind == "membership":
            items = [make(1) for _ in range(chance.randint(1, 3))]
            ours, theirs = (", ".join(item[place] for item in items) for place in (0, 1))
            return Sql(
                f"{left.ours} {negated}IN ({ours})",
                f"{left.theirs} {negated}IN ({theirs})",
                CONDITION,
            )
        pattern = make(1).within(SUM)
        mark = chance.choice(("", "", " ESCAPE '!'", " ESCAPE 'a'", " ESCAPE '%'", " ESCAPE '_'"))
        return Sql(
            f"{left.ours} {negated}LIKE {pattern.ours}{mark}",
            f"{left.theirs} {negated}LIKE {pattern.theirs}{mark}",
            CONDITION,
        )

    def predicate(self, depth: int) -> Sql:
        chance = self.chance
        if depth == 0 or chance.random() < 0.3:
            return self.condition()
        match chance.randrange(5):
            case 0:
                operand = self.predicate(depth - 1).within(NOT)
                return Sql(f"NOT {operand.ours}", f"NOT {operand.theirs}", NOT)
            case 1 | 2:
                return binary(self.predicate(depth - 1), "AND", self.predicate(depth - 1), AND)
        return binary(self.predicate(depth - 1), "OR", self.predicate(depth - 1), OR)

    def filter(self) -> Sql:
        while True:
            made = self.predicate(self.chance.randrange(4))
            if len(made.ours) <= 1_024:
                return made


@pytest.fixture(scope="module")
def reference() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    # Filters compare characters as they are; SQLite's LIKE ignores case unless told.
    connection.execute("PRAGMA case_sensitive_like = ON")
    yield connection
    connection.close()


def differences(seed: int, reference: sqlite3.Connection) -> Iterator[str]:
    """What the two say differently."""
    generator = Generator(seed)
    columns = ", ".join(f"? AS {name}" for name in COLUMNS)
    compared = 0
    for _ in range(FILTERS):
        sql = generator.filter()
        compiled = predicate(sql.ours)
        query = f"SELECT {sql.theirs} FROM (SELECT {columns})"
        for message in [generator.message() for _ in range(MESSAGES)]:
            facts = Sample({name: value for name, value in message.items() if value is not None})
            try:
                outcome = compiled.is_true(facts), compiled.is_false(facts)
            except EvaluationFailed:
                continue
            compared += 1
            [(theirs,)] = reference.execute(query, [message[name] for name in COLUMNS])
            if outcome != (theirs == 1, theirs == 0):
                yield f"{sql.ours}\nof {message}: SQLite has {theirs}, we {outcome}"
    assert compared > FILTERS * MESSAGES / 2


def check(seed: int, reference: sqlite3.Connection) -> None:
    found = sorted(differences(seed, reference), key=len)
    assert not found, f"{len(found)} differences, among them:\n{found[0]}"


@pytest.mark.parametrize("seed", range(8))
def test_sqlite_agrees(seed: int, reference: sqlite3.Connection) -> None:
    check(seed, reference)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1_000, 1_200))
def test_sqlite_agrees_at_length(seed: int, reference: sqlite3.Connection) -> None:
    check(seed, reference)


def test_null_and_missing_are_the_same_to_every_operator() -> None:
    generator = Generator(0)
    for _ in range(FILTERS):
        compiled = predicate(generator.filter().ours)
        message = generator.message()
        outcomes: list[object] = []
        for facts in (
            Sample(message),
            Sample({name: value for name, value in message.items() if value is not None}),
        ):
            try:
                outcomes.append((compiled.is_true(facts), compiled.is_false(facts)))
            except EvaluationFailed as failure:
                outcomes.append(str(failure))
        assert outcomes[0] == outcomes[1]
