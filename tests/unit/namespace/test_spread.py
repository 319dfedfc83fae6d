"""Which fragment a send goes to, and which one it goes to when that refuses it."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from postbus.broker.message import Message
from postbus.broker.policy import Policy
from postbus.errors import (
    EntityDisabled,
    InternalError,
    InvalidOperation,
    MessageSizeExceeded,
    OutcomeUnknown,
    QuotaExceeded,
    ServiceBusError,
    StoreFailed,
    StoreFull,
    StoreUnavailable,
)
from postbus.model.partitioning import FRAGMENTS, fragment_of
from postbus.namespace.spread import Spread
from postbus.runtime.loaded_fragment import LoadedFragment


def fragments(stores: int = 1) -> list[LoadedFragment]:
    policy = Policy(size_bytes_max=100)
    return [LoadedFragment(1 + n, n, n % stores, "orders", policy) for n in range(FRAGMENTS)]


def message(
    session_id: str | None = None, partition_key: str | None = None, message_id: str = "m"
) -> Message:
    made = Message(b"x", message_id, session_id)
    made.partition_key = partition_key
    return made


def fill(fragment: Any, size: int = 100) -> None:
    fragment.engine = SimpleNamespace(ledger=SimpleNamespace(size_bytes=size))


def test_r_part_14_sends_without_a_key_are_dealt_exactly_evenly() -> None:
    """R-PART-14."""
    spread = Spread(fragments(), False)
    dealt = Counter(spread.choose(None).index for _ in range(16_000))
    assert dealt == dict.fromkeys(range(FRAGMENTS), 1_000)


@pytest.mark.interpreted_only
def test_r_part_05_a_key_chooses_one_fragment_whatever_state_that_is_in() -> None:
    """R-PART-05."""
    made = fragments()
    fill(made[fragment_of("a")])
    spread = Spread(made, False)
    assert [spread.choose("a").index for _ in range(3)] == [fragment_of("a")] * 3
    # A send with a key does not use up a turn.
    assert spread.choose(None).index == 0


@pytest.mark.interpreted_only
def test_r_part_10_full_fragments_are_passed_over_until_all_are_full() -> None:
    """R-PART-10."""
    made = fragments()
    spread = Spread(made, False)
    for fragment in made[1:]:
        fill(fragment)
    assert {spread.choose(None).index for _ in range(20)} == {0}
    fill(made[5], 99)
    assert {spread.choose(None).index for _ in range(20)} == {0, 5}
    fill(made[0])
    fill(made[5])
    assert isinstance(spread.choose(None), LoadedFragment), "an engine says that it is full"


@pytest.mark.parametrize("error", [QuotaExceeded("full"), InternalError("cannot be read")])
def test_a_send_that_was_refused_for_certain_is_tried_in_each_other_fragment_once(
    error: ServiceBusError,
) -> None:
    spread = Spread(fragments(), False)
    tried, asked = 0, []
    fragment: LoadedFragment | None = spread.choose(None)
    while fragment is not None:
        asked.append(fragment.index)
        tried |= 1 << fragment.index
        fragment = spread.choose_again(fragment, error, tried)
    assert asked == list(range(FRAGMENTS))


@pytest.mark.parametrize(
    "error",
    [
        OutcomeUnknown("the disk did not answer"),
        StoreFailed("the sync failed"),
        MessageSizeExceeded("too large"),
        EntityDisabled("orders"),
        InvalidOperation("no"),
    ],
)
def test_a_send_that_may_be_stored_or_is_refused_everywhere_is_not_tried_again(
    error: ServiceBusError,
) -> None:
    made = fragments(stores=4)
    assert Spread(made, False).choose_again(made[3], error, 1 << 3) is None


@pytest.mark.parametrize("error", [StoreUnavailable("no"), StoreFull("no room")])
def test_a_store_that_is_out_is_out_for_all_its_fragments(error: ServiceBusError) -> None:
    made = fragments(stores=2)
    other = Spread(made, False).choose_again(made[3], error, 1 << 3)
    assert other is not None and other.store != made[3].store
    alone = fragments()
    assert Spread(alone, False).choose_again(alone[3], error, 1 << 3) is None


@pytest.mark.parametrize(
    ("finds_duplicates", "messages", "key"),
    [
        (False, [message("s"), message("s", "s")], "s"),
        (False, [message(None, "p"), message(None, "p")], "p"),
        (False, [message(message_id="1"), message(message_id="2")], None),
        (False, [message(None, ""), message()], None),
        (True, [message(message_id="1")], "1"),
        (True, [message(None, "p", "1"), message(None, "p", "2")], "p"),
        (True, [message(message_id="1"), message(message_id="1")], "1"),
    ],
)
def test_messages_that_are_stored_together_have_one_key(
    finds_duplicates: bool, messages: list[Message], key: str | None
) -> None:
    assert Spread(fragments(), finds_duplicates).key_of(messages) == key


@pytest.mark.parametrize(
    ("finds_duplicates", "messages", "text"),
    [
        (False, [message("s"), message("t")], "distinct SessionId or PartitionKey is not"),
        (False, [message("s"), message()], "distinct SessionId or PartitionKey is not"),
        (False, [message(), message(None, "p")], "distinct SessionId or PartitionKey is not"),
        (True, [message(message_id="1"), message(message_id="2")], "duplicate detection enabled"),
    ],
)
def test_messages_with_several_keys_are_not_stored_together(
    finds_duplicates: bool, messages: list[Message], text: str
) -> None:
    with pytest.raises(InvalidOperation, match=text):
        Spread(fragments(), finds_duplicates).key_of(messages)
