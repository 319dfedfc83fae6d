"""An entity has fragments: which of them a message, a lock or a number is in."""

from __future__ import annotations

from uuid import UUID

import pytest

from postbus.model.description import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from postbus.namespace.entities import QueueEntity, SubscriptionEntity, TopicEntity
from postbus.namespace.rule_matcher import TopicRuleMatcher
from postbus.settings import Settings
from postbus.store.ports.catalog import EntityRecord, FragmentRecord, SubscriptionRecord

TWO = FragmentRecord(7, 0, 0), FragmentRecord(9, 1, 2)


def queue(*fragments: FragmentRecord) -> QueueEntity:
    record = EntityRecord("orders", "queue", QueueDescription().to_json(), 0, 0, fragments)
    return QueueEntity(record, Settings(), 0)


def topic(*fragments: FragmentRecord) -> TopicEntity:
    record = EntityRecord("news", "topic", TopicDescription().to_json(), 0, 0, fragments)
    return TopicEntity(record, Settings(), 0, TopicRuleMatcher(lambda: UUID(int=0)))


def token_of(fragment_id: int) -> bytes:
    return fragment_id.to_bytes(4, "big") + bytes(12)


def test_an_entity_has_all_fragments_of_its_record() -> None:
    orders = queue(*TWO)
    found = [(each.id, each.index, each.store, each.name) for each in orders.fragments]
    assert found == [(7, 0, 0, "orders"), (9, 1, 2, "orders")]
    for fragment in orders.fragments:
        assert fragment.meter is orders.meter
        assert fragment.policy == orders.policy()


def test_a_lock_token_and_a_number_name_their_fragment() -> None:
    orders = queue(*TWO)
    first, second = orders.fragments
    assert orders.fragment_of_token(token_of(9)) is second
    assert orders.fragment_of_number(1 << 48 | 5) is second
    assert orders.fragment_of_number(5) is first


@pytest.mark.parametrize("number", [-1, 2 << 48, (1 << 63) - 1])
def test_the_first_fragment_refuses_tokens_and_numbers_of_none(number: int) -> None:
    orders = queue(*TWO)
    assert orders.fragment_of_token(token_of(8)) is orders.fragments[0]
    assert orders.fragment_of_token(b"") is orders.fragments[0]
    assert orders.fragment_of_number(number) is orders.fragments[0]


def test_a_request_is_divided_by_fragments() -> None:
    orders = queue(*TWO)
    first, second = orders.fragments
    assert orders.by_token([token_of(9), token_of(7), token_of(9)]) == {
        second: [token_of(9), token_of(9)],
        first: [token_of(7)],
    }
    assert orders.by_number([1, 1 << 48 | 1, 2]) == {first: [1, 2], second: [1 << 48 | 1]}
    assert orders.by_number([]) == {}


def test_what_takes_one_fragment_does_not_take_the_first_of_two() -> None:
    assert queue(TWO[0]).only_fragment.id == TWO[0].id
    with pytest.raises(ValueError, match="too many"):
        queue(*TWO).only_fragment  # noqa: B018


def test_a_subscription_is_in_every_fragment_of_its_topic() -> None:
    news = topic(*TWO)
    described = SubscriptionDescription().to_json()
    record = SubscriptionRecord(news.name, 3, "all", described, 0, 0, ())
    everything = SubscriptionEntity(news, record, 0)
    news.add(everything)
    assert everything.fragments == news.fragments
    assert everything.top_level is news.top_level is news
    for fragment in news.fragments:
        assert fragment.matcher is news.matcher
        assert fragment.subscriptions == {3: (everything.path, everything.policy())}
        assert fragment.meters == {3: everything.meter}
    news.remove(everything)
    assert not any(each.subscriptions or each.meters for each in news.fragments)
