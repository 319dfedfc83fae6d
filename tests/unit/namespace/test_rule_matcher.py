"""The rules of a topic as the engine has them applied."""

from __future__ import annotations

from uuid import UUID

import pytest

from postbus.errors import QuotaExceeded
from postbus.model.rule import RuleDescription, SqlFilter
from postbus.namespace.rule_matcher import TopicSorter
from postbus.rules.matching import SQL_FILTERS_MAX


def rule(name: str) -> RuleDescription:
    return RuleDescription(name, SqlFilter(f"a = '{name}'"))


def test_rules_come_and_go_one_by_one_and_are_counted() -> None:
    sorter = TopicSorter(lambda: UUID(int=0))
    first, second, other = sorter.compile([rule("first"), rule("second"), rule("First")])
    sorter.set_rules(1, [first])
    sorter.put_rule(1, second)
    assert sorter.rules.sql_count == 2 and sorter.rules.rule(1, "FIRST") is first
    sorter.put_rule(1, other)
    assert sorter.rules.sql_count == 2 and sorter.rules.rule(1, "first") is other
    sorter.remove_rule(1, "SECOND")
    sorter.remove_rule(1, "second")
    assert sorter.rules.sql_count == 1 and sorter.rules.rule(1, "second") is None


def test_a_topic_that_is_full_of_filters_takes_one_in_place_of_another() -> None:
    sorter = TopicSorter(lambda: UUID(int=0))
    [made] = sorter.compile([rule("first")])
    sorter.set_rules(1, [made])
    sorter.rules.sql_count = SQL_FILTERS_MAX
    sorter.check_room([made], [made])
    with pytest.raises(QuotaExceeded):
        sorter.check_room([], [made])


def test_a_subscription_that_is_gone_leaves_no_rules() -> None:
    sorter = TopicSorter(lambda: UUID(int=0))
    sorter.set_rules(1, sorter.compile([rule("first")]))
    sorter.remove(1)
    assert sorter.rules.sql_count == 0 and sorter.rules.rule(1, "first") is None
