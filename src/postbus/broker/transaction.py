"""A transaction on one fragment: its operations are checked and noted, and done at its end.

All of it is done in one call, so that it is in one commit, and a crash leaves all or nothing
(semantics B §7). So a commit first checks everything that may still be refused, and only then makes
the first change.
"""

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from postbus.broker.browse import find_scheduled
from postbus.broker.engine import Engine
from postbus.broker.index_pages import BodyPage, Need, Page, Pages, missing
from postbus.broker.message import Message, NewProperties, no_body
from postbus.broker.policy import admit
from postbus.broker.queue import Queue
from postbus.broker.record_kinds import RecordKind
from postbus.broker.rewrite_bound import Rewriting, check_together
from postbus.broker.send_via import admit_posts, post
from postbus.errors import (
    InvalidOperation,
    MessageLockLost,
    MessageNotFound,
    QuotaExceeded,
    TransactionRolledBack,
)
from postbus.model.times import Instant

MESSAGES_MAX: Final = 100
"""Messages that a transaction sends (semantics B §7)."""
SETTLEMENTS_MAX: Final = 2_048
"""Messages that it settles: as many as an AMQP session can have unsettled."""
CANCELLATIONS_MAX: Final = 2_048

Rewrite = Callable[[Message, bytes | None], NewProperties]
"""Makes the new properties of a message from itself and its body, where that is needed."""


class Verdict(Enum):
    COMPLETE = auto()
    ABANDON = auto()
    RELEASE = auto()
    DEFER = auto()
    DEAD_LETTER = auto()


class Settlement(NamedTuple):
    """The settlement of one locked message."""

    subqueue: int
    token: bytes
    verdict: Verdict
    reason: str | None = None
    description: str | None = None
    rewrite: Rewrite | None = None


class _Ruling(NamedTuple):
    """A settlement that nothing is in the way of."""

    queue: Queue
    settlement: Settlement
    properties: NewProperties | None


class Transaction:
    """Sends, settlements and cancellations that happen together or not at all."""

    __slots__ = (
        "_cancelled",
        "_over",
        "_posts",
        "_rewritten_bytes",
        "_sends",
        "_settlements",
        "message_count",
        "size_bytes",
    )

    def __init__(self) -> None:
        self._sends: list[Message] = []
        self._posts: list[tuple[int, list[Message]]] = []
        self._settlements: list[Settlement] = []
        self._cancelled: dict[int, None] = {}
        self._rewritten_bytes = 0
        self._over = False
        self.message_count = 0
        self.size_bytes = 0
        """Bytes of the messages that it sends."""

    @property
    def empty(self) -> bool:
        """Has it nothing to do?"""
        return not (self.message_count or self._settlements or self._cancelled)

    # -- asked for -----------------------------------------------------------------------------

    def send(self, engine: Engine, messages: Sequence[Message]) -> None:
        """Store these, all of them or none."""
        self._check_open(engine)
        self._check_count(messages)
        own = engine.own
        kind = "Queue" if engine.topic is None else "Topic"
        size_bytes = engine.ledger.size_bytes + self.size_bytes
        admit(kind, own.name, own.policy, size_bytes, messages)
        self._sends += messages
        self._add(engine, messages)

    def schedule(self, engine: Engine, messages: Sequence[Message]) -> list[int]:
        """As send(); returns the numbers, which hold for messages not yet due at the commit."""
        self.send(engine, messages)
        for message in messages:
            message.number = engine.ledger.next_number()
        return [message.number for message in messages]

    def post(self, engine: Engine, destination: int, messages: list[Message]) -> None:
        """Send these to another fragment."""
        self._check_open(engine)
        self._check_count(messages)
        admit_posts(engine, engine.ledger.size_bytes + self.size_bytes, messages)
        self._posts.append((destination, messages))
        self._add(engine, messages)

    def cancel(self, engine: Engine, numbers: Sequence[int], pages: Pages) -> Need | None:
        """Remove scheduled messages before they are due; all of them or none."""
        self._check_open(engine)
        if len(self._cancelled) + len(numbers) > CANCELLATIONS_MAX:
            raise QuotaExceeded(
                f"Cannot cancel more than {CANCELLATIONS_MAX} messages in a single transaction."
            )
        found = find_scheduled(engine.own, numbers, pages)
        if isinstance(found, Need):
            return found
        doubled = [number for number in numbers if number in self._cancelled]
        if doubled:
            raise MessageNotFound(
                f"Messages not found. Missing sequence numbers: {', '.join(map(str, doubled))}"
            )
        self._cancelled.update(dict.fromkeys(numbers))
        self._enlist(engine)
        return None

    def settle(self, engine: Engine, settlements: Sequence[Settlement], now: Instant) -> None:
        """Settle these messages, all of them or none. Until then they stay locked."""
        self._check_open(engine)
        if len(self._settlements) + len(settlements) > SETTLEMENTS_MAX:
            raise QuotaExceeded(
                f"Cannot settle more than {SETTLEMENTS_MAX} messages in a single transaction."
            )
        enlisted = engine.shared.enlisted
        rewritten = self._rewritten_bytes
        tokens: set[bytes] = set()
        for settlement in settlements:
            if settlement.token in enlisted or settlement.token in tokens:
                raise InvalidOperation(
                    "The message is settled in a transaction that is not over yet."
                )
            tokens.add(settlement.token)
            _, message = _held(engine, settlement, now)
            if settlement.rewrite is not None:
                rewritten += message.length
                if rewritten > message.length:
                    check_together(rewritten)
        self._rewritten_bytes = rewritten
        self._settlements += settlements
        for settlement in settlements:
            enlisted.add(settlement.token)
        self._enlist(engine)

    def _check_open(self, engine: Engine) -> None:
        if self._over:
            raise TransactionRolledBack("The transaction is over.")
        if not self.empty:
            self._check_engine(engine)

    def _check_engine(self, engine: Engine) -> None:
        """An engine that was loaded anew has no locks, and gives the same numbers to others."""
        if self not in engine.shared.transactions:
            raise TransactionRolledBack(
                f"The messaging entity '{engine.name}' was loaded again since the transaction "
                "began."
            )

    def _check_count(self, messages: Sequence[Message]) -> None:
        if self.message_count + len(messages) > MESSAGES_MAX:
            raise QuotaExceeded(
                f"Cannot send more than {MESSAGES_MAX} messages in a single transaction."
            )

    def _add(self, engine: Engine, messages: Sequence[Message]) -> None:
        self.message_count += len(messages)
        self.size_bytes += sum([message.length for message in messages])
        self._enlist(engine)

    def _enlist(self, engine: Engine) -> None:
        engine.shared.transactions[self] = None

    # -- the end -------------------------------------------------------------------------------

    def roll_back(self, engine: Engine) -> None:
        """Nothing of it happens. The messages it was to settle stay locked (semantics B §7)."""
        self._over = True
        shared = engine.shared
        if self in shared.transactions:
            self._leave(engine)

    def _leave(self, engine: Engine) -> None:
        shared = engine.shared
        del shared.transactions[self]
        for settlement in self._settlements:
            shared.enlisted.remove(settlement.token)

    def commit(self, engine: Engine, now: Instant, pages: Pages) -> Need | None:
        """Do all of it. If a part is refused, nothing has changed: roll it back then."""
        if self._over:
            raise TransactionRolledBack("The transaction is over.")
        if self.empty:
            self._over = True
            return None
        self._check_engine(engine)
        rulings = self._judge(engine, now, pages)
        if isinstance(rulings, Need):
            return rulings
        cancelled = find_scheduled(engine.own, list(self._cancelled), pages)
        if isinstance(cancelled, Need):
            return cancelled
        if self._posts:
            sent = [*self._sends, *(each for _, posted in self._posts for each in posted)]
            admit_posts(engine, engine.ledger.size_bytes, sent)
        if self._sends:
            sent_now = engine.send(self._sends, now, pages)
            if isinstance(sent_now, Need):
                return sent_now
        # From here on nothing is refused.
        self._over = True
        self._leave(engine)
        for destination, messages in self._posts:
            post(engine, destination, messages, now)
        for message in cancelled:
            engine.ledger.remove(RecordKind.CANCELLED, message)
        for ruling in rulings:
            _carry_out(ruling, now)
        return None

    def _judge(self, engine: Engine, now: Instant, pages: Pages) -> list[_Ruling] | Need:
        """Look at the settlements again: locks may have run out, and subscriptions be gone."""
        held = [_held(engine, settlement, now) for settlement in self._settlements]
        bodies: list[Page] = []
        for settlement, (_, message) in zip(self._settlements, held, strict=True):
            if settlement.rewrite is not None and _needs_body(message):
                bodies.append(BodyPage(message.base, message.position, message.length))
        if need := missing(pages, bodies):
            return need
        rulings = []
        rewriting = Rewriting()
        for settlement, (queue, message) in zip(self._settlements, held, strict=True):
            properties = None
            if settlement.rewrite is not None:
                raw = message.raw
                if _needs_body(message):
                    raw = pages.body(BodyPage(message.base, message.position, message.length))
                    if raw is None:
                        raise no_body(message)
                properties = settlement.rewrite(message, raw)
                engine.shared.toil += properties.values
                rewriting.add(properties)
                queue.check_properties(message, properties)
            rulings.append(_Ruling(queue, settlement, properties))
        return rulings


def _needs_body(message: Message) -> bool:
    """Changed properties are at hand; original properties are part of the body."""
    return message.raw is None and message.properties is None


def _held(engine: Engine, settlement: Settlement, now: Instant) -> tuple[Queue, Message]:
    queue = engine.at(settlement.subqueue)
    message = queue.held(settlement.token, now)
    if message.subqueue != settlement.subqueue:
        # A lock of another part of the entity, for which there may be no right.
        raise MessageLockLost()
    if settlement.verdict is Verdict.DEAD_LETTER:
        queue.check_dead_letter(message)
    return queue, message


def _carry_out(ruling: _Ruling, now: Instant) -> None:
    queue, settlement, properties = ruling
    token = settlement.token
    match settlement.verdict:
        case Verdict.COMPLETE:
            queue.complete(token, now)
        case Verdict.RELEASE:
            queue.release(token, now)
        case Verdict.ABANDON:
            queue.abandon(token, now, properties)
        case Verdict.DEFER:
            queue.defer(token, now, properties)
        case Verdict.DEAD_LETTER:
            queue.dead_letter(token, now, settlement.reason, settlement.description, properties)
