"""Dead letters that are sent again, or discarded, by their numbers (R-DLQ-08).

A dead letter leaves the dead-letter queue and enters its target within one call, so that both are
in one commit. A crash finds it in one of the two, and a second request for a number that is gone
changes nothing. To another fragment it goes through the outbox, as messages do that are sent
through an entity (`postbus.broker.send_via`). The caller edits its sections: the engine does not
look into messages.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from postbus.broker.bloom import digest_of
from postbus.broker.browse import RECEIVE_BYTES_MAX, by_number
from postbus.broker.engine import Engine
from postbus.broker.index_pages import BodyPage, Need, Page, Pages, missing
from postbus.broker.message import ACTIVE, DEFERRED, SCHEDULED, ForwardingInfo, Message, no_body
from postbus.broker.policy import Policy, admit
from postbus.broker.queue import Queue
from postbus.broker.record_kinds import RecordKind
from postbus.broker.send_via import admit_posts, post
from postbus.errors import InvalidOperation, ServiceBusError
from postbus.model.times import Instant

AT_ONCE: Final = 128
"""Dead letters that are worth a turn: about 4 ms, and others wait for so long."""

Revise = Callable[[Message, bytes], Message]
"""Makes the message that is sent from a dead letter and its body, or refuses to."""


class Outcome(Enum):
    """The outcome for one dead letter that a client named."""

    MOVED = "moved"
    REMOVED = "removed"
    NOT_FOUND = "not found"
    LOCKED = "locked"
    REFUSED = "refused"
    """The destination refused it, or the edit failed."""


class Result(NamedTuple):
    outcome: Outcome
    detail: str = ""
    """Why it was refused."""


class Repair(NamedTuple):
    """A dead letter that is to be sent again."""

    number: int
    revise: Revise


class ResubmitTarget:
    """Where dead letters are sent."""

    @abstractmethod
    def check(self, dead: Message, made: Message, now: Instant) -> None:
        """Raise the reason why the edited dead letter cannot go there."""

    @abstractmethod
    def place(self, made: Message, now: Instant) -> None:
        """Put it there. It was checked, and its dead letter is gone."""


class Back(ResubmitTarget):
    """Into the queue or subscription that the dead letters belong to."""

    def __init__(self, queue: Queue, own: Queue) -> None:
        """`own` is the queue or topic of the fragment, which sets the size limits."""
        self._queue = queue
        self._kind = "Queue" if queue is own else "Topic"
        self._policy = queue.policy._replace(
            size_bytes_max=own.policy.size_bytes_max, message_size_max=own.policy.message_size_max
        )

    def check(self, dead: Message, made: Message, now: Instant) -> None:
        queue = self._queue
        if made.enqueued_at > now and self._kind == "Topic":
            raise InvalidOperation(
                f"Messages cannot be scheduled at the subscription '{queue.name}'."
            )
        size_bytes = _size_without(queue, dead, made)
        admit(self._kind, queue.name, self._policy, size_bytes, [made])

    def place(self, made: Message, now: Instant) -> None:
        queue, raw = self._queue, made.raw
        assert raw is not None
        queue.limit_ttl(made)
        made.number = made.enqueue_number = queue.ledger.next_number()
        # Its id was seen when it first came, so its record is of a kind that carries no id.
        if made.enqueued_at > now:
            made.lane = SCHEDULED
            made.trail = _sent_again(made)  # the queue may forward by then
            queue.ledger.add(RecordKind.PUT_BACK, made, raw)
            made.raw = None
            queue.next_due = min(queue.next_due, made.enqueued_at)
            return
        made.enqueued_at = now
        if queue.policy.forward_to is not None:
            made.trail = _sent_again(made)
        queue.route(made)
        queue.ledger.add(RecordKind.PUT_BACK, made, raw)
        queue.placed(made)


class Published(ResubmitTarget):
    """To the topic itself: every subscription that wants the message gets a copy."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def check(self, dead: Message, made: Message, now: Instant) -> None:
        own = self._engine.own
        size_bytes = own.ledger.size_bytes - dead.charge
        admit("Topic", own.name, own.policy, size_bytes, [made])

    def place(self, made: Message, now: Instant) -> None:
        topic, history = self._engine.topic, self._engine.ledger.history
        assert topic is not None
        made.trail = _sent_again(made)
        topic.store([made], now)
        if history is not None and made.message_id:
            history.note(digest_of(made.message_id), now)


class Posted(ResubmitTarget):
    """To another queue or topic, by way of the outbox."""

    def __init__(
        self, engine: Engine, destination: int, kind: str, name: str, policy: Policy
    ) -> None:
        """A fragment, and the policy of the entity there; `kind` is Queue or Topic."""
        self._engine = engine
        self._destination = destination
        self._kind = kind
        self._name = name
        self._policy = policy

    def check(self, dead: Message, made: Message, now: Instant) -> None:
        # The destination checks its room when the message arrives; a full destination is waited
        # for.
        admit(self._kind, self._name, self._policy, 0, [made])
        admit_posts(self._engine, _size_without(self._engine.own, dead, made), [made])

    def place(self, made: Message, now: Instant) -> None:
        made.trail = _sent_again(made)
        post(self._engine, self._destination, [made], now)


def _sent_again(made: Message) -> ForwardingInfo:
    trail = ForwardingInfo(made.length)
    trail.again = True
    return trail


def _size_without(queue: Queue, dead: Message, made: Message) -> int:
    """The size of the entity without a dead letter. A message that does not grow always fits:
    otherwise a queue full of dead letters could not be repaired by sending them again."""
    return 0 if made.length <= dead.charge else queue.ledger.size_bytes - dead.charge


def resubmit(
    queue: Queue,
    subqueue: int,
    repairs: Sequence[Repair],
    target: ResubmitTarget,
    now: Instant,
    pages: Pages,
    enough: Callable[[], bool] | None = None,
) -> list[Result] | Need:
    """Send these dead letters again, each by itself; returns the results of the first ones. These
    are as many as have bodies that fit into memory together, up to `enough` work for a turn."""
    found = _find(queue, subqueue, [repair.number for repair in repairs], pages)
    if isinstance(found, Need):
        return found
    bodies = _bodies(found, pages)
    if isinstance(bodies, Need):
        return bodies
    results: list[Result] = []
    gone: set[int] = set()
    for repair, dead, body in zip(repairs, found, bodies, strict=False):
        if isinstance(dead, Outcome):
            results.append(Result(dead))
            continue
        if dead.number in gone:
            results.append(Result(Outcome.NOT_FOUND))  # it was named twice
            continue
        assert body is not None
        if enough is not None and enough():
            break
        try:
            made = repair.revise(dead, body)
            target.check(dead, made, now)
        except ServiceBusError as refusal:
            results.append(Result(Outcome.REFUSED, str(refusal)))
            continue
        gone.add(dead.number)
        _take_out(queue, RecordKind.RESUBMITTED, dead)
        target.place(made, now)
        results.append(Result(Outcome.MOVED))
    return results


def discard(
    queue: Queue, subqueue: int, numbers: Sequence[int], pages: Pages
) -> list[Result] | Need:
    """Remove these dead letters for good, each by itself."""
    found = _find(queue, subqueue, numbers, pages)
    if isinstance(found, Need):
        return found
    results: list[Result] = []
    gone: set[int] = set()
    for dead in found:
        if isinstance(dead, Outcome):
            results.append(Result(dead))
        elif dead.number in gone:
            results.append(Result(Outcome.NOT_FOUND))
        else:
            gone.add(dead.number)
            _take_out(queue, RecordKind.DELETED, dead)
            results.append(Result(Outcome.REMOVED))
    return results


def _take_out(queue: Queue, kind: RecordKind, dead: Message) -> None:
    if dead.lane == ACTIVE:
        queue.withdraw(dead)
    queue.ledger.remove(kind, dead)


def _find(
    queue: Queue, subqueue: int, numbers: Sequence[int], pages: Pages
) -> list[Message | Outcome] | Need:
    """The dead letters with these numbers, or the reason why there is none."""
    active = by_number(queue, subqueue, ACTIVE, numbers, pages)
    if isinstance(active, Need):
        return active
    messages = active
    if queue.ledger.count(subqueue, DEFERRED):
        deferred = by_number(queue, subqueue, DEFERRED, numbers, pages)
        if isinstance(deferred, Need):
            return deferred
        messages = [one or other for one, other in zip(active, deferred, strict=True)]
    found: list[Message | Outcome] = []
    for message in messages:
        if message is None:
            found.append(Outcome.NOT_FOUND)
        elif message.token is not None:
            found.append(Outcome.LOCKED)
        else:
            found.append(message)
    return found


def _bodies(found: Sequence[Message | Outcome], pages: Pages) -> list[bytes | None] | Need:
    """The bodies of the first dead letters, as many as go together; None without a body."""
    bytes_left = RECEIVE_BYTES_MAX
    chosen: list[Message | None] = []
    for each in found:
        message = each if isinstance(each, Message) else None
        if message is not None:
            if bytes_left < RECEIVE_BYTES_MAX and message.length > bytes_left:
                break
            bytes_left -= message.length
        chosen.append(message)
    absent: list[Page] = [
        _body_page(message) for message in chosen if message is not None and message.raw is None
    ]
    if need := missing(pages, absent):
        return need
    return [None if message is None else _body_of(message, pages) for message in chosen]


def _body_page(message: Message) -> BodyPage:
    return BodyPage(message.base, message.position, message.length)


def _body_of(message: Message, pages: Pages) -> bytes:
    raw = message.raw
    if raw is None:
        raw = pages.body(_body_page(message))
    if raw is None:
        raise no_body(message)
    return raw
