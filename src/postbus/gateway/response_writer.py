"""Messages put into words for one response, in as many turns as that takes.

What was received by number is told by one response. Headers that are read and written anew for it
(those of dead letters, annotations, footers) may be megabytes of tiny properties: the first ones
are written when it is decided, the others after the commit, as they were when it was decided.
"""

from collections import deque
from typing import Final

from postbus.broker.browse import Found
from postbus.broker.message import Message
from postbus.broker.shared_state import SharedState
from postbus.messages.envelope import write_delivery
from postbus.runtime.receivers import TOIL_OF_A_SHARE, share_of

RESPONSE_TOIL_MAX: Final = 8_192
"""Of `SharedState.toil`, for one piece: the message that goes beyond it may take as long again."""


Written = list[tuple[bytes | None, bytes]]
"""Lock tokens and messages."""


class ResponseWriter:
    """Messages that were found for a client, the first of them as it gets them."""

    __slots__ = ("_left", "written")

    def __init__(self, found: Found, fragment: SharedState) -> None:
        """Write the first ones within the turn that has decided this."""
        self.written: Written = []
        self._left: deque[tuple[Message, bytes]] = deque(found)
        fragment.toil += self._write()
        # More may be decided about the others before they are written.
        self._left = deque([(message.snapshot(), raw) for message, raw in self._left])

    @property
    def complete(self) -> bool:
        return not self._left

    def go_on(self) -> bool:
        """Write the next ones; says whether there are more."""
        self._write()
        return bool(self._left)

    def _write(self) -> int:
        toil = 0
        while self._left and toil < RESPONSE_TOIL_MAX:
            message, raw = self._left.popleft()
            parts = write_delivery(message, raw, with_state=True)
            toil += share_of(message, parts) * TOIL_OF_A_SHARE
            self.written.append((message.token, b"".join(parts)))
        return toil
