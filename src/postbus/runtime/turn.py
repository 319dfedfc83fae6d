"""What one turn has decided, and when each output of it may leave the process.

Every output waits for the newest commit, with one exception. A message that is handed out under a
lock tells of nothing but its own records, because a lock is kept in memory only. If the newest
record of the message is durable, the message leaves at the end of the turn, whatever is being
written meanwhile.
"""

from functools import partial

from postbus.broker.ledger import Ledger
from postbus.model.times import Instant
from postbus.runtime.loaded_fragment import LoadedFragment, Output
from postbus.runtime.receivers import OutgoingMessage, Receiver
from postbus.runtime.requests import Request


class Turn:
    """One turn; after `join` also the turns that wait for the same commit."""

    __slots__ = ("at_once", "finished", "fragments", "now", "number", "outputs", "requests")

    def __init__(self, number: int, finished: int, now: Instant) -> None:
        self.number = number
        self.finished = finished
        """The number of the last turn that has no output left."""
        self.now = now
        self.fragments: dict[LoadedFragment, None] = {}
        """The fragments that took part."""
        self.requests: list[Request] = []
        """The requests that were decided."""
        self.outputs: list[Output] = []
        """Outputs that leave after the commit, in order."""
        self.at_once: list[Output] = []
        """Deliveries that wait for no commit."""

    def deliver(
        self,
        fragment: LoadedFragment,
        ledger: Ledger,
        receiver: Receiver,
        taken: list[OutgoingMessage],
        held: dict[Receiver, int],
    ) -> None:
        """Let messages leave: at once if the store has everything that happened to them, else
        after the commit. `held` has the last turn with an output for each receiver, which later
        outputs must not overtake.

        This is the only place where anything passes a commit that is under way."""
        output = fragment, partial(receiver.deliver, taken)
        if held.get(receiver, 0) <= self.finished and all(
            ledger.is_durable(outgoing.message) for outgoing in taken
        ):
            self.at_once.append(output)
        else:
            held[receiver] = self.number
            self.outputs.append(output)

    def drained(
        self, fragment: LoadedFragment, receiver: Receiver, held: dict[Receiver, int]
    ) -> None:
        """Tell a receiver that no message is ready, after the commit: a message that another
        receiver takes may still come back."""
        held[receiver] = self.number
        self.outputs.append((fragment, receiver.drained))

    def join(self, later: "Turn") -> None:
        """Add the outputs of a turn that has written nothing: they leave with these."""
        self.number = later.number
        self.fragments |= later.fragments
        self.requests += later.requests
        self.outputs += later.outputs
