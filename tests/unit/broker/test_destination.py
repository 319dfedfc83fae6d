"""Forwarding to a partitioned entity: the key of a message chooses the fragment (R-PART-19)."""

from __future__ import annotations

import pytest

from postbus.broker.destination import Destination
from postbus.broker.message import OUTBOX, Message, decode_details, encode_details
from postbus.broker.outbox import destination_of
from postbus.broker.policy import Policy
from postbus.errors import InvalidArgument
from postbus.model.partitioning import FRAGMENTS, fragment_of
from postbus.store.memory.store import MemoryStore
from tests.support.topics import Place

FRAGMENT_IDS = tuple(range(20, 20 + FRAGMENTS))


def keyed(message_id: str, key: str | None, session_id: str | None = None) -> Message:
    message = Message(b"body", message_id, session_id)
    message.partition_key = key
    return message


def source(destination: Destination) -> Place:
    return Place(MemoryStore(), 1, Policy(forward_to=destination))


def aims(place: Place, *messages: Message) -> list[int]:
    place.turn(lambda: place.engine.send(list(messages), place.now))
    return [destination_of(each) for each in place.rows(lane=OUTBOX)]


def test_r_part_19_a_session_id_or_a_partition_key_chooses_the_fragment() -> None:
    """R-PART-19."""
    place = source(Destination(FRAGMENT_IDS))
    found = aims(place, keyed("a", "k"), keyed("b", None, "k"), keyed("c", "k"))
    assert found == [FRAGMENT_IDS[fragment_of("k")]] * 3


def test_messages_without_a_key_take_turns_at_all_fragments() -> None:
    place = source(Destination(FRAGMENT_IDS))
    found = aims(place, *(keyed(str(n), None) for n in range(2 * FRAGMENTS)))
    assert sorted(found) == sorted(2 * FRAGMENT_IDS)


def test_an_id_chooses_the_fragment_where_duplicates_are_found() -> None:
    place = source(Destination(FRAGMENT_IDS, finds_duplicates=True))
    assert aims(place, keyed("x", None), keyed("x", "k")) == [
        FRAGMENT_IDS[fragment_of("x")],
        FRAGMENT_IDS[fragment_of("k")],
    ]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_the_key_of_a_message_survives_a_crash_and_decides_later(checkpoint: bool) -> None:
    """A queue that begins to forward sends off what it held."""
    place = Place(MemoryStore(), 1, Policy())
    place.turn(lambda: place.engine.send([keyed("a", "k"), keyed("b", None)], place.now))
    place.commit(checkpoint=checkpoint)
    place.crash()
    assert [each.partition_key for each in place.rows()] == ["k", None]
    place.update(Policy(forward_to=Destination(FRAGMENT_IDS)))
    place.divert()
    [first, _] = place.rows(lane=OUTBOX)
    assert destination_of(first) == FRAGMENT_IDS[fragment_of("k")]


def test_the_key_goes_along_with_a_forwarded_message() -> None:
    store = MemoryStore()
    start, end = Place(store, 1, Policy(forward_to=Destination((2,)))), Place(store, 2)
    start.turn(lambda: start.engine.send([keyed("a", "k")], start.now))
    start.ship_to(end)
    assert [each.partition_key for each in end.rows()] == ["k"]


def test_a_dead_letter_goes_where_its_key_says() -> None:
    place = Place(
        MemoryStore(), 1, Policy(forward_dead_letters_to=Destination(FRAGMENT_IDS), lock_ms=5_000)
    )
    place.turn(lambda: place.engine.send([keyed("a", "k")], place.now))
    message = place.receive()
    assert message is not None and message.token is not None
    place.dead_letter(message)
    [dead] = place.rows(kind=1, lane=OUTBOX)
    assert destination_of(dead) == FRAGMENT_IDS[fragment_of("k")]


def test_a_key_of_more_than_128_characters_is_refused() -> None:
    place = Place(MemoryStore(), 1)
    place.turn(lambda: place.engine.send([keyed("a", "é" * 128)], place.now))
    with pytest.raises(InvalidArgument, match="PartitionKey is longer than 128"):
        place.engine.send([keyed("b", "k" * 129)], place.now)


def test_the_key_is_kept_in_the_details_of_a_message() -> None:
    message, found = keyed("a", "schlüssel"), Message(None)
    data = encode_details(message)
    assert decode_details(found, data, 0) == len(data)
    assert found.partition_key == "schlüssel"
    assert message.snapshot().partition_key == "schlüssel"
