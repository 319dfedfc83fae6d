"""One queue, or one subscription: send, take, settle, and the work that is due by the clock.

Pure: time comes in as `now`, lock tokens come from an injected secret, and every lasting change is
a record of the ledger. Calls that need the store are in `browse` (for clients) and in `chores`
(work that nobody asked for).
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from postbus.broker.destination import Destination
from postbus.broker.held_sessions import Session, Sessions
from postbus.broker.ledger import Ledger
from postbus.broker.message import (
    ACTIVE,
    DEFERRED,
    NO_TTL,
    OUTBOX,
    SCHEDULED,
    ForwardingInfo,
    Message,
    NewProperties,
)
from postbus.broker.outbox import Outbox
from postbus.broker.policy import Policy, admit
from postbus.broker.record_kinds import RecordKind
from postbus.broker.shared_state import SharedState
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER, subqueue_of
from postbus.broker.window import Window
from postbus.errors import (
    EntityDisabled,
    InvalidOperation,
    MessageLockLost,
    MessageSizeExceeded,
)
from postbus.model.limits import FEW_HEADER_BYTES, HEADER_VALUES_MAX
from postbus.model.times import NEVER, Instant

EXPIRED_PER_TAKE: Final = 64
HOPS_MAX: Final = 4
"""A message is forwarded this often at most (semantics B §8)."""
HOPS_EXCEEDED: Final = "MaxTransferHopCountExceeded"
HEADERS_TOO_LARGE: Final = "HeaderSizeExceeded", "The size quota for this stream was exceeded."

Taken = tuple[Message, bytes]


class Queue:
    """A queue, or a subscription of a topic, within the engine of its fragment."""

    __slots__ = (
        "_aimed",
        "dead_letters",
        "deferred_locks",
        "diverted_to",
        "diverts_up_to",
        "ledger",
        "locks",
        "main",
        "name",
        "next_due",
        "next_expiry",
        "owner",
        "policy",
        "receivers",
        "sessions",
        "shared",
        "tries_refused",
        "windows",
    )

    def __init__(self, name: str, owner: int, policy: Policy, shared: SharedState) -> None:
        self.name = name
        self.owner = owner
        self.policy = policy
        self.ledger: Ledger = shared.ledger
        self.shared = shared
        self.main = subqueue_of(owner, MAIN)
        self.dead_letters = subqueue_of(owner, DEAD_LETTER)
        # In order of expiry: every lock of a queue lasts equally long, and renewing moves to
        # the end.
        self.locks: OrderedDict[bytes, Message] = OrderedDict()
        self.deferred_locks: dict[tuple[int, int], Message] = {}
        self.windows = {
            subqueue: Window(
                shared.budget, self.ledger.count(subqueue) == 0, subqueue, shared.ready_subqueues
            )
            for subqueue in self.subqueues
        }
        self.diverted_to = 0
        """Dead letters with lower numbers were sent on, or may not go on (`forwarding.divert`)."""
        self.diverts_up_to = self.ledger.last_number
        """Later messages have higher numbers: they went straight on, or were refused and stay."""
        self._aimed = 0
        """Messages that were given a destination. Without a key they take turns there."""
        self.tries_refused = False
        """Dead letters that were refused are sent once more: after an update, not after a load."""
        self.receivers = dict.fromkeys(self.subqueues, 0)
        self.sessions: Sessions | None = None
        """The sessions of its main subqueue, if it requires sessions (`SessionQueue`)."""
        # Lower bounds: 0 means "not known, look". The chores raise them.
        self.next_due: Instant = 0 if self.ledger.count(self.main, SCHEDULED) else NEVER
        self.next_expiry: Instant = 0 if self.ledger.count(self.main) else NEVER
        self._note_forwarding()

    @property
    def subqueues(self) -> tuple[int, int, int]:
        return self.main, self.dead_letters, subqueue_of(self.owner, TRANSFER_DEAD_LETTER)

    def _note_forwarding(self) -> None:
        policy = self.policy
        if policy.forward_to is None and policy.forward_dead_letters_to is None:
            self.shared.diverting.pop(self.owner, None)
        else:
            self.shared.diverting[self.owner] = None

    # -- sending ---------------------------------------------------------------------------

    def send(self, messages: Sequence[Message], now: Instant) -> list[int]:
        """Store all of them or none; returns their sequence numbers."""
        admit("Queue", self.name, self.policy, self.ledger.size_bytes, messages)
        return self.store(messages, now)

    def store(self, messages: Sequence[Message], now: Instant) -> list[int]:
        """The same once they are admitted: nothing is refused."""
        return [self._enqueue(message, now) for message in messages]

    def _enqueue(self, message: Message, now: Instant) -> int:
        ledger = self.ledger
        self.limit_ttl(message)
        raw = message.raw
        assert raw is not None
        if message.enqueued_at > now:
            self.schedule(message)
            return message.number
        message.number = message.enqueue_number = ledger.next_number()
        message.enqueued_at = now
        self.route(message)
        ledger.add(RecordKind.ENQUEUED, message, raw)
        self.placed(message)
        return message.number

    def schedule(self, message: Message) -> None:
        """Keep a message until it is due."""
        raw = message.raw
        assert raw is not None
        # A transaction has promised the number to the client that scheduled the message.
        message.number = message.enqueue_number = message.number or self.ledger.next_number()
        message.lane = SCHEDULED
        self.ledger.add(RecordKind.SCHEDULED, message, raw)
        message.raw = None
        self.next_due = min(self.next_due, message.enqueued_at)

    def limit_ttl(self, message: Message) -> None:
        default_ttl = self.policy.default_ttl_ms
        if default_ttl is not None and (message.ttl == NO_TTL or message.ttl > default_ttl):
            message.ttl = default_ttl

    def activate(self, message: Message, number: int) -> None:
        """A scheduled message has come due."""
        message.lane = ACTIVE
        self.route(message)
        subqueue, lane = message.subqueue, message.lane
        message.subqueue, message.lane = self.main, SCHEDULED
        self.ledger.move(RecordKind.ACTIVATED, message, subqueue, lane, number)
        self.placed(message)

    def route(self, message: Message) -> None:
        """Choose subqueue and lane of a message that comes in. Where the queue forwards, that is
        its outbox, under the number that the message has just been given."""
        message.subqueue = self.main
        destination = self.policy.forward_to
        if destination is None:
            return
        trail = message.trail
        if trail is None:
            trail = message.trail = ForwardingInfo(message.length)
        if trail.hops >= HOPS_MAX:
            message.subqueue = self.dead_letters
            message.reason = HOPS_EXCEEDED
            return
        trail.destination = self.aim(destination, message)
        message.lane = OUTBOX

    def route_dead_letter(self, message: Message, reason: str, description: str) -> None:
        """The same for a message that is a dead letter when it comes in."""
        message.subqueue = self.dead_letters
        message.reason, message.description = reason, description
        if self.passes_on(message):
            message.lane = OUTBOX

    def passes_on(self, message: Message) -> bool:
        """Does this dead letter go on to another entity? If so, it now says where it comes from."""
        destination = self.policy.forward_dead_letters_to
        if destination is None or message.reason == HOPS_EXCEEDED:
            return False
        trail = message.trail
        if trail is None:
            trail = message.trail = ForwardingInfo(message.length)
        if trail.hops >= HOPS_MAX:
            return False
        trail.destination = self.aim(destination, message)
        message.source = self.name
        return True

    def aim(self, destination: Destination, message: Message) -> int:
        """The fragment that the message goes to for good. The destination knows by numbers which
        messages of an outbox have arrived: behind a later one, this one would count as such."""
        self._aimed += 1
        return destination.fragment_for(message, self._aimed)

    def placed(self, message: Message) -> None:
        """The record of a routed message is written: receivers may take it, or it goes on."""
        if message.lane == OUTBOX:
            message.raw = None
            if message.subqueue not in self.shared.outboxes:
                self.shared.outboxes[message.subqueue] = Outbox(message.number)
            self.shared.outboxes_with_work[message.subqueue] = None
            return
        if message.subqueue == self.main:
            self.note_expiry(message)
        self.windows[message.subqueue].add(message)

    def note_expiry(self, message: Message) -> None:
        """Have the message swept when its time is over, if somebody receives then."""
        expires_at = message.enqueued_at + message.ttl
        if message.ttl >= 0 and expires_at < self.next_expiry:
            self.next_expiry = expires_at
            self.shared.expiring[self.owner] = None

    def stir(self, subqueue: int) -> None:
        """Have the next turn look at the receivers that wait at a subqueue."""
        self.shared.ready_subqueues[subqueue] = None

    # -- receiving -------------------------------------------------------------------------

    def forwards(self, subqueue: int) -> bool:
        """Is the broker the only receiver of this subqueue (semantics B §8)?"""
        policy = self.policy
        if subqueue == self.main:
            return policy.forward_to is not None
        return subqueue == self.dead_letters and policy.forward_dead_letters_to is not None

    def check_receives(self) -> None:
        if not self.policy.receives:
            raise EntityDisabled(self.name, "Receive")

    def take(self, subqueue: int, holder: int, now: Instant) -> Taken | None:
        """Lock the first ready message for `holder`; None when no message is ready now."""
        return self._take(self.windows[subqueue], holder, now)

    def take_in_session(self, session: Session, now: Instant) -> Taken | None:
        """The same within a session; None also when the session is lost."""
        return self._take(session.window, session.holder, now) if session.holds(now) else None

    def take_and_delete(self, subqueue: int, now: Instant) -> Taken | None:
        """Remove the first ready message for good (R-SETTLE-05)."""
        return self._take_and_delete(self.windows[subqueue], now)

    def take_and_delete_in_session(self, session: Session, now: Instant) -> Taken | None:
        return self._take_and_delete(session.window, now) if session.holds(now) else None

    def _take(self, window: Window, holder: int, now: Instant) -> Taken | None:
        message = self._first(window, now)
        if message is None or message.raw is None:
            return None
        raw = message.raw
        self.lock(message, holder, now)
        window.release_body(message)
        return message, raw

    def _take_and_delete(self, window: Window, now: Instant) -> Taken | None:
        message = self._first(window, now)
        if message is None or message.raw is None:
            return None
        raw = message.raw
        message.delivered_at = now
        window.forget(message)
        self.ledger.remove(RecordKind.RECEIVED, message)
        return message, raw

    def _first(self, window: Window, now: Instant) -> Message | None:
        """Take the first message that has its body and has not expired out of a window."""
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

    def put_back(self, message: Message, raw: bytes) -> None:
        """Return a message that was removed for a receiver which is gone: nobody has seen it."""
        message.raw = raw
        self.ledger.add(RecordKind.PUT_BACK, message, raw)
        self.windows[message.subqueue].add(message)

    def lock(self, message: Message, holder: int, now: Instant) -> None:
        shared = self.shared
        token = shared.next_token()
        message.token = token
        message.locked_until = now + self.policy.lock_ms
        message.delivered_at = now
        message.holder = holder
        self.locks[token] = message
        shared.locked[self.owner] = None

    # -- settling --------------------------------------------------------------------------

    def complete(self, token: bytes, now: Instant) -> None:
        message = self._unlock(token, now)
        self._forget(message)
        self.ledger.remove(RecordKind.COMPLETED, message)

    def abandon(self, token: bytes, now: Instant, properties: NewProperties | None = None) -> None:
        """Return it to its place with one more failed delivery, and with `properties` if given."""
        self.check_properties(self._held(token, now), properties)
        message = self._unlock(token, now)
        if self._change(message, properties):
            self._fail(RecordKind.ABANDONED, message, now)

    def release(self, token: bytes, now: Instant) -> None:
        """Back unread: the count does not rise (wire §4.2)."""
        message = self._unlock(token, now)
        self._give_back(message, now)

    def defer(self, token: bytes, now: Instant, properties: NewProperties | None = None) -> None:
        """Set aside until asked for by its number. Counts as a failed delivery (semantics B §2)."""
        self.check_properties(self._held(token, now), properties)
        message = self._unlock(token, now)
        if not self._change(message, properties):
            return
        self._count(message)
        if self._over_count(message):
            self._dead_letter_over_count(message)
            return
        self._forget(message)
        if message.lane == DEFERRED:
            self.ledger.change(RecordKind.DEFERRED, message)
        else:
            self.ledger.move(
                RecordKind.DEFERRED, message, message.subqueue, DEFERRED, message.number
            )

    def dead_letter(
        self,
        token: bytes,
        now: Instant,
        reason: str | None = None,
        description: str | None = None,
        properties: NewProperties | None = None,
    ) -> None:
        self.check_dead_letter(self._held(token, now))
        message = self._unlock(token, now)
        if self._change(message, properties):
            self.move_to_dead_letters(message, reason, description)

    def check_dead_letter(self, message: Message) -> None:
        if message.subqueue != self.main:
            # The lock stays: the message can still be completed there (semantics B §2).
            raise InvalidOperation(
                "A message in a dead-letter queue cannot be dead-lettered again."
            )

    def check_properties(self, message: Message, properties: NewProperties | None) -> None:
        """Raise the reason why a message cannot have these properties. In the main subqueue it
        becomes a dead letter instead. A dead letter goes nowhere else: it stays, and locked."""
        if message.subqueue != self.main and self._too_large(properties):
            assert properties is not None
            raise MessageSizeExceeded(
                f"The headers of the message would take {properties.header_size} bytes, "
                f"{self.policy.header_size_max} bytes are allowed on the entity '{self.name}' "
                f"({HEADER_VALUES_MAX} values in more than {FEW_HEADER_BYTES} bytes), and "
                "a message in a dead-letter queue cannot be dead-lettered again."
            )

    def renew(self, token: bytes, now: Instant) -> Instant:
        message = self._held(token, now)
        message.locked_until = now + self.policy.lock_ms
        self.locks.move_to_end(token)
        return message.locked_until

    def lose(self, token: bytes, now: Instant) -> None:
        """The connection of the lock's holder broke (R-SETTLE-10): the lock counts as run out."""
        message = self.locks.get(token)
        if message is not None:
            self._expire_lock(message, now)

    def held(self, token: bytes, now: Instant) -> Message:
        """The message under this lock, for callers that must look at it before they settle."""
        self.check_receives()
        return self._held(token, now)

    def locked(self, token: bytes) -> Message | None:
        """The message with this lock, if there is one; the lock may have run out."""
        return self.locks.get(token)

    @property
    def has_locks(self) -> bool:
        return bool(self.locks)

    def _held(self, token: bytes, now: Instant) -> Message:
        message = self.locks.get(token)
        if message is None or message.locked_until <= now:
            raise MessageLockLost()
        return message

    def check_free(self, token: bytes) -> None:
        """Raise the reason where a transaction has this message, which will settle it or not."""
        if token in self.shared.enlisted:
            raise InvalidOperation("The message is settled in a transaction that is not over yet.")

    def _unlock(self, token: bytes, now: Instant) -> Message:
        self.check_receives()
        message = self._held(token, now)
        self.check_free(token)
        del self.locks[token]
        message.token = None
        if message.lane == DEFERRED:
            del self.deferred_locks[(message.subqueue, message.number)]
        return message

    # -- outcomes -------------------------------------------------------------------------

    def _forget(self, message: Message) -> None:
        if message.lane == ACTIVE:
            self.windows[message.subqueue].forget(message)

    def _count(self, message: Message) -> None:
        # In a dead-letter queue the count never rises (semantics B §2).
        if message.subqueue == self.main:
            message.delivery_count += 1

    def _over_count(self, message: Message) -> bool:
        return (
            message.subqueue == self.main
            and message.delivery_count >= self.policy.max_delivery_count
        )

    def _fail(self, kind: RecordKind, message: Message, now: Instant) -> None:
        self._count(message)
        if self._over_count(message):
            self._dead_letter_over_count(message)
        else:
            self.ledger.change(kind, message)
            self._give_back(message, now)

    def _dead_letter_over_count(self, message: Message) -> None:
        self.move_to_dead_letters(
            message,
            "MaxDeliveryCountExceeded",
            "Message could not be consumed after "
            f"{self.policy.max_delivery_count} delivery attempts.",
        )

    def _change(self, message: Message, properties: NewProperties | None) -> bool:
        """Put the properties in place of the message's own. Where they are too large it becomes a
        dead letter without them, and nothing is left to settle."""
        if self._too_large(properties):
            self.move_to_dead_letters(message, *HEADERS_TOO_LARGE)
            return False
        if properties is not None:
            message.properties, message.header_size = properties.section, properties.header_size
        return True

    def _too_large(self, properties: NewProperties | None) -> bool:
        if properties is None:
            return False
        size = properties.header_size
        # Each of them has a name and a value.
        many = size > FEW_HEADER_BYTES and 2 * properties.values > HEADER_VALUES_MAX
        return many or size > self.policy.header_size_max

    def _give_back(self, message: Message, now: Instant) -> None:
        if message.lane == DEFERRED:
            return
        if message.expired(now):
            # Past its time already, it was only held by its lock (semantics B §3).
            self.expire(message)
            return
        self.windows[message.subqueue].give_back(message)

    def move_to_dead_letters(
        self, message: Message, reason: str | None, description: str | None
    ) -> None:
        """Move to the dead-letter subqueue. The message is not ready and not locked."""
        self._forget(message)
        message.reason, message.description = reason, description
        message.raw = None
        lane, number = ACTIVE, message.number
        if self.passes_on(message):
            # In the order in which they leave, so under new numbers.
            lane, number = OUTBOX, self.ledger.next_number()
        self.ledger.move(RecordKind.DEAD_LETTERED, message, self.dead_letters, lane, number)
        self.placed(message)

    def expire(self, message: Message) -> None:
        """Time to live ran out. The message is not ready and not locked."""
        if self.policy.dead_letter_on_expiry:
            self.move_to_dead_letters(
                message, "TTLExpiredException", "The message expired and was dead lettered."
            )
        else:
            self._forget(message)
            self.ledger.remove(RecordKind.EXPIRED, message)

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
        self.end_lock(message, True, now)

    def end_lock(self, message: Message, failed: bool, now: Instant) -> None:
        """A lock that is no longer among the others ended: did a delivery fail by that?"""
        message.token = None
        if message.lane == DEFERRED:
            del self.deferred_locks[(message.subqueue, message.number)]
        if failed:
            self._fail(RecordKind.LOCK_EXPIRED, message, now)
        else:
            self._give_back(message, now)

    def first_lock_end(self) -> Instant:
        """When the first of its locks runs out."""
        return next(iter(self.locks.values())).locked_until if self.locks else NEVER

    def withdraw(self, message: Message) -> None:
        """An active message that is not locked leaves; its turn may have been anywhere."""
        window = self.window_of(message)
        if window is not None and message.number in window.live:
            window.withdraw(message)

    def window_of(self, message: Message) -> Window | None:
        """Where an active message is, if it is in memory at all."""
        return self.windows[message.subqueue]

    def itself(self, read: Message) -> Message:
        """The message that a copy was read of from the index, where the engine has it."""
        if read.lane == ACTIVE:
            window = self.window_of(read)
            return read if window is None else window.live.get(read.number, read)
        return self.deferred_locks.get((read.subqueue, read.number), read)

    def update(self, policy: Policy, now: Instant) -> None:
        """New properties. Every lock is lost by that, as by a restart: no delivery failed
        (R-SETTLE-10)."""
        self.policy = policy
        history, window_ms = self.ledger.history, policy.duplicate_window_ms
        if history is not None and window_ms is not None:
            history.set_window(window_ms)
        self.diverted_to, self.diverts_up_to = 0, self.ledger.last_number
        self.tries_refused = True
        self._note_forwarding()
        messages = list(self.locks.values())
        self.locks.clear()
        self.deferred_locks.clear()
        for message in messages:
            message.token = None
            self._give_back(message, now)
        for subqueue in self.subqueues:
            self.stir(subqueue)  # it may receive now and not have done so before
