"""What a turn hands to the store, and what is told when it comes back."""

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Final, NamedTuple

import structlog

from postbus.broker.engine import Engine
from postbus.errors import OutcomeUnknown, ServiceBusError, StoreUnavailable
from postbus.runtime.accounting import account
from postbus.runtime.fragment import LoadedFragment, Output
from postbus.runtime.requests import Request
from postbus.store import batch
from postbus.store.ports.journal import Part

NO_ROOM: Final = (
    "The disk of the broker has no room for new messages. They are taken again once messages were "
    "received and completed, or other files have made room."
)

log = structlog.get_logger("runtime")


class PreparedPart(NamedTuple):
    """One fragment's part of a turn, as it goes to the store."""

    fragment: LoadedFragment
    engine: Engine
    records: list[bytes]
    part: Part


def packed(written: PreparedPart) -> PreparedPart:
    """The same with its records in the form of the store."""
    part = written.part
    lease = part.lease
    data, _ = batch.pack(lease.fragment, lease.epoch, part.base, part.at, written.records)
    return written._replace(part=part._replace(batch=data))


class Commit:
    """A turn whose records are on their way to the disk.

    A class, and not what two nested functions share: those would refer to each other through it,
    and keep every message of every turn until the garbage collector comes by.
    """

    __slots__ = ("fragments", "outputs", "requests", "started", "written")

    def __init__(
        self,
        written: list[PreparedPart],
        fragments: dict[LoadedFragment, None],
        requests: list[Request],
        outputs: list[Output],
    ) -> None:
        self.written = written
        self.fragments = fragments
        self.requests = requests
        self.outputs = outputs
        self.started = perf_counter()

    def join(
        self, fragments: dict[LoadedFragment, None], requests: list[Request], outputs: list[Output]
    ) -> None:
        """Let a turn that writes nothing wait for this one."""
        self.fragments |= fragments
        self.requests += requests
        self.outputs += outputs


def note_committed(written: PreparedPart) -> None:
    """It is durable; its engine may have been thrown away meanwhile (entity deleted)."""
    fragment, part = written.fragment, written.part
    account(fragment, written.records)
    fragment.head = part.base + part.count
    if fragment.on_records and part.count:
        for tell in list(fragment.on_records):
            tell()
    if part.checkpoint is not None:
        written.engine.ledger.checkpointed(part.checkpoint)


def refusal_of(error: BaseException) -> ServiceBusError:
    """What those are told whose commit came back with an error."""
    if isinstance(error, ServiceBusError):
        return error
    if isinstance(error, ValueError):  # behind one that failed: nothing was written
        return StoreUnavailable(f"The store did not take the write: {error}")
    return OutcomeUnknown(f"The store may have taken the write, or not: {error!r}")


def refuse(
    lost: set[LoadedFragment],
    requests: list[Request],
    outputs: list[Output],
    refusal: ServiceBusError,
) -> None:
    """Memory is ahead of the disk there: nothing that was decided leaves, everybody is refused."""
    outputs[:] = [output for output in outputs if output[0] not in lost]
    refused = [request for request in requests if request.fragment in lost]
    requests[:] = [request for request in requests if request.fragment not in lost]
    for request in refused:
        safely(request.fragment, partial(request.refuse, refusal))


def safely(fragment: LoadedFragment, call: Callable[[], None]) -> None:
    """Tell one client; whatever goes wrong with it, the others must be told too."""
    try:
        call()
    except Exception:
        log.exception("answer lost", entity=fragment.name)
