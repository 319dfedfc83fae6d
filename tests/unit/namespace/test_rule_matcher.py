"""The rules of a topic as the engine has them applied."""

from __future__ import annotations

from uuid import UUID

import pytest

from postbus.errors import QuotaExceeded
from postbus.model.rule import RuleDescription, SqlFilter
from postbus.namespace.rule_matcher import TopicRuleMatcher
from postbus.rules.matching import SQL_FILTERS_MAX


def rule(name: str) -> RuleDescription:
    return RuleDescription(name, SqlFilter(f"a = '{name}'"))


def test_rules_come_and_go_one_by_one_and_are_counted() -> None:
    matcher = TopicRuleMatcher(lambda: UUID(int=0))
    first, second, other = matcher.compile([rule("first"), rule("second"), rule("First")])
    matcher.set_rules(1, [first])
    matcher.put_rule(1, second)
    assert matcher.rules.sql_count == 2 and matcher.rules.rule(1, "FIRST") is first
    matcher.put_rule(1, other)
    assert matcher.rules.sql_count == 2 and matcher.rules.rule(1, "first") is other
    matcher.remove_rule(1, "SECOND")
    matcher.remove_rule(1, "second")
    assert matcher.rules.sql_count == 1 and matcher.rules.rule(1, "second") is None


def test_a_topic_that_is_full_of_filters_takes_one_in_place_of_another() -> None:
    matcher = TopicRuleMatcher(lambda: UUID(int=0))
    [made] = matcher.compile([rule("first")])
    matcher.set_rules(1, [made])
    matcher.rules.sql_count = SQL_FILTERS_MAX
    matcher.check_room([made], [made])
    with pytest.raises(QuotaExceeded):
        matcher.check_room([], [made])


def test_a_subscription_that_is_gone_leaves_no_rules() -> None:
    matcher = TopicRuleMatcher(lambda: UUID(int=0))
    matcher.set_rules(1, matcher.compile([rule("first")]))
    matcher.remove(1)
    assert matcher.rules.sql_count == 0 and matcher.rules.rule(1, "first") is None
