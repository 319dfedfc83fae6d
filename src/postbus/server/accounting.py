"""Count what was committed: the meters follow the journal, so they count what lasts."""

from typing import Final

from postbus.broker import records
from postbus.broker.message import OWNER_BITS
from postbus.broker.records import Kind
from postbus.server.host import Host
from postbus.server.meters import EntityMeter

_COUNTED_AS: Final[dict[int, tuple[str, ...]]] = {
    int(Kind.ENQUEUED): ("sends",),
    int(Kind.SCHEDULED): ("sends", "schedules"),
    int(Kind.PUBLISHED): ("sends",),
    int(Kind.STAGED): ("sends",),
    int(Kind.COMPLETED): ("completions",),
    int(Kind.ABANDONED): ("abandons",),
    int(Kind.LOCK_EXPIRED): ("lock_losses",),
    int(Kind.DEFERRED): ("deferrals",),
    int(Kind.EXPIRED): ("expirations",),
    int(Kind.CANCELLED): ("cancellations",),
    int(Kind.DELETED): ("deletions",),
    int(Kind.DUPLICATE): ("duplicates",),
    int(Kind.DISTRIBUTED): ("copies",),
    int(Kind.ARRIVED): ("arrivals",),
    int(Kind.FORWARDED): ("forwards",),
    int(Kind.RESUBMITTED): ("resubmissions",),
}
"""Fields of a meter that a record of each kind adds to."""


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
    kinds: dict[int, int] = {}
    for record in written:
        kind = record[0]  # a record's first byte
        kinds[kind] = kinds.get(kind, 0) + 1
    for kind, count in kinds.items():
        for name in _COUNTED_AS.get(kind, ()):
            setattr(meter, name, getattr(meter, name) + count)
    if int(Kind.DEAD_LETTERED) not in kinds:
        return
    for record in written:
        if record[0] == Kind.DEAD_LETTERED:
            meter.dead_lettered(records.decode(record).message.reason)
