"""SQL text of filters and actions: compiled, evaluated, carried out on messages of all kinds."""

from __future__ import annotations

import random
import re
from contextlib import suppress
from uuid import UUID

from postbus.amqp.sections import scan
from postbus.broker.message import Message
from postbus.errors import ServiceBusError
from postbus.model.rule import RuleDescription, SqlAction, SqlFilter, TrueFilter
from postbus.model.values import DateTime, TimeSpan, TypedValue, ValueType
from postbus.namespace.message_view import MessageFacts, write_changes
from postbus.rules.expressions import system_value
from postbus.rules.grammar import KEYWORDS
from postbus.rules.matching import RuleSet
from postbus.rules.predicates import Predicate
from postbus.rules.rule import Rule, compile_rule
from postbus.rules.system_properties import SYSTEM_PROPERTIES
from postbus.rules.values import EvaluationFailed, Opaque
from tests.unit.rules.samples import Sample, new_id

_PARAMETERS = {
    "@p": TypedValue(ValueType.DATE_TIME, "2020-01-31T08:00:00Z"),
    "@q": TypedValue(ValueType.DURATION, "PT1M"),
    "@n": TypedValue(ValueType.DOUBLE, "NaN"),
}
_MESSAGES = (
    Sample(),
    Sample(
        {"a": 0, "b": "x%_", "c": True, "d": 2.5, "e": None, "f": "a" * 30_000},
        Label="omnibus",
        To="x",
        MessageId="m",
        SequenceNumber=2**63 - 1,
        SessionId="s",
    ),
    Sample(
        {
            "a": -(2**63),
            "b": DateTime(3_000_000_000_000_000_000),
            "c": TimeSpan(2**63 - 1),
            "d": float("inf"),
            "e": UUID(int=5),
            "f": Opaque([1]),
            "g": b"bytes",
        },
        PartitionKey="k",
    ),
)

WORDS = [
    *(word.encode() for word in sorted(KEYWORDS)),
    *(b"sys.", b"user.", b"sys.Label", b"sys.TimeToLive", b"newid()", b"property(", b"p('a')"),
    *(
        b"a",
        b"b",
        b"[f]",
        b'"g"',
        b"@p",
        b"@q",
        b"@n",
        b"'%a_'",
        b"''",
        b"1",
        b"0",
        b"2.5",
        b".5E3",
    ),
    *(b"9223372036854775807", b"9223372036854775808", b"=", b"<>", b"!=", b"<=", b">", b"+", b"-"),
    *(b"*", b"/", b"%", b"(", b")", b",", b";", b"\n", b"\xc3\xa9", b"\xc2\xb2"),
]
_TOKEN = re.compile(rb"\s+|\w+|'[^']*'|.", re.DOTALL)


def run_rules(data: bytes) -> None:
    """A text as a filter and as an action. What is taken says the same by every way of asking, and
    fails in no other way than the documented one."""
    text = data.decode(errors="replace")
    refused = 0
    for description in (
        RuleDescription("rule", SqlFilter(text, _PARAMETERS)),
        RuleDescription("rule", TrueFilter(), SqlAction(text, _PARAMETERS)),
    ):
        try:
            rule = compile_rule(description, new_id)
        except ServiceBusError:
            refused += 1
            if refused == 2:
                raise
            continue
        _evaluate(rule)


def _evaluate(rule: Rule) -> None:
    indexed = RuleSet()
    indexed.set_rules(1, [rule])
    for message in _MESSAGES:
        outcome: bool | str
        try:
            outcome = rule.selector.is_true(message)
        except EvaluationFailed as failure:
            outcome = str(failure)
        found = [str(match.failure) if match.failure else True for match in indexed.match(message)]
        assert found == ([outcome] if outcome else [])
        predicate = rule.selector
        if isinstance(predicate, Predicate):
            assert isinstance(outcome, bool) or predicate.can_fail, outcome
            with suppress(EvaluationFailed):
                assert not (outcome is True and predicate.is_false(message))
        if rule.action is not None:
            with suppress(EvaluationFailed):
                changes = rule.action.apply(message, 65_536)
                assert changes.user["rulename"] == ("RuleName", "rule")


_READ_ALL = [system_value(name).evaluate for name in SYSTEM_PROPERTIES]
_REWRITE = compile_rule(
    RuleDescription(
        "rule",
        TrueFilter(),
        SqlAction(
            "SET a = a + a; SET b = -b; SET c = d; SET d = '5'; SET text = 5; REMOVE e; SET f = 1;"
            "SET sys.To = text; SET sys.Label = sys.MessageId; SET sys.TimeToLive = '00:01:00';"
            "SET sys.ViaPartitionKey = sys.CorrelationId"
        ),
    ),
    new_id,
).action


def rewrite(message: Message, raw: bytes) -> tuple[bytes, ...]:
    """Read all of a message as rules do, and write the copy that an action makes of it; or the
    message, where the action fails."""
    facts = MessageFacts(message, raw)
    for read in _READ_ALL:
        read(facts)
    assert _REWRITE is not None
    try:
        made = write_changes(message, raw, _REWRITE.apply(facts, 65_536), facts.given)
    except EvaluationFailed:
        return (raw,)
    sections = scan(raw)
    annotations, properties = made.annotations_section, made.properties_section
    assert annotations is not None
    assert properties is not None
    assert made.application_section is not None
    return (
        raw[: sections.message_annotations],
        annotations,
        properties,
        made.application_section,
        raw[sections.body :],
    )


def mutate_tokens(data: bytes, chance: random.Random) -> bytes:
    """Words left out, doubled, exchanged: more of what comes out is a filter again."""
    tokens = _TOKEN.findall(data)[:400] or [b"a"]
    for _ in range(chance.choice((1, 1, 2, 4))):
        place, other = chance.randrange(len(tokens)), chance.randrange(len(tokens))
        match chance.randrange(5):
            case 0:
                tokens[place : place + 1] = []
                tokens = tokens or [b"a"]
            case 1:
                tokens[place], tokens[other] = tokens[other], tokens[place]
            case 2:
                tokens[place:place] = tokens[other : other + chance.choice((1, 3, 8))]
            case 3:
                tokens[place] = chance.choice(WORDS)
            case _:
                tokens[place:place] = [b" ", chance.choice(WORDS), b" "]
    return b"".join(tokens)
