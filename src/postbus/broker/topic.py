"""A topic: every message it takes becomes copies in its subscriptions, in one commit.

The body is written once, and all copies point to it. A rule matcher decides which subscriptions get
a copy, and how an action changes it: the engine does not look into messages. A message with more
copies than fit into one turn is kept, and spread in slices (`fan_out`). Later messages wait, so
that no subscription sees them out of order.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from postbus.broker.index_pages import BodyPage, Need, Page, Pages
from postbus.broker.lane_reading import first_messages
from postbus.broker.message import PUBLISHING, ForwardingInfo, Message, no_body
from postbus.broker.policy import admit
from postbus.broker.queue import HEADERS_TOO_LARGE, Queue
from postbus.broker.record_kinds import RecordKind
from postbus.broker.subqueue_numbers import MAIN
from postbus.model.times import Instant

COPIES_AT_ONCE: Final = 512
"""Copies that a turn makes. If several rules of a subscription match, one message may have a few
more."""
TOIL_OF_A_COPY: Final = 16
"""Microseconds, about, in which a copy is made: the unit of the rule matcher's cost."""
NO_SESSION: Final = (
    "Session ID is null",
    "Session enabled entity doesn't allow a message whose session identifier is null.",
)
STAGED_ROWS: Final = 64
STAGED_BYTES: Final = 4 << 20


class Copy(NamedTuple):
    """The copy of a message for one subscription."""

    owner: int
    envelope: bytes | None = None
    """The properties section, where an action has changed it."""
    properties: bytes | None = None
    """The application properties, likewise."""
    annotations: bytes | None = None
    """The message annotations, likewise."""
    message_id: str | None = None
    session_id: str | None = None
    partition_key: str | None = None
    ttl: int | None = None
    header_size: int = 0
    """Bytes of everything but the body, if an action has changed any of it."""
    too_large: bool = False
    """An action would have made its headers larger than they may be."""
    failure: tuple[str, str] | None = None
    """A filter could not be evaluated: the reason and description of a dead letter."""


class Sorted(NamedTuple):
    """Copies with their subscriptions, in ascending order of owners."""

    copies: list[Copy]
    whole: bool
    """False if only the first copies are here: making the others takes as long again."""


class RuleMatcher(Protocol):
    """Applies the rules of a topic's subscriptions."""

    @property
    def cost(self) -> int:
        """The cost of looking at one message, counted in copies that could be made instead."""

    def copies(self, message: Message, raw: bytes, after: int = 0) -> Sorted:
        """The copies for each subscription. If the answer is not whole, it has all copies of each
        owner in it, and a second call asks for the owners after the last."""


class Topic:
    """The part of a fragment that only a topic has."""

    __slots__ = ("_own", "_queues", "matcher", "newest", "room", "spread_to", "usual_copies")

    def __init__(self, own: Queue, queues: dict[int, Queue], matcher: RuleMatcher) -> None:
        self._own = own
        """The topic's place in its fragment: scheduled messages wait there."""
        self._queues = queues
        """Subscriptions by owner; the topic itself is among them as 0."""
        self.matcher = matcher
        self.room = COPIES_AT_ONCE
        """Copies that may still be made in this turn; looking at a message counts too."""
        self.newest = max(queues)
        """The last subscription that was made: their numbers rise, and none is used twice."""
        self.usual_copies = len(queues)
        """Copies of the last message that was looked at: most likely the next has as many."""
        self.spread_to = 0
        """Messages with lower numbers are not kept any more: the oldest is spread first."""

    def begin_turn(self) -> None:
        """So many copies may be made until this is called again."""
        self.room = COPIES_AT_ONCE

    @property
    def behind(self) -> bool:
        """Are there messages that not all subscriptions have yet?"""
        return self._own.ledger.count(MAIN, PUBLISHING) > 0

    def publish(self, messages: Sequence[Message], now: Instant) -> list[int]:
        """Take all of them or none; returns their sequence numbers."""
        own = self._own
        admit("Topic", own.name, own.policy, own.ledger.size_bytes, messages)
        return self.store(messages, now)

    def store(self, messages: Sequence[Message], now: Instant) -> list[int]:
        """The same after they are admitted: nothing is refused, even if copies exceed the quota."""
        own = self._own
        for message in messages:
            own.limit_ttl(message)
            if message.enqueued_at > now:
                own.schedule(message)
            else:
                message.number = message.enqueue_number = own.ledger.next_number()
                message.enqueued_at = now
                self._take_in(message)
        return [message.number for message in messages]

    def arrive(self, message: Message, now: Instant) -> None:
        """Take a message that another entity forwards to this topic."""
        raw = message.raw
        assert raw is not None
        message.enqueued_at = now
        self.keep(message)
        message.lane = PUBLISHING
        self._own.ledger.arrive(message, raw)
        message.raw = None

    def _take_in(self, message: Message) -> None:
        """Give the message to its subscriptions, or keep it until there is time to."""
        ledger = self._own.ledger
        raw = message.raw
        assert raw is not None
        if not self.behind and self.room > 0:
            copies, whole = self.matcher.copies(message, raw)
            self.usual_copies = len(copies)
            self.take_room(len(copies))
            if whole and len(copies) <= COPIES_AT_ONCE:
                ledger.pass_on(message, raw)
                self._place(message, raw, copies)
                return
        self.keep(message)
        message.lane = PUBLISHING
        ledger.add(RecordKind.STAGED, message, raw)
        message.raw = None

    def take_room(self, copies: int) -> None:
        """A message was looked at, and this many copies were made of it."""
        taken = max(copies, self.matcher.cost)
        self.room -= taken
        if taken > copies:
            self._own.shared.toil += (taken - copies) * TOIL_OF_A_COPY

    def keep(self, message: Message) -> None:
        """The message is about to be kept: note which subscriptions may get it, because others may
        be created before it is spread."""
        trail = message.trail = message.trail or ForwardingInfo(message.length)
        trail.newest = self.newest

    def spread(self, message: Message, raw: bytes, room: int) -> int:
        """Give a message that was kept to the next subscriptions; returns how many copies it
        took."""
        ledger, trail = self._own.ledger, message.trail
        assert trail is not None
        copies, whole = self.matcher.copies(message, raw, trail.cursor)
        self.usual_copies = len(copies)
        left = [copy for copy in copies if trail.cursor < copy.owner <= trail.newest]
        now = left[:room]
        # A subscription gets all of its copies at once, or the cursor could not tell.
        while now and len(now) < len(left) and left[len(now)].owner == now[-1].owner:
            now.append(left[len(now)])
        self._place(message, raw, now)
        if len(now) == len(left) and (whole or copies[-1].owner > trail.newest):
            self.spread_to = message.number + 1
            ledger.remove(RecordKind.SPREAD, message)
        else:
            trail.cursor = now[-1].owner
            ledger.change(RecordKind.ADVANCED, message)
        return len(now)

    def _place(self, message: Message, raw: bytes, copies: list[Copy]) -> None:
        ledger = self._own.ledger
        for copy in copies:
            queue = self._queues.get(copy.owner)
            if queue is None:
                continue
            too_large = copy.too_large or copy.header_size > queue.policy.header_size_max
            made = _copy_of(message, raw, Copy(copy.owner) if too_large else copy)
            queue.limit_ttl(made)
            if copy.failure is not None:
                if not queue.policy.dead_letter_on_filter_errors:
                    continue
                queue.route_dead_letter(made, *copy.failure)
            elif too_large:
                queue.route_dead_letter(made, *HEADERS_TOO_LARGE)
            elif queue.policy.requires_session and made.session_id is None:
                queue.route_dead_letter(made, *NO_SESSION)
            else:
                queue.route(made)
            made.number = ledger.next_number()
            ledger.place(made)
            queue.placed(made)


def _copy_of(message: Message, raw: bytes, copy: Copy) -> Message:
    made = Message(
        raw,
        message.message_id if copy.message_id is None else copy.message_id,
        message.session_id if copy.session_id is None else copy.session_id,
        message.ttl if copy.ttl is None else copy.ttl,
        message.enqueued_at,
        copy.header_size or message.header_size,
    )
    made.layout = message.layout
    made.partition_key = (
        message.partition_key if copy.partition_key is None else copy.partition_key or None
    )
    made.base, made.position = message.base, message.position
    made.enqueue_number = message.enqueue_number
    made.properties = message.properties if copy.properties is None else copy.properties
    made.reason, made.description = message.reason, message.description
    made.source = message.source
    # The ledger will weigh it: each counts with all of the body, for any may keep it last.
    trail = ForwardingInfo(0) if message.trail is None else message.trail.next_leg(0)
    if copy.envelope is not None:
        trail.envelope = copy.envelope
    if copy.annotations is not None:
        trail.annotations = copy.annotations
    trail.origin_number = message.first_number
    made.trail = trail
    return made


def fan_out(topic: Topic, own: Queue, pages: Pages) -> Need | None:
    """Spread kept messages, the oldest first, as far as one turn goes."""
    if topic.room <= 0:
        return None
    delta = own.ledger.delta
    found = first_messages(delta, pages, MAIN, PUBLISHING, topic.spread_to, STAGED_ROWS)
    if isinstance(found, Need):
        return found
    messages, _ = found
    bytes_left = STAGED_BYTES
    # No more bodies than the turn has room for: a body without use is read once more.
    room = topic.room // max(topic.usual_copies, topic.matcher.cost, 1) + 1
    wanted: list[tuple[Message, BodyPage]] = []
    for message in messages[:room]:
        bytes_left -= message.length
        if wanted and bytes_left < 0:
            break
        wanted.append((message, BodyPage(message.base, message.position, message.length)))
    absent: tuple[Page, ...] = tuple(body for _, body in wanted if body not in pages)
    if absent:
        return Need(absent)
    for message, body in wanted:
        if topic.room <= 0:
            break
        raw = pages.body(body)
        if raw is None:
            raise no_body(message)
        topic.take_room(topic.spread(message, raw, topic.room))
        if topic.spread_to <= message.number:
            break  # later messages wait until all subscriptions have it
    return None
