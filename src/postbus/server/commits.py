"""What a turn hands to the store, and what is told when it comes back."""

from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

from postbus.broker.queue import Queue
from postbus.model.rows import Checkpoint
from postbus.server.accounting import account
from postbus.server.host import Host, Request
from postbus.store.base import Lease

Output = tuple[Host, Callable[[], None]]
"""Something that leaves the process when its fragment's records are durable."""


class Written(NamedTuple):
    """One fragment's part of a turn, as it goes to the store."""

    host: Host
    queue: Queue
    lease: Lease
    base: int
    records: list[bytes]
    checkpoint: Checkpoint | None


class Commit:
    """A turn whose records are on their way to the disk.

    A class, and not what two nested functions share: those would refer to each other through it,
    and keep every message of every turn until the garbage collector comes by.
    """

    __slots__ = ("hosts", "outputs", "requests", "started", "written")

    def __init__(
        self,
        written: list[Written],
        hosts: dict[Host, None],
        requests: list[Request],
        outputs: list[Output],
    ) -> None:
        self.written = written
        self.hosts = hosts
        self.requests = requests
        self.outputs = outputs
        self.started = perf_counter()


def note_committed(part: Written) -> None:
    """The part is durable; its engine may have been thrown away meanwhile (entity deleted)."""
    if part.host.meter is not None:
        account(part.host.meter, part.records)
    ledger = part.queue.ledger
    ledger.committed()
    if part.checkpoint is not None:
        ledger.checkpointed(part.checkpoint)
