"""The state that the queues of one fragment share: ledger, lock tokens, and queues with work."""

from hashlib import blake2b
from typing import Final

from postbus.broker.ledger import Ledger
from postbus.broker.outbox import Outbox
from postbus.broker.subqueue_numbers import Owner, Subqueue
from postbus.broker.window_budget import WindowBudget

_COUNTER_BYTES: Final = 3
_IN_SESSION: Final = 1 << 8 * _COUNTER_BYTES - 1
_COUNTER_MASK: Final = _IN_SESSION - 1
_PROOF_BYTES: Final = 5
_PROOFS: Final = 12
"""Proofs cut from a single digest: BLAKE2b has up to 64 bytes, for the price of five."""


class SharedState:
    """The ledger, and notes of the queues that need a look. A topic may have two thousand
    subscriptions, and a turn must not go through all of them."""

    __slots__ = (
        "_changes",
        "_issued",
        "_proofs",
        "_secret",
        "_token_prefix",
        "budget",
        "diverting",
        "enlisted",
        "expiring",
        "ledger",
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
        self, ledger: Ledger, budget: WindowBudget, token_prefix: bytes, secret: int
    ) -> None:
        self.ledger = ledger
        self.budget = budget
        self._changes = 0
        self.ready_subqueues: dict[Subqueue, None] = {}
        """Subqueues in which a message has become ready since the last dispatch."""
        self.ready_sessions: dict[tuple[Subqueue, str], None] = {}
        """Held sessions, by subqueue and id, likewise."""
        self.lost_sessions: list[tuple[Subqueue, str, int]] = []
        """Sessions whose locks ended before their holders left: subqueue, id and holder."""
        self.locked: dict[Owner, None] = {}
        """Queues that have given out locks since the engine noted when their first lock ends."""
        self.expiring: dict[Owner, None] = {}
        """Queues with a message that expires earlier than the engine has noted."""
        self.diverting: dict[Owner, None] = {}
        """Queues that forward, and may have messages from before they did."""
        self.outboxes: dict[Subqueue, Outbox] = {}
        """Subqueues with messages on their way to another entity."""
        self.outboxes_with_work: dict[Subqueue, None] = {}
        """Outboxes that got a message since the forwarder was told."""
        self.transactions: dict[object, None] = {}
        """Transactions that have work to do here when they commit. Only `Transaction` itself looks
        into them, so this module does not know the class."""
        self.enlisted: set[bytes] = set()
        """Locks whose messages a transaction settles, if it commits."""
        self.toil = 0
        """Work beyond the usual in this turn: property values that were read and written anew, and
        steps of rules. A turn ends by it."""
        # A lock token names fragment and epoch, so a token of an earlier owner is lock-lost at
        # once. A counter makes the token unique. A proof shows that this broker made it: a client
        # that has seen some tokens must not be able to guess others.
        self._token_prefix = token_prefix
        self._secret = secret.to_bytes(8, "big")
        self._issued = 0
        self._proofs = b""

    def charge_changes(self, changes: int) -> None:
        """Count the changes in the delta with those of all fragments."""
        self.budget.changes += changes - self._changes
        self._changes = changes

    def take_toil(self) -> int:
        """The toil until now; it starts again at 0."""
        toil, self.toil = self.toil, 0
        return toil

    def next_token(self, in_session: bool = False) -> bytes:
        """A new lock token. It says whether its message is of a session: when the lock is lost, the
        broker must know this, and has nothing else left of the message (`is_in_session`)."""
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
    """Was this token given for a message of a session? Tokens from before a restart say so too."""
    at = -_COUNTER_BYTES - _PROOF_BYTES
    return len(token) >= -at and token[at] & 0x80 != 0
