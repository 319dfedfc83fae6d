"""One queue: send, take, settle, and what the clock does to it.

Pure: time comes in as `now`, tokens are made from an injected secret, and whatever must last is a
record of the ledger. What needs the store is in `browse` (asked by clients) and `chores` (asked
by nobody).
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from postbus.broker.ledger import Ledger
from postbus.broker.message import (
    ACTIVE,
    DEAD_LETTER,
    DEFERRED,
    MAIN,
    NO_TTL,
    SCHEDULED,
    TRANSFER_DEAD_LETTER,
    Message,
)
from postbus.broker.policy import Policy
from postbus.broker.records import Kind
from postbus.broker.window import Window, WindowLimits
from postbus.errors import (
    EntityDisabled,
    InvalidArgument,
    InvalidOperation,
    MessageLockLost,
    MessageSizeExceeded,
    QuotaExceeded,
)
from postbus.model.instant import NEVER, Instant

ID_LENGTH_MAX: Final = 128
"""Characters of a message id or a session id (semantics B §11)."""

EXPIRED_PER_TAKE: Final = 64
_SCRAMBLE: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1


class Queue:
    """The engine of one fragment."""

    __slots__ = (
        "_issued",
        "_secret",
        "_token_prefix",
        "deferred_locks",
        "ledger",
        "limits",
        "locks",
        "name",
        "next_due",
        "next_expiry",
        "policy",
        "receivers",
        "windows",
    )

    def __init__(
        self,
        name: str,
        policy: Policy,
        ledger: Ledger,
        limits: WindowLimits,
        token_prefix: bytes,
        secret: int,
    ) -> None:
        self.name = name
        self.policy = policy
        self.ledger = ledger
        self.limits = limits
        # A lock token names fragment and epoch, so that one of an earlier owner is lock-lost at
        # once; the rest is a counter that others cannot guess.
        self._token_prefix = token_prefix
        self._secret = secret
        self._issued = 0
        # In order of expiry: every lock of a queue lasts equally long, and renewing moves to
        # the end.
        self.locks: OrderedDict[bytes, Message] = OrderedDict()
        self.deferred_locks: dict[tuple[int, int], Message] = {}
        self.windows = {
            subqueue: Window(limits, complete=not self._may_have(subqueue))
            for subqueue in (MAIN, DEAD_LETTER, TRANSFER_DEAD_LETTER)
        }
        self.receivers = {MAIN: 0, DEAD_LETTER: 0, TRANSFER_DEAD_LETTER: 0}
        # Lower bounds: 0 means "not known, look". The chores raise them.
        self.next_due: Instant = 0 if ledger.count(MAIN, SCHEDULED) else NEVER
        self.next_expiry: Instant = 0 if ledger.count(MAIN) else NEVER

    def _may_have(self, subqueue: int) -> bool:
        return self.ledger.count(subqueue) > 0

    # -- sending ---------------------------------------------------------------------------

    def send(self, messages: Sequence[Message], now: Instant) -> list[int]:
        """Store all of them or none; returns their sequence numbers."""
        if not self.policy.sends:
            raise EntityDisabled(self.name, "Send")
        size = 0
        for message in messages:
            self._check(message)
            size += message.length
        if self.ledger.size_bytes + size > self.policy.size_bytes_max:
            raise QuotaExceeded(
                f"The maximum entity size has been reached or exceeded for Queue: '{self.name}'. "
                f"Size of entity in bytes:{self.ledger.size_bytes}, "
                f"Max entity size in bytes:{self.policy.size_bytes_max}."
            )
        return [self._enqueue(message, now) for message in messages]

    def _check(self, message: Message) -> None:
        policy = self.policy
        if message.length > policy.message_size_max:
            raise MessageSizeExceeded(
                f"The received message (delivery-size: {message.length} bytes) exceeds the limit "
                f"({policy.message_size_max} bytes) currently allowed on the entity '{self.name}'."
            )
        if message.header_size > policy.header_size_max:
            raise MessageSizeExceeded(
                f"The headers of the message take {message.header_size} bytes, "
                f"{policy.header_size_max} bytes are allowed on the entity '{self.name}'."
            )
        if len(message.message_id) > ID_LENGTH_MAX:
            raise InvalidArgument(f"The MessageId is longer than {ID_LENGTH_MAX} characters.")
        if message.session_id is not None and len(message.session_id) > ID_LENGTH_MAX:
            raise InvalidArgument(f"The SessionId is longer than {ID_LENGTH_MAX} characters.")

    def _enqueue(self, message: Message, now: Instant) -> int:
        ledger = self.ledger
        default_ttl = self.policy.default_ttl_ms
        if default_ttl is not None and (message.ttl == NO_TTL or message.ttl > default_ttl):
            message.ttl = default_ttl
        raw = message.raw
        assert raw is not None
        message.number = message.enqueue_number = ledger.next_number()
        if message.enqueued_at > now:
            message.lane = SCHEDULED
            ledger.add(Kind.SCHEDULED, message, raw)
            message.raw = None
            self.next_due = min(self.next_due, message.enqueued_at)
            return message.number
        message.enqueued_at = now
        ledger.add(Kind.ENQUEUED, message, raw)
        if message.ttl >= 0:
            self.next_expiry = min(self.next_expiry, now + message.ttl)
        self.windows[MAIN].add(message)
        return message.number

    # -- receiving -------------------------------------------------------------------------

    def check_receives(self) -> None:
        if not self.policy.receives:
            raise EntityDisabled(self.name, "Receive")

    def take(self, subqueue: int, holder: int, now: Instant) -> tuple[Message, bytes] | None:
        """Lock the first ready message for `holder`; None when none can be had now."""
        message = self._first(subqueue, now)
        if message is None or message.raw is None:
            return None
        raw = message.raw
        self.lock(message, holder, now)
        self.windows[subqueue].release_body(message)
        return message, raw

    def take_and_delete(self, subqueue: int, now: Instant) -> tuple[Message, bytes] | None:
        """Remove the first ready message for good (R-SETTLE-05)."""
        message = self._first(subqueue, now)
        if message is None or message.raw is None:
            return None
        raw = message.raw
        message.delivered_at = now
        self.windows[subqueue].forget(message)
        self.ledger.remove(Kind.RECEIVED, message)
        return message, raw

    def put_back(self, message: Message, raw: bytes) -> None:
        """A message that was removed for somebody who is gone: nobody has seen it."""
        message.raw = raw
        self.ledger.add(Kind.ENQUEUED, message, raw)
        self.windows[message.subqueue].add(message)

    def _first(self, subqueue: int, now: Instant) -> Message | None:
        window = self.windows[subqueue]
        for _ in range(EXPIRED_PER_TAKE):
            message = window.head()
            if message is None:
                return None
            if message.expired(now):
                window.pop_head()
                self.expire(message)
                continue
            if message.raw is None:
                return None
            window.pop_head()
            return message
        return None

    def lock(self, message: Message, holder: int, now: Instant) -> None:
        self._issued += 1
        word = (self._issued * _SCRAMBLE & _MASK) ^ self._secret
        token = self._token_prefix + word.to_bytes(8, "big")
        message.token = token
        message.locked_until = now + self.policy.lock_ms
        message.delivered_at = now
        message.holder = holder
        self.locks[token] = message

    # -- settling --------------------------------------------------------------------------

    def complete(self, token: bytes, now: Instant) -> None:
        message = self._unlock(token, now)
        self._forget(message)
        self.ledger.remove(Kind.COMPLETED, message)

    def abandon(self, token: bytes, now: Instant, properties: bytes | None = None) -> None:
        """Back to where it was, one failed delivery more; with `properties` in place of its own."""
        message = self._unlock(token, now)
        if properties is not None:
            message.properties = properties
        self._fail(Kind.ABANDONED, message, now)

    def release(self, token: bytes, now: Instant) -> None:
        """Back unread: the count does not rise (wire contract §4.2)."""
        message = self._unlock(token, now)
        self._give_back(message, now)

    def defer(self, token: bytes, now: Instant, properties: bytes | None = None) -> None:
        """Set aside until asked for by its number. Counts as a failed delivery (semantics B §2)."""
        message = self._unlock(token, now)
        if properties is not None:
            message.properties = properties
        self._count(message)
        if self._over_count(message):
            self._dead_letter_over_count(message)
            return
        if self._over_size(message):
            self._dead_letter_over_size(message)
            return
        self._forget(message)
        if message.lane == DEFERRED:
            self.ledger.change(Kind.DEFERRED, message)
        else:
            self.ledger.move(Kind.DEFERRED, message, message.subqueue, DEFERRED, message.number)

    def dead_letter(
        self,
        token: bytes,
        now: Instant,
        reason: str | None = None,
        description: str | None = None,
        properties: bytes | None = None,
    ) -> None:
        self.check_dead_letter(self._held(token, now))
        message = self._unlock(token, now)
        if properties is not None:
            message.properties = properties
        if self._over_size(message):
            self._dead_letter_over_size(message)
        else:
            self.bury(message, reason, description)

    def check_dead_letter(self, message: Message) -> None:
        if message.subqueue != MAIN:
            # The lock stays: the message can still be completed there (semantics B §2).
            raise InvalidOperation(
                "A message in a dead-letter queue cannot be dead-lettered again."
            )

    def renew(self, token: bytes, now: Instant) -> Instant:
        message = self._held(token, now)
        message.locked_until = now + self.policy.lock_ms
        self.locks.move_to_end(token)
        return message.locked_until

    def lose(self, token: bytes, now: Instant) -> None:
        """The connection of the lock's holder broke (R-SETTLE-10): as if it had run out."""
        message = self.locks.get(token)
        if message is not None:
            self._expire_lock(message, now)

    def held(self, token: bytes, now: Instant) -> Message:
        """The message under this lock, for callers that must look at it before they settle."""
        self.check_receives()
        return self._held(token, now)

    def _held(self, token: bytes, now: Instant) -> Message:
        message = self.locks.get(token)
        if message is None or message.locked_until <= now:
            raise MessageLockLost()
        return message

    def _unlock(self, token: bytes, now: Instant) -> Message:
        self.check_receives()
        message = self._held(token, now)
        del self.locks[token]
        message.token = None
        if message.lane == DEFERRED:
            del self.deferred_locks[(message.subqueue, message.number)]
        return message

    # -- what becomes of a message ---------------------------------------------------------

    def _forget(self, message: Message) -> None:
        if message.lane == ACTIVE:
            self.windows[message.subqueue].forget(message)

    def _count(self, message: Message) -> None:
        # In a dead-letter queue the count never rises (semantics B §2).
        if message.subqueue == MAIN:
            message.delivery_count += 1

    def _over_count(self, message: Message) -> bool:
        return message.subqueue == MAIN and message.delivery_count >= self.policy.max_delivery_count

    def _fail(self, kind: Kind, message: Message, now: Instant) -> None:
        self._count(message)
        if self._over_count(message):
            self._dead_letter_over_count(message)
        elif self._over_size(message):
            self._dead_letter_over_size(message)
        else:
            self.ledger.change(kind, message)
            self._give_back(message, now)

    def _dead_letter_over_count(self, message: Message) -> None:
        self.bury(
            message,
            "MaxDeliveryCountExceeded",
            "Message could not be consumed after "
            f"{self.policy.max_delivery_count} delivery attempts.",
        )

    def _over_size(self, message: Message) -> bool:
        """Headers that grew by property changes; one that is dead already goes nowhere else."""
        return (
            message.subqueue == MAIN
            and message.properties is not None
            and len(message.properties) > self.policy.header_size_max
        )

    def _dead_letter_over_size(self, message: Message) -> None:
        self.bury(message, "HeaderSizeExceeded", "The size quota for this stream was exceeded.")

    def _give_back(self, message: Message, now: Instant) -> None:
        if message.lane == DEFERRED:
            return
        if message.expired(now):
            # Past its time already, it was only held by its lock (semantics B §3).
            self.expire(message)
            return
        self.windows[message.subqueue].give_back(message)

    def bury(self, message: Message, reason: str | None, description: str | None) -> None:
        """Move to the dead-letter subqueue. The message is not ready and not locked."""
        self._forget(message)
        message.reason, message.description = reason, description
        message.raw = None
        self.ledger.move(Kind.DEAD_LETTERED, message, DEAD_LETTER, ACTIVE, message.number)
        self.windows[DEAD_LETTER].add(message)

    def expire(self, message: Message) -> None:
        """Time to live ran out. The message is not ready and not locked."""
        if self.policy.dead_letter_on_expiry:
            self.bury(message, "TTLExpiredException", "The message expired and was dead lettered.")
        else:
            self._forget(message)
            self.ledger.remove(Kind.EXPIRED, message)

    # -- time ------------------------------------------------------------------------------

    def tick(self, now: Instant, limit: int = 1024) -> None:
        """Take back the messages whose locks ran out, a bounded number a call."""
        while self.locks and limit:
            message = next(iter(self.locks.values()))
            if message.locked_until > now:
                return
            self._expire_lock(message, now)
            limit -= 1

    def _expire_lock(self, message: Message, now: Instant) -> None:
        assert message.token is not None
        del self.locks[message.token]
        message.token = None
        if message.lane == DEFERRED:
            del self.deferred_locks[(message.subqueue, message.number)]
        self._fail(Kind.LOCK_EXPIRED, message, now)

    def next_deadline(self) -> Instant:
        """When tick() or a chore next has work, or earlier: waking for nothing is harmless."""
        deadline = self.next_due
        if self.locks:
            deadline = min(deadline, next(iter(self.locks.values())).locked_until)
        if self.receivers[MAIN]:
            # Expired messages are swept only while somebody receives (R-DLQ-06).
            deadline = min(deadline, self.next_expiry)
        return deadline

    def update(self, policy: Policy, now: Instant) -> None:
        """New properties. Every lock is lost by that, as by a restart: no delivery failed
        (R-SETTLE-10)."""
        self.policy = policy
        messages = list(self.locks.values())
        self.locks.clear()
        self.deferred_locks.clear()
        for message in messages:
            message.token = None
            self._give_back(message, now)
