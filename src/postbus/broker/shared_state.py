"""What the queues of one fragment share: its ledger, its lock tokens, and who has work to do."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from postbus.broker.ledger import Ledger
from postbus.broker.outbox import Outbox
from postbus.broker.window import WindowLimits

if TYPE_CHECKING:
    from postbus.broker.queue import Queue
    from postbus.broker.transaction import Transaction

_COUNTER_BYTES: Final = 3
_IN_SESSION: Final = 1 << 8 * _COUNTER_BYTES - 1
_COUNTER_MASK: Final = _IN_SESSION - 1
_PROOF_BYTES: Final = 5
_PROOFS: Final = 12
"""Proofs that one digest is cut into: BLAKE2b has up to 64 bytes, for the price of five."""


class SharedState:
    """One ledger, and marks of what in it needs to be looked at: a topic may have two thousand
    subscriptions, and a turn must not go through all of them."""

    __slots__ = (
        "_issued",
        "_proofs",
        "_secret",
        "_token_prefix",
        "diverting",
        "enlisted",
        "expiring",
        "ledger",
        "limits",
        "locked",
        "lost_sessions",
        "outboxes",
        "outboxes_with_work",
        "ready_sessions",
        "ready_subqueues",
        "toil",
        "transactions",
    )

    def __init__(
        self, ledger: Ledger, limits: WindowLimits, token_prefix: bytes, secret: int
    ) -> None:
        self.ledger = ledger
        self.limits = limits
        self.ready_subqueues: dict[int, None] = {}
        """Subqueues in which something has become ready since somebody looked."""
        self.ready_sessions: dict[tuple[int, str], None] = {}
        """Sessions that are held, by subqueue and id, likewise."""
        self.lost_sessions: list[tuple[int, str, int]] = []
        """Sessions whose locks ended before they were given up: subqueue, id and holder."""
        self.locked: dict[int, Queue] = {}
        """Queues that have given out locks since somebody looked when the first of them ends."""
        self.expiring: dict[int, Queue] = {}
        """Queues with a message that expires before all that were known there."""
        self.diverting: dict[int, Queue] = {}
        """Queues that forward, and may have messages from before they did."""
        self.outboxes: dict[int, Outbox] = {}
        """Subqueues with messages on their way to another entity."""
        self.outboxes_with_work: dict[int, None] = {}
        """Those of them to which one was added since whoever empties them was told."""
        self.transactions: dict[Transaction, None] = {}
        """Those that have work to do here when they are committed."""
        self.enlisted: dict[bytes, Transaction] = {}
        """Locks whose messages are settled by a transaction, if it is committed."""
        self.toil = 0
        """Work beyond the usual since whoever ends the turn by it has looked: values of properties
        that were read and written anew, steps of rules."""
        # A lock token names fragment and epoch, so that one of an earlier owner is lock-lost at
        # once. The rest is a counter, which makes it the only one, and a proof that we made it:
        # whoever has seen some tokens must not be able to tell others.
        self._token_prefix = token_prefix
        self._secret = secret.to_bytes(8, "big")
        self._issued = 0
        self._proofs = b""

    def take_toil(self) -> int:
        """The toil until now, which is begun anew."""
        toil, self.toil = self.toil, 0
        return toil

    def next_token(self, in_session: bool = False) -> bytes:
        """Of a message, and of one of a session if told so: that is read off it when the lock is
        lost and nothing else is known of it (`is_in_session`)."""
        self._issued += 1
        issued = self._issued
        place = issued % _PROOFS
        if place == 0 or not self._proofs:
            run = (issued // _PROOFS).to_bytes(8, "big")
            size = _PROOFS * _PROOF_BYTES
            self._proofs = blake2b(run, key=self._secret, digest_size=size).digest()
        counter = issued & _COUNTER_MASK
        if in_session:
            counter |= _IN_SESSION
        start = place * _PROOF_BYTES
        return b"".join(
            (
                self._token_prefix,
                counter.to_bytes(_COUNTER_BYTES, "big"),
                self._proofs[start : start + _PROOF_BYTES],
            )
        )


def is_in_session(token: bytes) -> bool:
    """Was this token given for a message of a session? Also of one from before a restart."""
    at = -_COUNTER_BYTES - _PROOF_BYTES
    return len(token) >= -at and token[at] & 0x80 != 0
