"""A namespace written to a file and read again is the same, as far as the format reaches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postbus.config.content import Content, Queue, Subscription, Topic
from postbus.config.emulator import write_emulator
from postbus.config.toml import write_toml
from postbus.model.authorization import AuthorizationRule, Right
from postbus.model.description import (
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from postbus.model.limits import SIZES_MB
from postbus.model.rule import (
    SYSTEM_FIELDS,
    CorrelationFilter,
    FalseFilter,
    Filter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from postbus.model.times import format_iso
from postbus.model.values import TypedValue, ValueType
from postbus.ops.config_file import load_config

# Everything that XML can hold, control characters that TOML must escape among it.
text = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff")
    | st.sampled_from("\t\n\r\x7f\"'\\{}[]=#"),
    max_size=12,
)
names = st.from_regex(r"[A-Za-z0-9_\-]{1,8}", fullmatch=True)
rule_names = st.sampled_from(["$Default", "r", "a.b", 'quo"te', "back\\slash", "ü", "a b"])
keys = st.from_regex(r"[A-Za-z0-9+/]{43}=", fullmatch=True)
numbers = st.integers(-(1 << 63), (1 << 63) - 1)
typed = (
    st.builds(TypedValue, st.just(ValueType.STRING), text)
    | st.builds(TypedValue, st.just(ValueType.LONG), numbers.map(str))
    | st.builds(TypedValue, st.just(ValueType.INT), st.sampled_from(["7", "+7", "007", "-1"]))
    | st.builds(TypedValue, st.just(ValueType.BOOLEAN), st.sampled_from(["true", "1", "FALSE"]))
    | st.builds(
        TypedValue,
        st.just(ValueType.DOUBLE),
        st.floats(allow_nan=False, allow_infinity=False).map(repr)
        | st.sampled_from(["INF", "-INF", "NaN", "1.50", ".5", "1e3"]),
    )
    | st.just(TypedValue(ValueType.DATE_TIME, "2020-01-31T08:00:00Z"))
    | st.just(TypedValue(ValueType.DURATION, "PT1M"))
)
values = st.dictionaries(text.filter(bool), typed, max_size=3)
filters: st.SearchStrategy[Filter] = (
    st.just(TrueFilter())
    | st.just(FalseFilter())
    | st.builds(SqlFilter, st.sampled_from(["a = 1", "1=1", "b LIKE '%\"x'"]))
    | st.builds(
        SqlFilter, st.just("a > @p"), st.builds(dict, st.tuples(st.tuples(st.just("@p"), typed)))
    )
    | st.builds(
        lambda system, properties: CorrelationFilter(**system, properties=properties),
        st.dictionaries(st.sampled_from(SYSTEM_FIELDS), text, max_size=3),
        values,
    ).filter(lambda chosen: bool(chosen.properties or dict(chosen.system())))
)
actions = st.none() | st.builds(SqlAction, st.sampled_from(["SET a = 1", "REMOVE b; SET c = 'x'"]))
rules = st.dictionaries(rule_names, st.tuples(filters, actions), max_size=3).map(
    lambda found: tuple(RuleDescription(name, *found[name]) for name in sorted(found))
)
durations = st.integers(1_000, 10**10)
shared = {
    "default_ttl_ms": st.none() | durations,
    "auto_delete_ms": st.none() | st.integers(300_000, 10**10),
    "status": st.sampled_from(EntityStatus),
    "user_metadata": st.none() | text,
    "enable_batched_operations": st.booleans(),
}
sized = {
    "max_size_mb": st.sampled_from(SIZES_MB),
    "max_message_size_kb": st.sampled_from([256, 1_024, 102_400]),
    "requires_duplicate_detection": st.booleans(),
    "duplicate_window_ms": st.integers(20_000, 600_000),
    "enable_express": st.booleans(),
    "support_ordering": st.booleans(),
    "enable_partitioning": st.booleans(),
    "authorization_rules": st.lists(
        st.builds(
            AuthorizationRule, names, st.sampled_from([(Right.SEND,), (Right.LISTEN,)]), keys, keys
        ),
        max_size=2,
        unique_by=lambda rule: rule.key_name.lower(),
    ).map(tuple),
}
received = {
    "lock_duration_ms": st.integers(5_000, 300_000),
    "dead_lettering_on_expiration": st.booleans(),
    "max_delivery_count": st.integers(1, 1_000),
    "forward_to": st.none() | names,
    "forward_dead_letters_to": st.none() | names,
}


def exact(description: QueueDescription) -> QueueDescription:
    """With a time to live that milliseconds cannot hold."""
    if description.default_ttl_ms is None:
        return description
    return replace(
        description, default_ttl_sent=format_iso(description.default_ttl_ms * 10_000 + 7)
    )


def legal(description: QueueDescription | TopicDescription) -> bool:
    forwards = isinstance(description, QueueDescription) and any(
        (description.forward_to, description.forward_dead_letters_to)
    )
    return not (
        (description.enable_express and description.requires_duplicate_detection)
        or (description.enable_partitioning and forwards)
    )


queue_descriptions = st.builds(QueueDescription, **shared, **sized, **received).filter(legal)
subscriptions = st.builds(
    Subscription,
    names,
    st.builds(
        SubscriptionDescription,
        **shared,
        **received,
        dead_lettering_on_filter_errors=st.booleans(),
    ),
    rules,
)


def by_name(found: list[Queue | Topic]) -> Content:
    ordered = sorted(found, key=lambda each: each.name)
    return Content(
        tuple(each for each in ordered if isinstance(each, Queue)),
        tuple(each for each in ordered if isinstance(each, Topic)),
    )


contents = st.lists(
    st.builds(Queue, names, queue_descriptions | queue_descriptions.map(exact))
    | st.builds(
        Topic,
        names,
        st.builds(TopicDescription, **shared, **sized).filter(legal),
        st.lists(subscriptions, max_size=2, unique_by=lambda each: each.name.casefold()).map(tuple),
    ),
    max_size=4,
    unique_by=lambda each: each.name.casefold(),
).map(by_name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


def read(folder: Path, name: str, written: str) -> Content:
    path = folder / name
    path.write_text(written, "utf-8")
    config = load_config(path)
    assert config.name == "shop"
    return config.content


def with_default_rules(content: Content) -> Content:
    """A file leaves out the one rule that every new subscription has."""
    return replace(
        content,
        topics=tuple(
            replace(
                topic,
                subscriptions=tuple(
                    replace(each, rules=(RuleDescription(),)) if each.rules is None else each
                    for each in topic.subscriptions
                ),
            )
            for topic in content.topics
        ),
    )


@given(contents)
def test_our_own_file_holds_all_of_a_namespace(folder: Path, content: Content) -> None:
    written = write_toml("shop", content, keys=True)
    again = with_default_rules(read(folder, "round.toml", written))
    assert again == content
    assert write_toml("shop", again, keys=True) == written


@given(contents)
def test_without_keys_it_holds_all_but_the_keys(folder: Path, content: Content) -> None:
    written = write_toml("shop", content, keys=False)
    assert "primary_key" not in written
    again = with_default_rules(read(folder, "keyless.toml", written))
    assert write_toml("shop", again, keys=False) == written


@given(contents)
@example(
    Content(
        topics=(
            Topic(
                "t",
                TopicDescription(),
                (
                    Subscription(
                        "s",
                        SubscriptionDescription(),
                        (RuleDescription("$Default", SqlFilter("1=1")),),
                    ),
                ),
            ),
        )
    )
)
def test_the_emulators_file_is_the_same_when_it_was_read_and_written_again(
    folder: Path, content: Content
) -> None:
    written, _ = write_emulator("shop", content)
    again = with_default_rules(read(folder, "round.json", written))
    twice, lost = write_emulator("shop", again)
    assert twice == written
    assert lost == []
