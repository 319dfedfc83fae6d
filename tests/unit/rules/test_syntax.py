"""What is a filter or an action, and in which words everything else is refused."""

from __future__ import annotations

import pytest

from postbus.errors import InvalidArgument
from postbus.model.rule import RuleDescription, SqlAction, SqlFilter, TrueFilter
from postbus.model.values import TypedValue, ValueType
from postbus.rules.grammar import KEYWORDS
from postbus.rules.rule import compile_rule
from tests.unit.rules.samples import Sample, new_id, outcome, predicate, rule

OPENING = "There was an error parsing the SQL expression.\n"


def refusal_of(sql: str, action: bool = False) -> str:
    description = (
        RuleDescription("rule", TrueFilter(), SqlAction(sql))
        if action
        else RuleDescription("rule", SqlFilter(sql))
    )
    with pytest.raises(InvalidArgument) as refused:
        compile_rule(description, new_id)
    return str(refused.value)


def test_a_syntax_error_has_azures_words_and_its_place() -> None:
    # The very text that Azure gave for this action (semantics A §1.5).
    assert refusal_of("EventType = Other", action=True) == (
        "There was an error parsing the SQL expression.\n"
        "[Token line=1, column=0, Token in error= EventType, Additional details= "
        "syntax error, unexpected IDENTIFIER, expecting SET, or REMOVE]"
    )


@pytest.mark.parametrize(
    ("sql", "line", "column", "token", "details"),
    [
        ("color", 1, 5, "", "syntax error, unexpected EOF"),
        ("color =", 1, 7, "", "syntax error, unexpected EOF"),
        ("color IS", 1, 8, "", "syntax error, unexpected EOF, expecting NULL, or NOT"),
        ("(color = 1", 1, 10, "", "syntax error, unexpected EOF, expecting ')'"),
        ("a = 1\n  AND b", 2, 7, "", "syntax error, unexpected EOF"),
        ("a = 1\n  AND AND", 2, 6, "AND", "syntax error, unexpected AND"),
        ("SET a = 1", 1, 0, "SET", "syntax error, unexpected SET"),
        ("a == 1", 1, 3, "=", "syntax error, unexpected '='"),
        ("a # 1", 1, 2, "#", "syntax error, unexpected character"),
        ("a = 'open", 1, 4, "'", "syntax error, unexpected character"),
        ("a² = 1", 1, 0, "a²", "syntax error, unexpected character"),
        ("_a = 1", 1, 0, "_", "syntax error, unexpected character"),
        ("other.a = 1", 1, 0, "other", "there is no scope 'other', only 'sys' and 'user'"),
        ("1 = sys.Body", 1, 8, "Body", "there is no system property 'Body'"),
        ("a = lower(b)", 1, 4, "lower", "there is no function 'lower'"),
        ("a = newid(1)", 1, 4, "newid", "wrong number of arguments of the function 'newid'"),
        ("a = p()", 1, 4, "p", "wrong number of arguments of the function 'p'"),
        ("a = @b", 1, 4, "@b", "the parameter '@b' has no value"),
        (
            "a = 9223372036854775808",
            1,
            4,
            "9223372036854775808",
            "the number is out of the range of Int64",
        ),
        ("a = 1E999", 1, 4, "1E999", "the number is out of the range of Double"),
    ],
)
def test_a_refused_filter_names_the_token(
    sql: str, line: int, column: int, token: str, details: str
) -> None:
    assert refusal_of(sql) == (
        f"{OPENING}[Token line={line}, column={column}, Token in error= {token}, "
        f"Additional details= {details}]"
    )


@pytest.mark.parametrize(
    ("sql", "details"),
    [
        ("SET a = 1,", "unexpected EOF, expecting SET, or REMOVE"),
        (";", "unexpected ';', expecting SET, or REMOVE"),
        ("SET a = 1;; SET b = 2", "unexpected ';', expecting SET, or REMOVE"),
        ("REMOVE 'a'", "unexpected STRING, expecting IDENTIFIER"),
        ("SET a = 1 AND b = 2", "unexpected AND"),
        ("SET sys.SequenceNumber = 1", "the system property 'SequenceNumber' cannot be changed"),
        ("REMOVE sys.EnqueuedTimeUtc", "the system property 'EnqueuedTimeUtc' cannot be changed"),
        ("SET sys.ForcePersistence = TRUE", "'ForcePersistence' cannot be changed"),
        ("SET sys.Nothing = 1", "there is no system property 'Nothing'"),
    ],
)
def test_a_refused_action_says_why(sql: str, details: str) -> None:
    assert details in refusal_of(sql, action=True)


@pytest.mark.parametrize(
    "sql",
    [
        "NOT a",
        "a AND b",
        "TRUE",
        "a = 1 = 2",
        "a IN ()",
        "a BETWEEN 1 AND 2",
        "(a) IS NULL",
        "1 IS NULL",
        "'a' IS NULL",
        "EXISTS a",
        "EXISTS('a')",
        "EXISTS(a + b)",
        "a LIKE",
        "a NOT = 1",
        "a = N'text'",
        "a = 0x10",
        "a = \"b\" \"c\"",
        "[] = 1",
        "\"\" = 1",
        "sys.[] = 1",
        "a.b.c = 1",
        "[sys].Label = 'a'",
        "a = 1;",
        "not = 1",
    ],
)  # fmt: skip
def test_what_the_grammar_does_not_know_is_refused(sql: str) -> None:
    assert refusal_of(sql).startswith(OPENING)


@pytest.mark.parametrize("word", sorted(KEYWORDS))
def test_a_property_with_the_name_of_a_keyword_is_written_in_brackets(word: str) -> None:
    facts = Sample({word: 1})
    if word in ("TRUE", "FALSE", "NULL"):
        assert outcome(f"{word.lower()} = 1", facts) is None
    else:
        assert refusal_of(f"{word.lower()} = 1").startswith(OPENING)
    assert outcome(f"[{word}] = 1", facts) is True
    assert outcome(f'user."{word}" = 1', facts) is True


@pytest.mark.parametrize(
    "sql",
    [
        "color='red'and size=10",
        "Color = 'red' aNd SIZE = 10",
        "\tcolor\n=\r\n'red'",
        "user.color='red'",
        "USER . color = 'red'",
        "[color]='red'",
        "\"color\"='red'",
        "(((color)))='red'",
        "(((color='red')))",
        "NOT NOT color = 'red'",
        "p('color') = 'red'",
        "Property('co' + 'lor') = 'red'",
        "color IN('red')",
        "color = 'red' AND (size = 10 OR size = 11)",
    ],
)
def test_the_same_can_be_written_in_many_ways(sql: str) -> None:
    assert outcome(sql, Sample({"color": "red", "size": 10})) is True


def test_names_have_letters_of_any_script() -> None:
    assert outcome("größe_2 = 1", Sample({"Größe_2": 1})) is True
    assert outcome("色 = 1", Sample({"色": 1})) is True


def test_brackets_and_quotes_inside_a_name_are_doubled() -> None:
    facts = Sample({"a]b": 1, 'c"d': 2, "http://host/x.y": 3})
    assert outcome("[a]]b] = 1", facts) is True
    assert outcome('"c""d" = 2', facts) is True
    assert outcome('"http://host/x.y" = 3', facts) is True


def test_functions_and_scopes_are_ordinary_names_elsewhere() -> None:
    facts = Sample({"p": 1, "property": 2, "newid": 3, "sys": 4, "user": 5})
    sql = "p = 1 AND property = 2 AND newid = 3 AND sys = 4 AND user = 5"
    assert outcome(sql, facts) is True


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("1894", 1_894),
        ("-9223372036854775808", -(2**63)),
        ("9223372036854775807", 2**63 - 1),
        ("000000000000000000000000000001", 1),
        ("2.0", 2.0),
        ("2.", 2.0),
        (".5", 0.5),
        ("101.5E5", 10_150_000.0),
        ("0.5e-2", 0.005),
        ("1E3", 1_000.0),
        ("'it''s'", "it's"),
        ("''", ""),
        ("true", True),
        ("FALSE", False),
    ],
)
def test_literals(literal: str, value: object) -> None:
    facts = Sample({"a": value})  # type: ignore[dict-item]
    assert outcome(f"a = {literal}", facts) is True


def test_a_parameter_is_found_with_and_without_its_sign_in_any_case() -> None:
    five = TypedValue(ValueType.INT, "5")
    for name in ("limit", "@limit", "@LIMIT"):
        compiled = predicate("size = @Limit", **{name: five})
        assert compiled.is_true(Sample({"size": 5}))


def test_lengths_are_bounded() -> None:
    fitting = "a = '" + "x" * (1_024 - 6) + "'"
    predicate(fitting)
    assert "1025 characters; 1024 are allowed" in refusal_of(fitting + " ")
    assert "The SQL expression of the filter is empty." in refusal_of("  ")
    assert "The SQL expression of the action is empty." in refusal_of("", action=True)


def test_an_action_has_at_most_32_statements() -> None:
    rule(action="REMOVE a " * 32)
    assert "33 statements; 32 are allowed" in refusal_of("REMOVE a " * 33, action=True)


@pytest.mark.parametrize(
    "sql",
    [
        "a" + " + a" * 240 + " = 1",
        "-" * 1_000 + "a = 1",
        "a = " + "p(" * 300 + "a" + ")" * 300,
        "(a<1 OR " * 110 + "a=1" + ")" * 110,
    ],
)
def test_what_is_nested_too_deep_is_refused(sql: str) -> None:
    assert "100 levels are allowed" in refusal_of(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "(" * 500 + "a = 1" + ")" * 500,
        "a = " + "(" * 500 + "1" + ")" * 500,
        "NOT " * 250 + "a = 1",
        "a = 1" + " OR a = 1" * 110,
        "a = 1" + " AND a = 1" * 100,
        "a = 1" + " + 1 - 1" * 120,
        "a IN (" + "1, " * 300 + "1)",
    ],
)
def test_what_is_only_long_is_not(sql: str) -> None:
    assert outcome(sql, Sample({"a": 1})) is True
