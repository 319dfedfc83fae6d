"""A queue or subscription that requires sessions: what it does otherwise than a plain one.

Its active messages are in the windows of the sessions that are held, or in none. Its dead-letter
queues are plain.
"""

from postbus.broker.held_sessions import Sessions
from postbus.broker.message import ACTIVE, DEFERRED, OUTBOX, Message
from postbus.broker.policy import Policy
from postbus.broker.queue import Queue
from postbus.broker.records import RecordKind
from postbus.broker.shared_state import SharedState, is_in_session
from postbus.broker.window import Window
from postbus.errors import InvalidOperation, SessionLockLost
from postbus.model.times import Instant


class SessionQueue(Queue):
    """Everything that is about its sessions is in `sessions`."""

    __slots__ = ("_sessions",)

    def __init__(self, name: str, owner: int, policy: Policy, shared: SharedState) -> None:
        super().__init__(name, owner, policy, shared)
        self._sessions = Sessions(shared, self.main)
        self.sessions = self._sessions
        # Never used, so it must not look as if there were more to be read.
        self.windows[self.main].complete = True

    # -- where messages are ------------------------------------------------------------------

    def placed(self, message: Message) -> None:
        if message.subqueue != self.main or message.lane == OUTBOX:
            super().placed(message)
            return
        self.note_expiry(message)
        self._sessions.add(message)

    def put_back(self, message: Message, raw: bytes) -> None:
        if message.subqueue != self.main:
            super().put_back(message, raw)
            return
        message.raw = raw
        self.ledger.add(RecordKind.PUT_BACK, message, raw)
        self._sessions.add(message)

    def window_of(self, message: Message) -> Window | None:
        if message.subqueue != self.main:
            return self.windows[message.subqueue]
        return self._sessions.window_of(message.session_id)

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
            message.raw = None  # and it is read again when its session is held

    # -- locks -------------------------------------------------------------------------------

    @property
    def has_locks(self) -> bool:
        return bool(self.locks) or bool(self._sessions.held)

    def lock(self, message: Message, holder: int, now: Instant) -> None:
        if message.subqueue != self.main:
            super().lock(message, holder, now)
        elif self._sessions.lock(message, now) is None:
            raise SessionLockLost()

    def locked(self, token: bytes) -> Message | None:
        return self._sessions.locks.get(token) or self.locks.get(token)

    def renew(self, token: bytes, now: Instant) -> Instant:
        if token in self._sessions.locks:
            raise InvalidOperation(
                "A message of a session has no lock of its own: renew that of the session."
            )
        return super().renew(token, now)

    def _held(self, token: bytes, now: Instant) -> Message:
        if not is_in_session(token):
            return super()._held(token, now)
        message = self._sessions.locked(token, now)
        if message is None:
            raise SessionLockLost()
        return message

    def _unlock(self, token: bytes, now: Instant) -> Message:
        if not is_in_session(token):
            return super()._unlock(token, now)
        self.check_receives()
        self._held(token, now)
        self.check_free(token)
        message = self._sessions.unlock(token)
        message.token = None
        if message.lane == DEFERRED:
            del self.deferred_locks[(message.subqueue, message.number)]
        return message

    # -- time --------------------------------------------------------------------------------

    def tick(self, now: Instant, limit: int = 1024) -> None:
        super().tick(now, limit)
        self._sessions.expire(self, now, limit)

    def first_lock_end(self) -> Instant:
        return min(super().first_lock_end(), self._sessions.first_end())

    def update(self, policy: Policy, now: Instant) -> None:
        # No delivery failed by it, as with the locks of messages.
        for session in list(self._sessions.held.values()):
            self._sessions.lose(self, session, failed=False, now=now)
        super().update(policy, now)
