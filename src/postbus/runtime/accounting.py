"""Meters of entities. They count committed records, so they count only durable operations."""

from postbus.broker import records
from postbus.broker.record_kinds import DEAD_LETTER_METER, MEANINGS, RecordKind
from postbus.broker.subqueue_numbers import owner_of
from postbus.observe.meters import EntityMeter
from postbus.runtime.loaded_fragment import LoadedFragment


def account(fragment: LoadedFragment, written: list[bytes]) -> None:
    """Add the records of one batch to the meters of their entities."""
    if not fragment.meters:
        if fragment.meter is not None:
            _add(fragment.meter, written)
        return
    of: dict[int, list[bytes]] = {}
    for record in written:
        of.setdefault(owner_of(records.subqueue_in(record)), []).append(record)
    for owner, its in of.items():
        meter = fragment.meters.get(owner) if owner else fragment.meter
        if meter is not None:
            _add(meter, its)


def _add(meter: EntityMeter, written: list[bytes]) -> None:
    counts: dict[int, int] = {}
    for record in written:
        number = record[0]  # a record's first byte
        counts[number] = counts.get(number, 0) + 1
    for number, count in counts.items():
        # A name of its own: compiled code keeps a number in a variable that was a number before.
        kind = RecordKind(number)
        for name in MEANINGS[kind].meters:
            if name == DEAD_LETTER_METER:
                _add_dead_letters(meter, kind, written)
            else:
                setattr(meter, name, getattr(meter, name) + count)


def _add_dead_letters(meter: EntityMeter, kind: RecordKind, written: list[bytes]) -> None:
    for record in written:
        if record[0] == kind:
            meter.dead_lettered(records.decode(record).message.reason)
