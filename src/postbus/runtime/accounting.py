"""Count what was committed: the meters follow the journal, so they count what lasts."""

from postbus.broker import records
from postbus.broker.message import OWNER_BITS
from postbus.broker.records import Kind
from postbus.observe.meters import EntityMeter
from postbus.runtime.fragment import LoadedFragment


def account(fragment: LoadedFragment, written: list[bytes]) -> None:
    """Add one batch's records to the meters of their entities."""
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
    meter.sends += kinds.get(Kind.ENQUEUED, 0) + kinds.get(Kind.SCHEDULED, 0)
    meter.sends += kinds.get(Kind.PUBLISHED, 0) + kinds.get(Kind.STAGED, 0)
    meter.schedules += kinds.get(Kind.SCHEDULED, 0)
    meter.completions += kinds.get(Kind.COMPLETED, 0)
    meter.abandons += kinds.get(Kind.ABANDONED, 0)
    meter.lock_losses += kinds.get(Kind.LOCK_EXPIRED, 0)
    meter.deferrals += kinds.get(Kind.DEFERRED, 0)
    meter.expirations += kinds.get(Kind.EXPIRED, 0)
    meter.cancellations += kinds.get(Kind.CANCELLED, 0)
    meter.deletions += kinds.get(Kind.DELETED, 0)
    meter.duplicates += kinds.get(Kind.DUPLICATE, 0)
    meter.copies += kinds.get(Kind.DISTRIBUTED, 0)
    meter.arrivals += kinds.get(Kind.ARRIVED, 0)
    meter.forwards += kinds.get(Kind.FORWARDED, 0)
    meter.resubmissions += kinds.get(Kind.RESUBMITTED, 0)
    if Kind.DEAD_LETTERED not in kinds:
        return
    for record in written:
        if record[0] == Kind.DEAD_LETTERED:
            meter.dead_lettered(records.decode(record).message.reason)
