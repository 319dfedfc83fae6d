"""Count what was committed: the meters follow the journal, so they count what lasts."""

from collections import Counter

from postbus.broker import records
from postbus.broker.message import OWNER_BITS
from postbus.broker.records import Kind
from postbus.server.host import Host
from postbus.server.meters import EntityMeter


def account(host: Host, written: list[bytes]) -> None:
    """Add one batch's records to the meters of their entities."""
    if not host.meters:
        if host.meter is not None:
            _add(host.meter, written)
        return
    of: dict[int, list[bytes]] = {}
    for record in written:
        of.setdefault(records.subqueue_of(record) >> OWNER_BITS, []).append(record)
    for owner, its in of.items():
        meter = host.meters.get(owner) if owner else host.meter
        if meter is not None:
            _add(meter, its)


def _add(meter: EntityMeter, written: list[bytes]) -> None:
    # The kind is a record's first byte.
    kinds = Counter([record[0] for record in written])
    meter.sends += kinds[Kind.ENQUEUED] + kinds[Kind.SCHEDULED]
    meter.sends += kinds[Kind.PUBLISHED] + kinds[Kind.STAGED]
    meter.schedules += kinds[Kind.SCHEDULED]
    meter.completions += kinds[Kind.COMPLETED]
    meter.abandons += kinds[Kind.ABANDONED]
    meter.lock_losses += kinds[Kind.LOCK_EXPIRED]
    meter.deferrals += kinds[Kind.DEFERRED]
    meter.expirations += kinds[Kind.EXPIRED]
    meter.cancellations += kinds[Kind.CANCELLED]
    meter.deletions += kinds[Kind.DELETED]
    meter.duplicates += kinds[Kind.DUPLICATE]
    meter.copies += kinds[Kind.DISTRIBUTED]
    meter.arrivals += kinds[Kind.ARRIVED]
    meter.forwards += kinds[Kind.FORWARDED]
    meter.resubmissions += kinds[Kind.RESUBMITTED]
    if not kinds[Kind.DEAD_LETTERED]:
        return
    for record in written:
        if record[0] == Kind.DEAD_LETTERED:
            meter.dead_lettered(records.decode(record).message.reason)
