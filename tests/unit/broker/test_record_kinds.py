"""The table of record kinds is whole, and replay does for each kind what its row says."""

from __future__ import annotations

import pytest

from postbus.broker import records
from postbus.broker.bloom import digest_of
from postbus.broker.duplicate_history import History
from postbus.broker.ledger import Layout, Ledger
from postbus.broker.message import ACTIVE, DEFERRED, ForwardingInfo, Message
from postbus.broker.record_kinds import (
    BRINGS_BODY,
    DEAD_LETTER_METER,
    MEANINGS,
    OPERATIONS,
    Effect,
    RecordKind,
)
from postbus.broker.subqueue_numbers import MAIN
from postbus.observe.meters import EntityMeter

# Journals were written by these meanings, and meters, readers and replay go by them: whoever
# changes a row changes it here too, and has a reason.
# kind, effect, event of the change feed, body, message id counts, origin, meters
TABLE = """
ENQUEUED      adds    enqueued              body id -      sends
SCHEDULED     adds    scheduled             body id -      sends,schedules
ACTIVATED     changes activated             -    -  -      -
COMPLETED     removes completed             -    -  -      completions
RECEIVED      removes received              -    -  -      -
ABANDONED     changes abandoned             -    -  -      abandons
LOCK_EXPIRED  changes lock-expired          -    -  -      lock_losses
DEFERRED      changes deferred              -    -  -      deferrals
DEAD_LETTERED changes dead-lettered         -    -  -      dead_letters
EXPIRED       removes expired               -    -  -      expirations
CANCELLED     removes cancelled             -    -  -      cancellations
DELETED       removes deleted               -    -  -      deletions
COPIED        changes -                     body -  -      -
PUBLISHED     nothing published             body id -      sends
STAGED        adds    staged                body id -      sends
DISTRIBUTED   adds    distributed           -    -  -      copies
ADVANCED      changes advanced              -    -  -      -
SPREAD        removes spread                -    -  -      -
REPLACED      changes -                     -    -  -      -
DIVERTED      changes diverted              -    -  -      -
FORWARDED     removes forwarded             -    -  -      forwards
ARRIVED       adds    arrived               body id origin arrivals
STATE_SET     adds    session-state-set     body -  -      -
STATE_CLEARED removes session-state-cleared -    -  -      -
DUPLICATE     nothing duplicate             -    -  origin duplicates
POSTED        adds    posted                body -  -      -
PUT_BACK      adds    put-back              body -  -      -
RESUBMITTED   removes resubmitted           -    -  -      resubmissions
PINGED        nothing -                     -    -  -      pings
"""
BODY = b"body"
ORIGIN, ORIGIN_NUMBER = 40, 3
NOW = 1_000


def kinds_that(effect: Effect) -> list[RecordKind]:
    return [kind for kind in RecordKind if MEANINGS[kind].effect is effect]


def message(number: int = 1) -> Message:
    made = Message(BODY, f"m{number}")
    made.number = made.enqueue_number = number
    made.trail = ForwardingInfo(len(BODY))
    made.trail.origin, made.trail.origin_number = ORIGIN, ORIGIN_NUMBER
    return made


def replayed(*written: bytes) -> Ledger:
    """A fragment that has nothing but these records."""
    ledger = Ledger(Layout(0, 0), 0, 0, b"", History(10 * NOW))
    for offset, record in enumerate(written):
        ledger.replay(records.decode(record), offset, 0, NOW)
    return ledger


def record_of(kind: RecordKind, about: Message, from_lane: int = ACTIVE) -> bytes:
    if kind in BRINGS_BODY:
        return records.encode_with_body(kind, about, BODY)
    return records.encode(kind, about, about.subqueue, from_lane, about.number)


def enqueued(about: Message) -> bytes:
    return records.encode_with_body(RecordKind.ENQUEUED, about, BODY)


def held(ledger: Ledger) -> dict[tuple[int, int], int]:
    return {place: count for place, count in ledger.counts.items() if count}


def test_every_kind_has_a_row_and_every_event_a_name_of_its_own() -> None:
    assert set(MEANINGS) == set(RecordKind)
    assert len(set(OPERATIONS.values())) == len(OPERATIONS)


def test_every_kind_means_what_it_has_always_meant() -> None:
    rows = [
        [
            kind.name,
            meaning.effect.value,
            meaning.operation or "-",
            "body" if meaning.has_body else "-",
            "id" if meaning.brings_id else "-",
            "origin" if meaning.notes_origin else "-",
            ",".join(meaning.meters) or "-",
        ]
        for kind, meaning in MEANINGS.items()
    ]
    assert rows == [line.split() for line in TABLE.strip().splitlines()]


def test_every_meter_in_the_table_is_a_field_of_an_entitys_meter() -> None:
    named = {name for meaning in MEANINGS.values() for name in meaning.meters}
    assert {name for name in named if not hasattr(EntityMeter(), name)} == set()
    assert DEAD_LETTER_METER in named


@pytest.mark.parametrize("kind", kinds_that(Effect.ADDS))
def test_replay_adds_a_message(kind: RecordKind) -> None:
    ledger = replayed(record_of(kind, message()))
    assert held(ledger) == {(MAIN, ACTIVE): 1}
    assert ledger.size_bytes == len(BODY)


@pytest.mark.parametrize("kind", kinds_that(Effect.CHANGES))
def test_replay_changes_a_message_where_it_is(kind: RecordKind) -> None:
    ledger = replayed(enqueued(message()), record_of(kind, message()))
    assert held(ledger) == {(MAIN, ACTIVE): 1}
    assert ledger.size_bytes == len(BODY)


@pytest.mark.parametrize("kind", sorted(set(kinds_that(Effect.CHANGES)) - BRINGS_BODY))
def test_replay_moves_a_message_that_the_record_names_another_lane_of(kind: RecordKind) -> None:
    moved = message()
    moved.lane = DEFERRED
    ledger = replayed(enqueued(message()), record_of(kind, moved, from_lane=ACTIVE))
    assert held(ledger) == {(MAIN, DEFERRED): 1}
    assert ledger.size_bytes == len(BODY)


@pytest.mark.parametrize("kind", kinds_that(Effect.REMOVES))
def test_replay_removes_a_message(kind: RecordKind) -> None:
    ledger = replayed(enqueued(message()), record_of(kind, message()))
    assert held(ledger) == {}
    assert ledger.size_bytes == 0


@pytest.mark.parametrize("kind", kinds_that(Effect.NOTHING))
def test_replay_keeps_nothing_but_the_number(kind: RecordKind) -> None:
    ledger = replayed(record_of(kind, message(7)))
    assert held(ledger) == {}
    assert ledger.last_number == 7


@pytest.mark.parametrize("kind", list(RecordKind))
def test_replay_notes_ids_and_origins_and_places_of_bodies_as_the_row_says(
    kind: RecordKind,
) -> None:
    meaning = MEANINGS[kind]
    before = message()
    before.message_id, before.trail = "", None
    needs_one = meaning.effect in (Effect.CHANGES, Effect.REMOVES)
    ledger = replayed(*([enqueued(before)] if needs_one else []), record_of(kind, message()))
    assert ledger.history is not None
    assert (digest_of("m1") in ledger.history.recent) is meaning.brings_id
    assert ledger.marks == ({ORIGIN: ORIGIN_NUMBER} if meaning.notes_origin else {})
    for kept in ledger.delta.rows():
        assert (kept.base == 1 if needs_one else kept.base == 0) or not meaning.has_body
