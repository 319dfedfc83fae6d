"""Messages on their way to another entity: out of an outbox here, past a mark there.

A message that is to be forwarded is in the lane OUTBOX, under a number that gives the order of
leaving. It is sent unchanged, as often as it takes. The destination stores the last number that
arrived from each outbox in the same commit as the message. So the message arrives once, whichever
side crashes. When it has arrived, the source removes it.

If a destination refuses a message, it becomes a dead letter of its source before the next message
is sent. Otherwise the mark would pass a message that has not arrived. An outbox of messages that
were sent through an entity (`postbus.broker.send_via`) has several destinations. A full destination
must not keep the others waiting.
"""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from postbus.broker.bloom import digest_of
from postbus.broker.browse import by_number
from postbus.broker.destination import NOWHERE
from postbus.broker.duplicate_history import History
from postbus.broker.duplicates import digests_of, drop, lookup, repeated
from postbus.broker.engine import Engine
from postbus.broker.index_pages import BodyPage, LanePage, Need, Page, Pages, missing
from postbus.broker.lane_reading import first_messages
from postbus.broker.message import ACTIVE, OUTBOX, SCHEDULED, ForwardingInfo, Message, no_body
from postbus.broker.outbox import destination_of
from postbus.broker.policy import admit
from postbus.broker.queue import HOPS_EXCEEDED, HOPS_MAX, Queue
from postbus.broker.record_kinds import RecordKind
from postbus.broker.send_via import is_posted
from postbus.broker.subqueue_numbers import owner_of
from postbus.errors import EntityDisabled, ServiceBusError
from postbus.model.times import NEVER, Instant

SHIPPED_AT_ONCE: Final = 256
SHIPPED_BYTES: Final = 1 << 20
DIVERTED_AT_ONCE: Final = 256
SUBQUEUE_BITS: Final = 32


class ForwardBatch(NamedTuple):
    """Messages that leave together for one destination; empty while the search goes on."""

    destination: int
    messages: list[tuple[Message, bytes]]


class ForwardResult(NamedTuple):
    """The result of a batch: how many messages arrived, and why the next was refused, if it was."""

    arrived: int
    refusal: ServiceBusError | None


def outbox_id(fragment: int, subqueue: int) -> int:
    """The outbox of a fragment as a number. Marks are kept by this number."""
    return fragment << SUBQUEUE_BITS | subqueue


def outbox_of(origin: int) -> tuple[int, int]:
    """The fragment and the subqueue of a number that `outbox_id` made."""
    return origin >> SUBQUEUE_BITS, origin & (1 << SUBQUEUE_BITS) - 1


def collect(
    engine: Engine,
    subqueue: int,
    now: Instant,
    pages: Pages,
    passed_over: Collection[int] = (),
) -> ForwardBatch | Need | None:
    """The next messages in an outbox, without the destinations in `passed_over`; None if there are
    none. A call looks at one page of the outbox, and remembers how far it has come. If the page has
    nothing to send but more may follow, the batch is empty."""
    if owner_of(subqueue) not in engine.queues:
        engine.shared.outboxes.pop(subqueue, None)
        return None  # its subscription is gone, and a chore removes the rest
    outbox = engine.shared.outboxes.get(subqueue)
    if outbox is None:
        return None
    turn = outbox.whose_turn(passed_over)
    start = outbox.start if turn is None else outbox.lags[turn].number
    page = LanePage(subqueue, OUTBOX, start, SHIPPED_AT_ONCE)
    if page not in pages:
        return Need((page,))
    rows, delta = pages.rows(page), engine.ledger.delta
    messages, end = delta.over_lane(rows, subqueue, OUTBOX, start, SHIPPED_AT_ONCE)
    leaving = outbox.leaving(turn, messages, passed_over)
    shipped = _with_bodies(leaving, pages)
    if isinstance(shipped, Need):
        return shipped
    outbox.looked_at(turn, messages, end, leaving[0] if leaving else None)
    if leaving:
        return ForwardBatch(destination_of(leaving[0]), shipped)
    if end is not None or turn is not None or outbox.whose_turn(passed_over) is not None:
        return ForwardBatch(NOWHERE, [])
    if not engine.ledger.count(subqueue, OUTBOX):
        engine.shared.outboxes.pop(subqueue, None)
    return None


def _with_bodies(messages: Sequence[Message], pages: Pages) -> list[tuple[Message, bytes]] | Need:
    """As many of the messages as go together, with their bodies."""
    chosen: list[tuple[Message, BodyPage]] = []
    bytes_left = SHIPPED_BYTES
    for message in messages:
        bytes_left -= message.length
        if chosen and bytes_left < 0:
            break
        chosen.append((message, BodyPage(message.base, message.position, message.length)))
    bodies: list[Page] = [body for _, body in chosen]
    if need := missing(pages, bodies):
        return need
    shipped: list[tuple[Message, bytes]] = []
    for message, body in chosen:
        raw = pages.body(body)
        if raw is None:
            raise no_body(message)
        shipped.append((message, raw))
    return shipped


def accept(
    engine: Engine,
    origin: int,
    messages: Sequence[tuple[Message, bytes]],
    now: Instant,
    pages: Pages | None = None,
) -> ForwardResult | Need:
    """Take messages from an outbox, in order, up to the first that cannot be taken."""
    engine.ledger.outdated.discard(origin)
    mark = engine.ledger.marks.get(origin, -1)
    history = engine.ledger.history
    if history is not None:
        new = [sent for sent, _ in messages if sent.number > mark]
        if need := lookup(history, digests_of(new), now, pages):
            return need
    arrived = 0
    for sent, raw in messages:
        if sent.number > mark:
            try:
                if (
                    history is None
                    or _is_sent_again(sent)
                    or not _drops(engine, history, origin, sent, now, pages)
                ):
                    _take_in(engine, origin, sent, raw, now)
            except ServiceBusError as refusal:
                return ForwardResult(arrived, refusal)
        arrived += 1
    return ForwardResult(arrived, None)


def _is_sent_again(sent: Message) -> bool:
    return sent.trail is not None and sent.trail.again


def _drops(
    engine: Engine,
    history: History,
    origin: int,
    sent: Message,
    now: Instant,
    pages: Pages | None,
) -> bool:
    """Has this entity seen the id already? Then the message counts as arrived, and is dropped."""
    own = engine.own
    if not own.policy.sends:
        raise EntityDisabled(own.name, "Send")
    digests = digests_of([sent])
    if not repeated(history, digests, now, pages)[0]:
        return False
    trail = ForwardingInfo(0)
    trail.origin, trail.origin_number = origin, sent.number
    drop(own, sent, now, trail)
    return True


def _take_in(engine: Engine, origin: int, sent: Message, raw: bytes, now: Instant) -> None:
    own = engine.own
    made = Message(raw, sent.message_id, sent.session_id, sent.ttl, now, sent.header_size)
    kind = "Queue" if engine.topic is None else "Topic"
    admit(kind, own.name, own.policy, engine.ledger.size_bytes, [made])
    trail = ForwardingInfo(made.length) if sent.trail is None else sent.trail.next_leg(made.length)
    if not is_posted(sent.subqueue):
        trail.hops += 1  # the way from where it was sent through is none
    trail.origin, trail.origin_number = origin, sent.number
    made.trail = trail
    made.partition_key = sent.partition_key
    made.properties, made.source = sent.properties, sent.source
    made.reason, made.description = sent.reason, sent.description
    made.number = engine.ledger.next_number()
    # The first number it was ever given stays with it (semantics B §8).
    made.enqueue_number = sent.enqueue_number
    own.limit_ttl(made)
    if engine.ledger.history is not None and made.message_id:
        engine.ledger.history.note(digest_of(made.message_id), now)
    if is_posted(sent.subqueue) and sent.enqueued_at > now:
        made.enqueued_at, made.lane = sent.enqueued_at, SCHEDULED
        engine.ledger.arrive(made, raw)
        made.raw = None
        own.next_due = min(own.next_due, made.enqueued_at)
        return
    if engine.topic is not None:
        engine.topic.arrive(made, now)
        return
    own.route(made)
    engine.ledger.arrive(made, raw)
    own.placed(made)


def shipped(engine: Engine, subqueue: int, numbers: Sequence[int], pages: Pages) -> Need | None:
    """These messages have arrived: remove them here."""
    messages = _in_outbox(engine, subqueue, numbers, pages)
    if isinstance(messages, Need):
        return messages
    for message in messages:
        engine.ledger.remove(RecordKind.FORWARDED, message)
    return None


def returned(
    engine: Engine, subqueue: int, number: int, refusal: ServiceBusError, pages: Pages
) -> Need | None:
    """The destination refused this message: it stays here, as a dead letter for good."""
    messages = _in_outbox(engine, subqueue, [number], pages)
    if isinstance(messages, Need):
        return messages
    queue = engine.queues.get(owner_of(subqueue))
    for message in messages:
        if queue is not None:
            _keep_dead(queue, message, refusal)
    return None


def held_up(engine: Engine, subqueue: int, destination: int, number: int) -> None:
    """The destination has no room for this message: it stays, and other messages pass it."""
    outbox = engine.shared.outboxes.get(subqueue)
    if outbox is not None:
        outbox.held_up(destination, number)


def has_room(engine: Engine, subqueue: int, destination: int) -> None:
    """The destination has taken all that it was sent: it can be sent more at once."""
    outbox = engine.shared.outboxes.get(subqueue)
    if outbox is not None:
        outbox.has_room(destination)


def _keep_dead(queue: Queue, message: Message, refusal: ServiceBusError) -> None:
    posted = is_posted(message.subqueue)
    if posted or message.subqueue == queue.main:
        message.reason, message.description = type(refusal).__name__, str(refusal)
    # A dead letter that cannot go on keeps its own reason.
    grave = message.subqueue if posted else queue.dead_letters
    queue.ledger.move(RecordKind.DEAD_LETTERED, message, grave, ACTIVE, queue.ledger.next_number())
    queue.placed(message)


def _in_outbox(
    engine: Engine, subqueue: int, numbers: Sequence[int], pages: Pages
) -> list[Message] | Need:
    queue = engine.queues.get(owner_of(subqueue))
    if queue is None or not numbers:
        return []  # a chore removes the messages of a deleted subscription
    found = by_number(queue, subqueue, OUTBOX, numbers, pages)
    if isinstance(found, Need):
        return found
    return [message for message in found if message is not None]


def diverts(queue: Queue) -> int | None:
    """The subqueue whose messages must leave, because the queue forwards now; None without any."""
    policy, ledger = queue.policy, queue.ledger
    if policy.forward_to is not None and ledger.count(queue.main, ACTIVE):
        return queue.main
    if policy.forward_dead_letters_to is None or queue.diverted_to == NEVER:
        return None
    return queue.dead_letters if ledger.count(queue.dead_letters, ACTIVE) else None


def diverted(engine: Engine) -> list[int]:
    """The subqueues whose messages must leave. A queue that has no such subqueue is skipped until
    something becomes ready in it."""
    diverting = engine.shared.diverting
    if not diverting:
        return []
    found: list[int] = []
    for owner in list(diverting):
        subqueue = diverts(engine.queues[owner])
        if subqueue is None:
            del diverting[owner]
        else:
            found.append(subqueue)
    return found


def divert(queue: Queue, subqueue: int, now: Instant, pages: Pages) -> Need | None:
    """Send off the messages from before the queue began to forward, a slice at a time."""
    if not queue.forwards(subqueue):
        return None  # an update has ended it while a page was read
    start = queue.diverted_to if subqueue == queue.dead_letters else 0
    delta = queue.ledger.delta
    page = first_messages(delta, pages, subqueue, ACTIVE, start, DIVERTED_AT_ONCE)
    if isinstance(page, Need):
        return page
    found, end = page
    if subqueue == queue.dead_letters:
        # Some messages must stay, so one pass covers the subqueue; it need not become empty.
        last = queue.diverts_up_to
        queue.diverted_to = NEVER if end is None or end >= last else end + 1
        found = [each for each in found if each.number <= last and _may_leave(queue, each)]
    for each in found:
        message = queue.itself(each)
        if message.token is None:
            _set_out(queue, message, now)
    return None


def _may_leave(queue: Queue, dead: Message) -> bool:
    """A dead letter that still has its destination was refused there, and stays."""
    destination = queue.policy.forward_dead_letters_to
    was_refused = destination is not None and destination_of(dead) in destination.fragments
    return queue.tries_refused or not was_refused


def _set_out(queue: Queue, message: Message, now: Instant) -> None:
    if message.expired(now):
        # The forwarder is a receiver, and no receiver gets it any more (semantics B §8).
        queue.withdraw(message)
        queue.expire(message)
        return
    if message.subqueue == queue.dead_letters:
        if not queue.passes_on(message):
            return
    else:
        trail = message.trail or ForwardingInfo(message.length)
        message.trail = trail
        if trail.hops >= HOPS_MAX:
            queue.withdraw(message)
            queue.move_to_dead_letters(message, HOPS_EXCEEDED, None)
            return
        destination = queue.policy.forward_to
        assert destination is not None
        trail.destination = queue.aim(destination, message)
    queue.withdraw(message)
    number = queue.ledger.next_number()
    queue.ledger.move(RecordKind.DIVERTED, message, message.subqueue, OUTBOX, number)
    queue.placed(message)
