"""What the queues of one fragment share: its ledger, its lock tokens, and who has work to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postbus.broker.ledger import Ledger
from postbus.broker.window import WindowLimits

if TYPE_CHECKING:
    from postbus.broker.queue import Queue

_SCRAMBLE: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1


class Fragment:
    """One ledger, and marks of what in it needs to be looked at: a topic may have two thousand
    subscriptions, and a turn must not go through all of them."""

    __slots__ = (
        "_issued",
        "_secret",
        "_token_prefix",
        "forwards",
        "ledger",
        "limits",
        "locked",
        "outboxes",
        "stirred",
    )

    def __init__(
        self, ledger: Ledger, limits: WindowLimits, token_prefix: bytes, secret: int
    ) -> None:
        self.ledger = ledger
        self.limits = limits
        self.stirred: dict[int, None] = {}
        """Subqueues in which something has become ready since somebody looked."""
        self.locked: dict[int, Queue] = {}
        """Queues that have locks, or had some a moment ago."""
        self.forwards: dict[int, Queue] = {}
        """Queues that forward their messages or their dead letters."""
        self.outboxes: dict[int, int] = {}
        """Subqueues with messages on their way to another entity: none has a lower number."""
        # A lock token names fragment and epoch, so that one of an earlier owner is lock-lost at
        # once; the rest is a counter that others cannot guess.
        self._token_prefix = token_prefix
        self._secret = secret
        self._issued = 0

    def next_token(self) -> bytes:
        self._issued += 1
        word = (self._issued * _SCRAMBLE & _MASK) ^ self._secret
        return self._token_prefix + word.to_bytes(8, "big")
