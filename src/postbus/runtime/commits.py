"""A turn's commit: its parts as the store gets them, and the answers when it comes back."""

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Final, NamedTuple

import structlog

from postbus.broker.engine import Engine
from postbus.errors import OutcomeUnknown, ServiceBusError, StoreUnavailable
from postbus.model.index_rows import Checkpoint
from postbus.model.times import Instant
from postbus.runtime.accounting import account
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.turn import Turn
from postbus.store import batch
from postbus.store.ports.journal import Lease, Part

NO_ROOM: Final = (
    "The disk of the broker has no room for new messages. They are taken again once messages were "
    "received and completed, or other files have made room."
)
PACKED_HERE_BYTES: Final = 2 << 20
"""Larger batches are packed on the store's thread. Copying and summing so much takes long, but
releases the interpreter's lock for pieces of a megabyte and more."""

log = structlog.get_logger("runtime")


class PreparedPart(NamedTuple):
    """One fragment's part of a commit."""

    fragment: LoadedFragment
    engine: Engine
    records: list[bytes]
    part: Part


def prepare(
    fragment: LoadedFragment,
    engine: Engine,
    lease: Lease,
    now: Instant,
    checkpoint: Checkpoint | None,
) -> PreparedPart:
    """Seal the pending records of an engine, and pack them unless they are large."""
    ledger = engine.ledger
    base, records, data = ledger.head, ledger.seal(), b""
    if records and sum(map(len, records)) < PACKED_HERE_BYTES:
        # The store's thread would wait for the interpreter's lock while this thread goes on, and
        # the disk would be idle meanwhile.
        data, _ = batch.pack(fragment.id, lease.epoch, base, now, records)
    part = Part(lease, base, len(records), now, data, checkpoint)
    return PreparedPart(fragment, engine, records, part)


def pack_large(written: list[PreparedPart]) -> None:
    """Pack the parts that prepare() has left. Runs on the store's thread."""
    for place, each in enumerate(written):
        part = each.part
        if each.records and not part.batch:
            lease = part.lease
            data, _ = batch.pack(lease.fragment, lease.epoch, part.base, part.at, each.records)
            written[place] = each._replace(part=part._replace(batch=data))


class Commit:
    """A turn whose records are on their way to the disk.

    This is a class because two nested functions that share its state would form a reference cycle,
    and keep every message of every turn until the garbage collector runs.
    """

    __slots__ = ("started", "turn", "written")

    def __init__(self, written: list[PreparedPart], turn: Turn) -> None:
        self.written = written
        self.turn = turn
        """The turn that wrote it, joined by later turns that wrote nothing."""
        self.started = perf_counter()


def note_committed(written: PreparedPart) -> None:
    """Count the records of a durable part, and tell those who wait for records.

    The engine may have been discarded meanwhile, because the entity was deleted.
    """
    fragment, part = written.fragment, written.part
    account(fragment, written.records)
    fragment.head = part.base + part.count
    written.engine.ledger.committed(fragment.head)
    if fragment.on_records and part.count:
        for tell in list(fragment.on_records):
            tell()
    if part.checkpoint is not None:
        written.engine.ledger.checkpointed(part.checkpoint)


def refusal_of(error: BaseException) -> ServiceBusError:
    """The refusal for requests whose commit failed with an error."""
    if isinstance(error, ServiceBusError):
        return error
    if isinstance(error, ValueError):  # the commit before it failed, so nothing was written
        return StoreUnavailable(f"The store did not take the write: {error}")
    return OutcomeUnknown(f"The store may have taken the write, or not: {error!r}")


def lost_parts(written: list[PreparedPart], refusal: ServiceBusError) -> list[PreparedPart]:
    """The parts whose engines are ahead of the disk after a failed commit.

    A checkpoint without records is not among them, if the store is known not to have it. Its engine
    goes on, and later parts still fit in the journal.
    """
    if isinstance(refusal, OutcomeUnknown):
        return written
    for each in written:
        if not each.records:
            each.engine.ledger.checkpoint_failed()
    return [each for each in written if each.records]


def refuse(lost: set[LoadedFragment], turn: Turn, refusal: ServiceBusError) -> None:
    """Drop the outputs of lost fragments, whose records are not durable, and refuse requests."""
    turn.outputs = [output for output in turn.outputs if output[0] not in lost]
    turn.at_once = [output for output in turn.at_once if output[0] not in lost]
    refused = [request for request in turn.requests if request.fragment in lost]
    turn.requests = [request for request in turn.requests if request.fragment not in lost]
    for request in refused:
        safely(request.fragment, partial(request.refuse, refusal))


def safely(fragment: LoadedFragment, call: Callable[[], None]) -> None:
    """Answer one client. If that fails, the others are still answered."""
    try:
        call()
    except Exception:
        log.exception("answer lost", entity=fragment.name)
