"""Count what was committed: the meters follow the journal, so they count what lasts."""

from collections import Counter

from postbus.broker import records
from postbus.broker.records import Kind
from postbus.server.meters import EntityMeter


def account(meter: EntityMeter, written: list[bytes]) -> None:
    """Add one batch's records to the entity's meter. The kind is a record's first byte."""
    kinds = Counter([record[0] for record in written])
    meter.sends += kinds[Kind.ENQUEUED] + kinds[Kind.SCHEDULED]
    meter.schedules += kinds[Kind.SCHEDULED]
    meter.completions += kinds[Kind.COMPLETED]
    meter.abandons += kinds[Kind.ABANDONED]
    meter.lock_losses += kinds[Kind.LOCK_EXPIRED]
    meter.deferrals += kinds[Kind.DEFERRED]
    meter.expirations += kinds[Kind.EXPIRED]
    meter.cancellations += kinds[Kind.CANCELLED]
    meter.deletions += kinds[Kind.DELETED]
    if kinds[Kind.DEAD_LETTERED]:
        for record in written:
            if record[0] == Kind.DEAD_LETTERED:
                meter.dead_lettered(records.decode(record).message.reason)
