"""What a connection gathers in one turn: frames to write and events to tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from postbus.amqp.events import Event
from postbus.amqp.faults import ProtocolError
from postbus.amqp.frames.framing import FRAME_SIZE_MIN
from postbus.amqp.frames.outcomes import Error
from postbus.amqp.limits import Limits, Usage

if TYPE_CHECKING:
    from postbus.amqp.session import Session


Describe = Callable[[ProtocolError], str]
"""The words for a violation; an owner may add what ties them to its log."""


def plainly(fault: ProtocolError) -> str:
    return fault.text


class Turn:
    """The part of a connection that its sessions and links work on.

    `dirty` names the sessions that have dispositions or flows saved up for the end of the turn;
    `number` changes when the owner takes the events, so that nothing need be told it twice.
    """

    __slots__ = (
        "describe",
        "dirty",
        "events",
        "limits",
        "number",
        "out",
        "out_bytes",
        "outgoing_frame_max",
        "usage",
    )

    def __init__(self, limits: Limits, describe: Describe | None) -> None:
        self.limits = limits
        self.describe = describe or plainly
        self.usage = Usage()
        self.events: list[Event] = []
        self.number = 0
        self.out: list[bytes] = []
        self.out_bytes = 0
        self.dirty: list[Session] = []
        # AMQP 2.4.1: nobody writes a larger frame before the peer has said what it takes.
        self.outgoing_frame_max = FRAME_SIZE_MIN

    @property
    def pending_bytes(self) -> int:
        """Output that waits to be taken, or for the peer's window. Past some bound the owner
        should neither send nor read any more."""
        return self.out_bytes + self.usage.unsent_bytes

    def write(self, frame: bytes) -> None:
        """Add a frame to the output."""
        self.out.append(frame)
        self.out_bytes += len(frame)

    def error_of(self, fault: ProtocolError) -> Error:
        """Put a violation into the form the peer is told."""
        return Error(fault.condition, self.describe(fault))

    def report(self, event: Event) -> None:
        """Add an event to those the owner is told when its call returns."""
        self.events.append(event)

    def flush(self) -> None:
        """Write what sessions have saved up."""
        dirty = self.dirty
        self.dirty = []
        for session in dirty:
            session.flush()

    def take_output(self) -> bytes:
        """Return all output in one piece and forget it."""
        data = b"".join(self.out)
        self.out.clear()
        self.out_bytes = 0
        return data

    def take_events(self) -> list[Event]:
        """Return all events and forget them."""
        events = self.events
        self.events = []
        self.number += 1
        return events
