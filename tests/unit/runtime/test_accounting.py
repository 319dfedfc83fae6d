"""Meters follow the journal: each kind of record adds to the fields that it stands for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from postbus.broker import records
from postbus.broker.message import OWNER_BITS, Message
from postbus.broker.records import Kind
from postbus.observe.meters import EntityMeter
from postbus.runtime.accounting import account

pytestmark = pytest.mark.interpreted_only  # a stand-in for the fragment is not taken for one

COUNTS = {
    Kind.ENQUEUED: {"sends"},
    Kind.SCHEDULED: {"sends", "schedules"},
    Kind.PUBLISHED: {"sends"},
    Kind.STAGED: {"sends"},
    Kind.COMPLETED: {"completions"},
    Kind.ABANDONED: {"abandons"},
    Kind.LOCK_EXPIRED: {"lock_losses"},
    Kind.DEFERRED: {"deferrals"},
    Kind.EXPIRED: {"expirations"},
    Kind.CANCELLED: {"cancellations"},
    Kind.DELETED: {"deletions"},
    Kind.DUPLICATE: {"duplicates"},
    Kind.DISTRIBUTED: {"copies"},
    Kind.ARRIVED: {"arrivals"},
    Kind.FORWARDED: {"forwards"},
    Kind.RESUBMITTED: {"resubmissions"},
}


def counted(kinds: list[Kind]) -> dict[str, int]:
    meter = EntityMeter()
    fragment: Any = SimpleNamespace(meters={}, meter=meter)
    account(fragment, [bytes([kind, 0, 0]) for kind in kinds])
    values = {name: getattr(meter, name) for name in EntityMeter.__slots__}
    return {name: value for name, value in values.items() if isinstance(value, int) and value}


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.DEAD_LETTERED])
def test_a_record_adds_to_the_fields_it_stands_for_and_no_others(kind: Kind) -> None:
    assert counted([kind]) == dict.fromkeys(COUNTS.get(kind, set()), 1)


def test_records_of_one_batch_are_added_up() -> None:
    kinds = [Kind.ENQUEUED, Kind.SCHEDULED, Kind.ENQUEUED, Kind.COMPLETED]
    assert counted(kinds) == {"sends": 3, "schedules": 1, "completions": 1}


def test_dead_letters_are_counted_by_reason_among_other_records() -> None:
    dead = Message(None, "m")
    dead.reason = "MaxDeliveryCountExceeded"
    own = Message(None, "m")
    own.reason = "BadOrder"
    meter = EntityMeter()
    fragment: Any = SimpleNamespace(meters={}, meter=meter)
    written = [
        records.encode(Kind.COMPLETED, Message(None, "m"), 0, 0, 1),
        *(records.encode(Kind.DEAD_LETTERED, each, 0, 0, 2) for each in (dead, own, own)),
    ]
    account(fragment, written)
    assert meter.completions == 1
    assert sorted(meter.dead_letters.values()) == [1, 2]
    assert meter.dead_letters["MaxDeliveryCountExceeded"] == 1


def test_records_of_a_subscription_are_its_own() -> None:
    copy = Message(None, "m")
    copy.subqueue = 3 << OWNER_BITS
    topic, subscription = EntityMeter(), EntityMeter()
    fragment: Any = SimpleNamespace(meters={3: subscription}, meter=topic)
    account(fragment, [records.encode(Kind.COMPLETED, copy, copy.subqueue, 0, 1)])
    account(fragment, [records.encode(Kind.ABANDONED, Message(None, "m"), 0, 0, 1)])
    assert (topic.completions, topic.abandons) == (0, 1)
    assert (subscription.completions, subscription.abandons) == (1, 0)
