"""The rules of a topic as the engine has them applied."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest

from postbus.model.rule import RuleDescription, SqlFilter
from postbus.rules.rule import Rule, compile_rule
from postbus.server import sorting
from postbus.server.sorting import TopicSorter


def rule(name: str) -> RuleDescription:
    return RuleDescription(name, SqlFilter(f"a = '{name}'"))


def test_a_rule_is_compiled_once_however_many_come_and_go_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: Counter[str] = Counter()

    def counted(description: RuleDescription, new_id: object) -> Rule:
        compiled[description.name] += 1
        return compile_rule(description, lambda: UUID(int=0))

    monkeypatch.setattr(sorting, "compile_rule", counted)
    sorter = TopicSorter(lambda: UUID(int=0))
    first, second, third = rule("first"), rule("second"), rule("third")
    sorter.set_rules(1, [first, second])
    sorter.set_rules(1, [first, second, third])
    sorter.set_rules(1, [first, third])
    assert compiled == {"first": 1, "second": 1, "third": 1}
    assert sorter.rules.sql_count == 2

    # Another rule of the same name is another rule.
    sorter.set_rules(1, [rule("first"), third])
    assert compiled["first"] == 2


def test_a_subscription_that_is_gone_leaves_no_rules() -> None:
    sorter = TopicSorter(lambda: UUID(int=0))
    sorter.set_rules(1, [rule("first")])
    sorter.remove(1)
    assert sorter.rules.sql_count == 0 and sorter._compiled == {}
