"""Meters of entities. They count committed records, so they count only durable operations."""

from postbus.broker import records
from postbus.broker.message import OWNER_BITS
from postbus.broker.records import RecordKind
from postbus.observe.meters import EntityMeter
from postbus.runtime.fragment import LoadedFragment


def account(fragment: LoadedFragment, written: list[bytes]) -> None:
    """Add the records of one batch to the meters of their entities."""
    if not fragment.meters:
        if fragment.meter is not None:
            _add(fragment.meter, written)
        return
    of: dict[int, list[bytes]] = {}
    for record in written:
        of.setdefault(records.subqueue_of(record) >> OWNER_BITS, []).append(record)
    for owner, its in of.items():
        meter = fragment.meters.get(owner) if owner else fragment.meter
        if meter is not None:
            _add(meter, its)


def _add(meter: EntityMeter, written: list[bytes]) -> None:
    kinds: dict[int, int] = {}
    for record in written:
        kind = record[0]  # a record's first byte
        kinds[kind] = kinds.get(kind, 0) + 1
    meter.sends += kinds.get(RecordKind.ENQUEUED, 0) + kinds.get(RecordKind.SCHEDULED, 0)
    meter.sends += kinds.get(RecordKind.PUBLISHED, 0) + kinds.get(RecordKind.STAGED, 0)
    meter.schedules += kinds.get(RecordKind.SCHEDULED, 0)
    meter.completions += kinds.get(RecordKind.COMPLETED, 0)
    meter.abandons += kinds.get(RecordKind.ABANDONED, 0)
    meter.lock_losses += kinds.get(RecordKind.LOCK_EXPIRED, 0)
    meter.deferrals += kinds.get(RecordKind.DEFERRED, 0)
    meter.expirations += kinds.get(RecordKind.EXPIRED, 0)
    meter.cancellations += kinds.get(RecordKind.CANCELLED, 0)
    meter.deletions += kinds.get(RecordKind.DELETED, 0)
    meter.duplicates += kinds.get(RecordKind.DUPLICATE, 0)
    meter.copies += kinds.get(RecordKind.DISTRIBUTED, 0)
    meter.arrivals += kinds.get(RecordKind.ARRIVED, 0)
    meter.forwards += kinds.get(RecordKind.FORWARDED, 0)
    meter.resubmissions += kinds.get(RecordKind.RESUBMITTED, 0)
    if RecordKind.DEAD_LETTERED not in kinds:
        return
    for record in written:
        if record[0] == RecordKind.DEAD_LETTERED:
            meter.dead_lettered(records.decode(record).message.reason)
