"""Authorization rules: what may be written, what is filled in, what the catalog keeps."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.errors import InvalidArgument
from postbus.model.authorization import (
    ALL_RIGHTS,
    AuthorizationRule,
    Right,
    read_right,
    read_rules,
    rules_from_json,
    rules_to_json,
    settle_rules,
    validate_rules,
)
from postbus.model.description import QueueDescription

T0 = 1_700_000_000_000
KEY = "A" * 43 + "="
OTHER = "B" * 43 + "="
LISTEN, SEND, MANAGE = Right.LISTEN, Right.SEND, Right.MANAGE


def rule(name: str = "k", *rights: Right, **more: Any) -> AuthorizationRule:
    return AuthorizationRule(name, rights or (SEND,), **more)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (AuthorizationRule("", (SEND,)), "has no KeyName"),
        (rule("x" * 257), "has 257 characters; 256 are allowed"),
        (rule("a b"), "'a b' of an authorization rule contains invalid characters"),
        (rule("a/b"), "invalid characters"),
        (rule("k\n"), "invalid characters"),
        (AuthorizationRule("k", ()), "'k' has no rights"),
        (rule("k", SEND, LISTEN, SEND), "must be unique: 'k' has Send, Listen, Send"),
        (rule("k", MANAGE), "Manage permission should also include Send and Listen: 'k' has"),
        (rule("k", MANAGE, SEND), "Manage permission should also include"),
        (rule("k", primary_key="short"), "PrimaryKey of the authorization rule 'k' must have 44"),
        (rule("k", secondary_key="?" * 44), "SecondaryKey of the authorization rule 'k' must"),
        (rule("k", primary_key="A" * 45), "must have 44 characters of base64"),
        (rule("k", primary_key=KEY + "\n"), "must have 44 characters of base64"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_in_words(wrong: AuthorizationRule, text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        wrong.validate()
    assert text in str(refused.value)
    if wrong.primary_key:
        assert wrong.primary_key not in str(refused.value)


@pytest.mark.parametrize("key", [KEY, "A" * 44, "A" * 42 + "==", "+/" * 22, ""])
def test_a_key_is_44_characters_of_base64_or_still_to_be_made(key: str) -> None:
    rule("Send.Only-1_!*()", primary_key=key, secondary_key=key).validate()


def test_an_entity_has_twelve_rules_at_most_and_each_its_own_name() -> None:
    validate_rules([rule(f"k{n}") for n in range(12)])
    with pytest.raises(InvalidArgument, match="There are 13 authorization rules; 12 allowed"):
        validate_rules([rule(f"k{n}") for n in range(13)])
    with pytest.raises(InvalidArgument, match="Two authorization rules have the KeyName 'SEND'"):
        validate_rules([rule("send"), rule("SEND")])


def test_a_description_is_only_as_good_as_its_rules() -> None:
    with pytest.raises(InvalidArgument, match="Manage permission"):
        QueueDescription(authorization_rules=(rule("k", MANAGE),)).validate()


def test_the_rights_of_a_rule_are_one_value_together() -> None:
    assert rule("k", LISTEN, SEND).granted == LISTEN | SEND
    assert rule("k", MANAGE, SEND, LISTEN).granted == ALL_RIGHTS


def test_a_rule_does_not_show_its_keys_where_it_is_printed() -> None:
    shown = repr(QueueDescription(authorization_rules=(rule("k", primary_key=KEY),)))
    assert "'k'" in shown and "Send" in shown
    assert KEY not in shown


def settle(*rules: AuthorizationRule, previous: tuple[AuthorizationRule, ...] = ()) -> list:
    made = map("made {}".format, count(1))
    return list(settle_rules(rules, previous, T0, lambda: next(made)))


def test_a_new_rule_gets_the_keys_it_lacks_and_its_time() -> None:
    [bare, half] = settle(rule("bare"), rule("half", primary_key=KEY))
    assert bare == AuthorizationRule("bare", (SEND,), "made 1", "made 2", T0, T0)
    assert half == AuthorizationRule("half", (SEND,), KEY, "made 3", T0, T0)


def test_a_rule_that_comes_back_without_keys_keeps_those_it_had() -> None:
    before = AuthorizationRule("k", (SEND,), KEY, OTHER, 1, 2)
    assert settle(rule("K"), previous=(before,)) == [
        # written in other letters: changed, and still the same rule
        AuthorizationRule("K", (SEND,), KEY, OTHER, 1, T0)
    ]
    assert settle(rule("k"), previous=(before,)) == [before]


def test_a_rule_that_changes_says_when() -> None:
    before = AuthorizationRule("k", (SEND,), KEY, OTHER, 1, 2)
    [rekeyed] = settle(rule("k", primary_key=OTHER), previous=(before,))
    assert rekeyed == AuthorizationRule("k", (SEND,), OTHER, OTHER, 1, T0)
    [widened] = settle(rule("k", SEND, LISTEN), previous=(before,))
    assert (widened.created_at, widened.modified_at) == (1, T0)


def test_a_rule_that_is_left_out_is_gone() -> None:
    before = AuthorizationRule("k", (SEND,), KEY, OTHER, 1, 2)
    assert [each.key_name for each in settle(rule("other"), previous=(before,))] == ["other"]


RULES = st.lists(
    st.builds(
        AuthorizationRule,
        st.text("abcXYZ-_.", min_size=1),
        st.lists(st.sampled_from(list(Right)), unique=True).map(tuple),
        st.sampled_from(["", KEY, OTHER]),
        st.sampled_from(["", KEY, OTHER]),
        st.integers(0, T0),
        st.integers(0, T0),
    )
).map(tuple)


@given(RULES)
def test_rules_survive_the_catalog(rules: tuple[AuthorizationRule, ...]) -> None:
    assert rules_from_json(json.loads(json.dumps(rules_to_json(rules)))) == rules
    description = QueueDescription(authorization_rules=rules)
    assert QueueDescription.from_json(json.loads(json.dumps(description.to_json()))) == description


GOOD = rule("k", primary_key=KEY).to_json()


@pytest.mark.parametrize(
    "values",
    [
        {},
        "rules",
        ["k"],
        [{}],
        [{**GOOD, "rights": ["send"]}],
        [{**GOOD, "rights": "Send"}],
        [{**GOOD, "created_at": True}],
        [{**GOOD, "key_name": 1}],
        [{**GOOD, "more": 1}],
    ],
)
def test_rules_in_the_catalog_that_nobody_wrote_are_refused(values: object) -> None:
    with pytest.raises(ValueError, match=r"authorization rule|right"):
        rules_from_json(values)


def test_rights_have_azures_names() -> None:
    assert [read_right(name) for name in ("Listen", "Send", "Manage")] == list(Right)
    for name in ("listen", "", "Write", None, 3):
        with pytest.raises(ValueError, match="one of Listen, Send, Manage"):
            read_right(name)


def test_rules_in_a_file() -> None:
    table = {"key_name": "s", "rights": ["Send"], "primary_key": KEY, "secondary_key": OTHER}
    assert read_rules([table, {"key_name": "l", "rights": ["Listen"]}]) == (
        AuthorizationRule("s", (SEND,), KEY, OTHER),
        AuthorizationRule("l", (LISTEN,)),
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({}, "must be a list of tables"),
        (["x"], "number 1 must be a table"),
        ([{}, {"name": "s"}], "number 2: there is no such key as 'name'"),
        ([{"rights": "Send"}], "number 1: 'rights' must be a list"),
        ([{"rights": ["Read"]}], "number 1: a right must be one of"),
        ([{"primary_key": 5}], "number 1: 'primary_key' must be text"),
    ],
)
def test_a_wrong_rule_in_a_file_is_named_by_its_place(value: object, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read_rules(value)
