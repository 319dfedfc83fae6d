"""Meters follow the journal: each kind of record adds to the fields that it stands for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from postbus.broker import records
from postbus.broker.message import Message
from postbus.broker.record_kinds import RecordKind
from postbus.broker.subqueue_numbers import subqueue_of
from postbus.observe.meters import EntityMeter
from postbus.runtime.accounting import account

pytestmark = pytest.mark.interpreted_only  # a stand-in for the fragment is not taken for one

COUNTS = {
    RecordKind.ENQUEUED: {"sends"},
    RecordKind.SCHEDULED: {"sends", "schedules"},
    RecordKind.PUBLISHED: {"sends"},
    RecordKind.STAGED: {"sends"},
    RecordKind.COMPLETED: {"completions"},
    RecordKind.ABANDONED: {"abandons"},
    RecordKind.LOCK_EXPIRED: {"lock_losses"},
    RecordKind.DEFERRED: {"deferrals"},
    RecordKind.EXPIRED: {"expirations"},
    RecordKind.CANCELLED: {"cancellations"},
    RecordKind.DELETED: {"deletions"},
    RecordKind.DUPLICATE: {"duplicates"},
    RecordKind.DISTRIBUTED: {"copies"},
    RecordKind.ARRIVED: {"arrivals"},
    RecordKind.FORWARDED: {"forwards"},
    RecordKind.RESUBMITTED: {"resubmissions"},
    RecordKind.PINGED: {"pings"},
}


def counted(kinds: list[RecordKind]) -> dict[str, int]:
    meter = EntityMeter()
    fragment: Any = SimpleNamespace(meters={}, meter=meter)
    account(fragment, [bytes([kind, 0, 0]) for kind in kinds])
    values = {name: getattr(meter, name) for name in EntityMeter.__slots__}
    return {name: value for name, value in values.items() if isinstance(value, int) and value}


@pytest.mark.parametrize(
    "kind", [kind for kind in RecordKind if kind is not RecordKind.DEAD_LETTERED]
)
def test_a_record_adds_to_the_fields_it_stands_for_and_no_others(kind: RecordKind) -> None:
    assert counted([kind]) == dict.fromkeys(COUNTS.get(kind, set()), 1)


def test_records_of_one_batch_are_added_up() -> None:
    kinds = [RecordKind.ENQUEUED, RecordKind.SCHEDULED, RecordKind.ENQUEUED, RecordKind.COMPLETED]
    assert counted(kinds) == {"sends": 3, "schedules": 1, "completions": 1}


def test_dead_letters_are_counted_by_reason_among_other_records() -> None:
    dead = Message(None, "m")
    dead.reason = "MaxDeliveryCountExceeded"
    own = Message(None, "m")
    own.reason = "BadOrder"
    meter = EntityMeter()
    fragment: Any = SimpleNamespace(meters={}, meter=meter)
    written = [
        records.encode(RecordKind.COMPLETED, Message(None, "m"), 0, 0, 1),
        *(records.encode(RecordKind.DEAD_LETTERED, each, 0, 0, 2) for each in (dead, own, own)),
    ]
    account(fragment, written)
    assert meter.completions == 1
    assert sorted(meter.dead_letters.values()) == [1, 2]
    assert meter.dead_letters["MaxDeliveryCountExceeded"] == 1


def test_records_of_a_subscription_are_its_own() -> None:
    copy = Message(None, "m")
    copy.subqueue = subqueue_of(3)
    topic, subscription = EntityMeter(), EntityMeter()
    fragment: Any = SimpleNamespace(meters={3: subscription}, meter=topic)
    account(fragment, [records.encode(RecordKind.COMPLETED, copy, copy.subqueue, 0, 1)])
    account(fragment, [records.encode(RecordKind.ABANDONED, Message(None, "m"), 0, 0, 1)])
    assert (topic.completions, topic.abandons) == (0, 1)
    assert (subscription.completions, subscription.abandons) == (1, 0)
