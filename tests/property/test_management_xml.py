"""Descriptions and rules as XML: what is written is read back the same, by us and by the SDK."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from xml.etree import ElementTree

from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    RuleProperties,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)
from azure.servicebus.management._generated.models import (
    CreateRuleBody,
    CreateRuleBodyContent,
    RuleDescriptionEntry,
)
from azure.servicebus.management._utils import (
    deserialize_rule_key_values,
    serialize_rule_key_values,
)
from hypothesis import given
from hypothesis import strategies as st

from postbus.http.atom import Entry, Site, entry_document, read_content
from postbus.http.description_xml import description_xml, form_of, read_values
from postbus.http.rule_xml import read_rule, rule_xml
from postbus.model.description import (
    Description,
    EntityStatus,
    QueueCounts,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from postbus.model.fields import QUEUE, SUBSCRIPTION, TOPIC, describe
from postbus.model.rule import (
    SYSTEM_FIELDS,
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from postbus.model.values import DateTime, TimeSpan, TypedValue, ValueType

SITE = Site("http://localhost:5300", "ns", "2024-05")
NOW = 1_700_000_000_000

TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\ufffe\uffff", min_codepoint=32),
    max_size=12,
) | st.sampled_from([" a ", "\t\r\n", "]]>", "<&\"'>", ""])
NAMED = TEXT.filter(lambda text: bool(text.strip()))


def document(content: str) -> bytes:
    return entry_document(Entry("x", "x", NOW, NOW, content), SITE).encode()


SHARED: dict[str, Any] = {
    "default_ttl_ms": st.none() | st.integers(1_000, 10**12),
    "auto_delete_ms": st.none() | st.integers(300_000, 10**12),
    "status": st.sampled_from(EntityStatus),
    "user_metadata": st.none() | TEXT,
    "enable_batched_operations": st.booleans(),
}
SENT_TO: dict[str, Any] = {
    "max_size_mb": st.sampled_from([1_024, 5_120]),
    "requires_duplicate_detection": st.booleans(),
    "duplicate_window_ms": st.integers(20_000, 7 * 86_400_000),
    "enable_express": st.booleans(),
    "support_ordering": st.booleans(),
    "enable_partitioning": st.booleans(),
}
RECEIVED_FROM: dict[str, Any] = {
    "lock_duration_ms": st.integers(5_000, 300_000),
    "dead_lettering_on_expiration": st.booleans(),
    "max_delivery_count": st.integers(1, 2**31 - 1),
    "forward_to": st.none() | st.sampled_from(["orders", "eu/Orders.1"]),
    "forward_dead_letters_to": st.none() | st.just("errors"),
}


def legal(description: QueueDescription | TopicDescription) -> bool:
    forwards = isinstance(description, QueueDescription) and any(
        (description.forward_to, description.forward_dead_letters_to)
    )
    return not (
        (description.enable_express and description.requires_duplicate_detection)
        or (description.enable_partitioning and forwards)
    )


DESCRIPTIONS: st.SearchStrategy[Description] = (
    st.builds(QueueDescription, **SHARED, **SENT_TO, **RECEIVED_FROM).filter(legal)
    | st.builds(TopicDescription, **SHARED, **SENT_TO).filter(legal)
    | st.builds(
        SubscriptionDescription,
        **SHARED,
        **RECEIVED_FROM,
        dead_lettering_on_filter_errors=st.booleans(),
    )
)
FORMS = {
    QueueDescription: QUEUE,
    TopicDescription: TOPIC,
    SubscriptionDescription: SUBSCRIPTION,
}


@given(DESCRIPTIONS)
def test_a_description_that_is_given_back_means_the_same(description: Description) -> None:
    form = FORMS[type(description)]
    told = {name: QueueCounts() if name == "CountDetails" else 7 for name in form.told}
    content = read_content(document(description_xml(form, description, told, SITE)))
    assert form_of(content, *FORMS.values()) is form
    read = describe(form, read_values(form, content), type(description)())
    assert read.meaning == description


MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)).map(  # noqa: DTZ001
    lambda moment: moment.replace(microsecond=0)
)
SPANS = st.integers(-(10**9), 10**9).map(lambda seconds: timedelta(seconds=seconds))
LITERALS = (
    NAMED
    # The SDK calls every smaller number an int too, which no reader of XML takes it for.
    | st.integers(-(2**31), 2**63 - 1)
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | MOMENTS
    | SPANS
)
PAIRS = st.dictionaries(NAMED, LITERALS, max_size=4)
SDK_FILTERS = (
    st.builds(SqlRuleFilter, NAMED, PAIRS)
    | st.builds(TrueRuleFilter)
    | st.builds(FalseRuleFilter)
    | st.builds(
        CorrelationRuleFilter, **{name: st.none() | NAMED for name in SYSTEM_FIELDS},
        properties=PAIRS,
    ).filter(lambda chosen: chosen.properties or any(vars(chosen).values()))
)  # fmt: skip


def sent_by_the_sdk(rule: RuleProperties) -> bytes:
    """The body of a request, made as the administration client makes it."""
    content = CreateRuleBodyContent(rule_description=rule._to_internal_entity())  # type: ignore[no-untyped-call]
    body = CreateRuleBody(content=content).serialize(is_xml=True)  # type: ignore[no-untyped-call]
    serialize_rule_key_values(body, rule)
    return ElementTree.tostring(body, encoding="utf-8")


def read_by_the_sdk(body: bytes) -> RuleProperties:
    root = ElementTree.fromstring(body)
    entry = RuleDescriptionEntry.deserialize(root)
    rule = RuleProperties._from_internal_entity("rule", entry.content.rule_description)
    deserialize_rule_key_values(root, rule)
    return rule


@given(SDK_FILTERS, st.none() | st.builds(SqlRuleAction, NAMED, PAIRS))
def test_the_sdk_reads_back_the_rule_it_sent(chosen: Any, action: Any) -> None:
    sent = RuleProperties("rule", filter=chosen, action=action, created_at_utc=None)
    rule = read_rule(read_content(sent_by_the_sdk(sent)), "rule", NOW)
    for stored in (True, False):
        read = read_by_the_sdk(document(rule_xml(rule, stored=stored)))
        assert type(read.filter) is type(chosen)
        if not isinstance(chosen, FalseRuleFilter):  # "1>1" here, "1=0" in Azure
            assert said(read.filter) == said(chosen)
        assert said(read.action) == said(action)


def said(part: Any) -> dict[str, Any]:
    """What a filter or an action says, whether it has an empty dictionary or none."""
    values = {} if part is None else dict(vars(part))
    values.pop("requires_preprocessing", None)
    return {name: value for name, value in values.items() if value}


def typed(value: Any) -> TypedValue:
    match value:
        case bool():
            return TypedValue(ValueType.BOOLEAN, str(value).lower())
        case int():
            return TypedValue(ValueType.LONG, str(value))
        case float():
            return TypedValue(ValueType.DOUBLE, str(value))
        case DateTime():
            return TypedValue(ValueType.DATE_TIME, str(value))
        case TimeSpan():
            return TypedValue(ValueType.DURATION, f"PT{value.ticks}S")
    return TypedValue(ValueType.STRING, value)


TYPED = st.dictionaries(
    NAMED,
    (
        TEXT
        | st.integers(-(2**63), 2**63 - 1)
        | st.booleans()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.integers(0, 3_155_378_975_999_999_999).map(DateTime)
        | st.integers(0, 10**6).map(TimeSpan)
    ).map(typed),
    max_size=4,
)
FILTERS = (
    st.builds(SqlFilter, NAMED, TYPED)
    | st.just(TrueFilter())
    | st.just(FalseFilter())
    | st.builds(
        CorrelationFilter, **{name: st.none() | TEXT for name in SYSTEM_FIELDS}, properties=TYPED
    ).filter(lambda chosen: bool(chosen.properties or list(chosen.system())))
)
RULES = st.builds(
    RuleDescription,
    st.sampled_from(["$Default", "a b?", "ä<&>"]),
    FILTERS,
    st.none() | st.builds(SqlAction, NAMED, TYPED),
    st.just(NOW),
)


@given(RULES, st.booleans())
def test_a_rule_that_is_given_back_means_the_same(rule: RuleDescription, stored: bool) -> None:
    content = read_content(document(rule_xml(rule, stored=stored)))
    assert read_rule(content, rule.name, NOW) == rule
    assert read_rule(content, None, NOW) == rule
