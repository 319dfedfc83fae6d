"""A queue or subscription that requires sessions: where it differs from a plain queue.

Its active messages are in the windows of held sessions, or in no window. Its dead-letter queues are
plain.
"""

from postbus.broker.held_sessions import Session, Sessions
from postbus.broker.message import ACTIVE, DEFERRED, OUTBOX, Message
from postbus.broker.policy import Policy
from postbus.broker.queue import Queue
from postbus.broker.record_kinds import RecordKind
from postbus.broker.shared_state import SharedState, is_in_session
from postbus.broker.window import Window
from postbus.errors import InvalidOperation, SessionLockLost
from postbus.model.times import Instant


class SessionQueue(Queue):
    """It has the locks of sessions beside the locks of messages."""

    __slots__ = ("all_sessions",)

    def __init__(self, name: str, owner: int, policy: Policy, shared: SharedState) -> None:
        super().__init__(name, owner, policy, shared)
        self.all_sessions = Sessions(shared, self.main)
        """The same as `sessions`, which is None in a plain queue."""
        self.sessions = self.all_sessions
        # The window is never used, so it must not look as if more could be read into it.
        self.windows[self.main].complete = True

    # -- where messages are ------------------------------------------------------------------

    def placed(self, message: Message) -> None:
        if message.subqueue != self.main or message.lane == OUTBOX:
            super().placed(message)
            return
        self.note_expiry(message)
        self.all_sessions.add(message)

    def put_back(self, message: Message, raw: bytes) -> None:
        if message.subqueue != self.main:
            super().put_back(message, raw)
            return
        message.raw = raw
        self.ledger.add(RecordKind.PUT_BACK, message, raw)
        self.all_sessions.add(message)

    def window_of(self, message: Message) -> Window | None:
        if message.subqueue != self.main:
            return self.windows[message.subqueue]
        return self.all_sessions.window_of(message.session_id)

    def _forget(self, message: Message) -> None:
        if message.lane == ACTIVE:
            window = self.window_of(message)
            if window is not None:
                window.forget(message)

    def _give_back(self, message: Message, now: Instant) -> None:
        if message.subqueue != self.main or message.lane == DEFERRED or message.expired(now):
            super()._give_back(message, now)
            return
        window = self.window_of(message)
        if window is not None:
            window.give_back(message)
        else:
            message.raw = None  # the body is read again when the session is held

    # -- locks -------------------------------------------------------------------------------

    @property
    def has_locks(self) -> bool:
        return bool(self.locks) or bool(self.all_sessions.held)

    def lock(self, message: Message, holder: int, now: Instant) -> None:
        if message.subqueue != self.main:
            super().lock(message, holder, now)
        elif self.all_sessions.lock(message, now) is None:
            raise SessionLockLost()

    def locked(self, token: bytes) -> Message | None:
        return self.all_sessions.locks.get(token) or self.locks.get(token)

    def renew(self, token: bytes, now: Instant) -> Instant:
        if token in self.all_sessions.locks:
            raise InvalidOperation(
                "A message of a session has no lock of its own: renew that of the session."
            )
        return super().renew(token, now)

    def _held(self, token: bytes, now: Instant) -> Message:
        if not is_in_session(token):
            return super()._held(token, now)
        message = self.all_sessions.locked(token, now)
        if message is None:
            raise SessionLockLost()
        return message

    def _unlock(self, token: bytes, now: Instant) -> Message:
        if not is_in_session(token):
            return super()._unlock(token, now)
        self.check_receives()
        self._held(token, now)
        self.check_free(token)
        message = self.all_sessions.unlock(token)
        message.token = None
        if message.lane == DEFERRED:
            del self.deferred_locks[(message.subqueue, message.number)]
        return message

    # -- time --------------------------------------------------------------------------------

    def tick(self, now: Instant, limit: int = 1024) -> None:
        super().tick(now, limit)
        self.expire_sessions(now, limit)

    def first_lock_end(self) -> Instant:
        return min(super().first_lock_end(), self.all_sessions.first_end())

    def update(self, policy: Policy, now: Instant) -> None:
        # No delivery failed by the update, as with the locks of messages.
        for session in list(self.all_sessions.held.values()):
            self.lose_session(session, failed=False, now=now)
        super().update(policy, now)

    # -- the end of a session ----------------------------------------------------------------

    def end_session(self, session: Session, failed: bool, now: Instant) -> None:
        """The session is free again, and its unsettled messages come back; `failed` if that counts
        as a delivery."""
        for message in self.all_sessions.close(session):
            self.end_lock(message, failed, now)

    def lose_session(self, session: Session, failed: bool, now: Instant) -> None:
        """The same, where the holder of the session does not know."""
        self.all_sessions.note_loss(session)
        self.end_session(session, failed, now)

    def expire_sessions(self, now: Instant, limit: int) -> None:
        """End the sessions whose locks ran out, until about `limit` messages have come back."""
        held = self.all_sessions.held
        while held and limit > 0:
            session = next(iter(held.values()))
            if session.locked_until > now:
                return
            limit -= 1 + len(session.locks)
            self.lose_session(session, failed=True, now=now)


def with_sessions(queue: Queue) -> SessionQueue:
    """The queue, if it requires sessions; a plain queue is refused."""
    if not isinstance(queue, SessionQueue):
        raise InvalidOperation(
            "It is not possible for an entity that doesn't require sessions to create a "
            "sessionful message receiver."
        )
    return queue
