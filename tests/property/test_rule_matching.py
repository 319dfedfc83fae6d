"""The index of a topic's rules says what asking every rule in turn would say.

Rules come from a seed, for each message there is with a few values: chance alone would seldom bring
together a rule and the one message that tells a wrong index from a right one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from postbus.model.rule import CorrelationFilter, FalseFilter, Filter, SqlFilter, TrueFilter
from postbus.model.values import DateTime, TypedValue, ValueType
from postbus.rules.matching import RuleSet
from postbus.rules.rule import Rule
from postbus.rules.values import EvaluationFailed, Value
from tests.unit.rules.samples import Sample, rule

SEEDS = range(30)
STEPS = 60
OWNERS = 30

VALUES: list[Value] = [None, 0, 1, 1.0, "x", True, DateTime(0), float("nan")]
MISSING = "missing"
MESSAGES = [
    Sample({name: value for name, value in (("a", a), ("B", b)) if value != MISSING}, To=to)
    for a in [*VALUES, MISSING]
    for b in [*VALUES, MISSING]
    for to in (None, "x")
]
TYPED = [
    TypedValue(ValueType.STRING, "x"),
    TypedValue(ValueType.INT, "1"),
    TypedValue(ValueType.DOUBLE, "1"),
    TypedValue(ValueType.DOUBLE, "NaN"),
    TypedValue(ValueType.BOOLEAN, "true"),
    TypedValue(ValueType.DATE_TIME, "0001-01-01T00:00:00Z"),
]
NAMES = ("a", "B", "sys.To")
LITERALS = ("0", "1", "'x'", "0", "1", "'x'", "1.0", "TRUE", "NULL", "p('b')")
# Of these those with a division fail for some messages.
SHAPES = (
    *["{name} = {one}", "{name} = {one}", "{one} = {name}", "{name} IN ({one}, {two})"] * 2,
    *("1 / a = 1", "1 / b >= 0", "1 / (a * b) = 1", "1 / 0 = 1"),
    *("{name} <> {one}", "{name} > {one}", "{name} IS NULL", "{name} LIKE 'x%'"),
    *("{name} NOT IN ({one})", "1 = 1", "1 = 0", "NULL = 1"),
)


def condition(chance: random.Random, depth: int) -> str:
    if depth == 0 or chance.random() < 0.2:
        return chance.choice(SHAPES).format(
            name=chance.choice(NAMES), one=chance.choice(LITERALS), two=chance.choice(LITERALS)
        )
    if chance.random() < 0.15:
        return f"NOT ({condition(chance, depth - 1)})"
    parts = [condition(chance, depth - 1) for _ in range(chance.choice((2, 2, 3)))]
    return "(" + chance.choice((" AND ", " OR ")).join(parts) + ")"


def any_filter(chance: random.Random) -> Filter:
    match chance.randrange(10):
        case 0:
            return chance.choice((TrueFilter(), FalseFilter()))
        case 1 | 2:
            names = chance.choice((("A",), ("b",), ("A", "b")))
            to = chance.choice((None, "x", "y"))
            return CorrelationFilter(to=to, properties={one: chance.choice(TYPED) for one in names})
    return SqlFilter(condition(chance, chance.choice((1, 1, 2))))


def any_rule(chance: random.Random, number: int) -> Rule:
    return rule(any_filter(chance), chance.choice((None, None, "SET z = 1")), f"rule {number}")


def any_rules(chance: random.Random) -> list[Rule]:
    return [any_rule(chance, number) for number in range(chance.choice((0, 1, 1, 1, 2, 3)))]


def asked_in_turn(rules_of: dict[int, Sequence[Rule]], facts: Sample) -> list[Any]:
    found = []
    for owner, rules in sorted(rules_of.items()):
        plain, actions, failure = False, [], None
        for one in rules:
            try:
                selected = one.selector.is_true(facts)
            except EvaluationFailed as error:
                failure = failure or str(error)
                continue
            if selected and one.action is None:
                plain = True
            elif selected:
                actions.append((one.name, one.action))
        if plain or actions or failure:
            found.append((owner, plain, actions, failure))
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_the_index_says_what_asking_every_rule_would_say(seed: int) -> None:
    chance = random.Random(seed)
    made = RuleSet()
    kept: dict[int, Sequence[Rule]] = {}
    for _ in range(STEPS):
        owner = chance.randrange(OWNERS)
        dice = chance.random()
        if dice < 0.1:
            made.remove(owner)
            kept.pop(owner, None)
        elif dice < 0.3:
            name = f"rule {chance.randrange(4)}"
            made.remove_rule(owner, name.upper())
            kept[owner] = [one for one in kept.get(owner, ()) if one.name != name]
        elif dice < 0.7:
            one = any_rule(chance, chance.randrange(4))
            made.put_rule(owner, one)
            others = [each for each in kept.get(owner, ()) if each.name != one.name]
            kept[owner] = sorted([*others, one], key=lambda each: each.name)
        else:
            rules = any_rules(chance)
            made.set_rules(owner, rules)
            kept[owner] = rules
    for message in MESSAGES:
        assert [
            (match.owner, match.plain, list(match.actions), match.failure and str(match.failure))
            for match in made.match(message)
        ] == asked_in_turn(kept, message)
    every = [one for rules in kept.values() for one in rules]
    assert made.correlation_count == sum(one.is_correlation for one in every)
    assert made.sql_count == len(every) - made.correlation_count
