"""The head of one subqueue, held in memory; the rest stays in the store.

Every active message with a number up to `end` is here, ready or locked. Messages beyond `end` are
read in pages when few ready messages are left, so memory does not grow with the backlog. Bodies are
kept only as far as a budget of bytes goes.
"""

from collections import deque
from heapq import heapify, heappop, heappush
from typing import Any, Final

from postbus.broker.message import Message

_LOOKAHEAD_BYTES: Final = 1 << 20
SHARE_MESSAGES_MIN: Final = 64
SHARE_BYTES_MIN: Final = 64 << 10


class WindowLimits:
    """How much of each subqueue is held in memory; the queues of one fragment share the room."""

    __slots__ = ("_body_bytes", "_messages", "body_bytes_max", "messages_max")

    def __init__(self, messages_max: int = 4096, body_bytes_max: int = 4 << 20) -> None:
        self._messages = self.messages_max = messages_max
        self._body_bytes = self.body_bytes_max = body_bytes_max

    def share(self, queues: int) -> None:
        """Divide the room among the queues, but leave each enough to read ahead a little."""
        self.messages_max = max(self._messages // queues, min(self._messages, SHARE_MESSAGES_MIN))
        self.body_bytes_max = max(
            self._body_bytes // queues, min(self._body_bytes, SHARE_BYTES_MIN)
        )

    def be_share_of(self, whole: "WindowLimits", parts: int) -> None:
        """Take a share of another window's room: `parts` windows divide it, as in `share`."""
        messages, body_bytes = whole.messages_max, whole.body_bytes_max
        self.messages_max = max(messages // parts, min(messages, SHARE_MESSAGES_MIN))
        self.body_bytes_max = max(body_bytes // parts, min(body_bytes, SHARE_BYTES_MIN))

    def copy(self) -> "WindowLimits":
        """As they were before anything was shared."""
        return WindowLimits(self._messages, self._body_bytes)


class Window:
    """Ready messages in order of number, and everything locked among them."""

    __slots__ = (
        "_body_bytes",
        "_limits",
        "_place",
        "_ready",
        "_returned",
        "_stirred",
        "complete",
        "end",
        "live",
        "ready_count",
    )

    def __init__(
        self,
        limits: WindowLimits,
        complete: bool,
        place: object = 0,
        ready_subqueues: dict[Any, None] | None = None,
    ) -> None:
        self._limits = limits
        self._place = place
        """The subqueue, or with it the session, that this is a window of."""
        self._stirred: dict[Any, None] = {} if ready_subqueues is None else ready_subqueues
        """Where to note that there is work for the receivers that wait there."""
        self._ready: deque[Message] = deque()
        # Given back out of order; merged by number when taken (R-SETTLE-07).
        self._returned: list[tuple[int, int, Message]] = []
        self._body_bytes = 0
        self.live: dict[int, Message] = {}
        self.end = 0
        self.complete = complete
        """Nothing lies beyond `end`."""
        self.ready_count = 0

    @property
    def low(self) -> bool:
        """Time to read the next page."""
        return not self.complete and self.ready_count < self._limits.messages_max // 4

    @property
    def page(self) -> int:
        """Messages that are worth reading at once: as many as fit, but not a few at a time."""
        return max(self.room, SHARE_MESSAGES_MIN)

    @property
    def room(self) -> int:
        return max(0, self._limits.messages_max - len(self.live))

    def add(self, message: Message) -> None:
        """A message became active in this subqueue, under any number."""
        number = message.number
        if number > self.end:
            if not self.complete or len(self.live) >= self._limits.messages_max:
                self.complete = False
                message.raw = None
                # It is not ready, but waiting receivers may need the window filled now.
                self._stirred[self._place] = None
                return
            self.end = number
        self._hold(message)
        self._push(message)
        if self.ready_count > 2 * self._limits.messages_max:
            self._shrink()

    def extend(self, messages: list[Message], end: int | None) -> None:
        """Add the next page, which follows `end` directly and reaches to the new `end` (None: the
        last message there is)."""
        for message in messages:
            # A locked message may lie beyond `end` after a shrink.
            if message.number not in self.live:
                self._hold(message)
                self._push(message)
        self._stirred[self._place] = None  # if only to tell that there is nothing
        self.complete = end is None
        if end is None:
            end = messages[-1].number if messages else self.end
        self.end = max(self.end, end)

    def give_back(self, message: Message) -> None:
        """A lock ended and the message is ready again, in its place by number."""
        if message.number > self.end:
            # The window shrank while it was locked: the messages in between come first.
            self.forget(message)
        else:
            self._push(message)

    def take(self) -> Message | None:
        """The first ready message, if its body is here; None otherwise."""
        message = self.head()
        if message is None or message.raw is None:
            return None
        self._pop()
        return message

    def head(self) -> Message | None:
        """The first ready message."""
        ready, returned = self._ready, self._returned
        # A message that left while it was ready is still queued: skip it when its turn comes.
        live = self.live
        while ready and live.get(ready[0].number) is not ready[0]:
            ready.popleft()
        while returned and live.get(returned[0][0]) is not returned[0][2]:
            heappop(returned)
        if returned and (not ready or returned[0][0] < ready[0].number):
            return returned[0][2]
        return ready[0] if ready else None

    def pop_head(self) -> None:
        """Take the message `head()` returned, body or not."""
        self._pop()

    def forget(self, message: Message) -> None:
        """A message that was taken left the subqueue, or its lane."""
        if self.live.pop(message.number, None) is not None:
            self._let_body_go(message)

    def withdraw(self, message: Message) -> None:
        """A ready message leaves, from anywhere in the window."""
        self.ready_count -= 1
        self.forget(message)
        if len(self._ready) + len(self._returned) > 2 * self.ready_count + 64:
            self._drop_leavers()

    def _drop_leavers(self) -> None:
        live = self.live
        self._ready = deque(m for m in self._ready if live.get(m.number) is m)
        self._returned = [each for each in self._returned if live.get(each[0]) is each[2]]
        heapify(self._returned)

    def missing_bodies(self) -> list[int]:
        """Bases of the batches to read so that the head of the queue can be delivered."""
        return list(dict.fromkeys([message.base for message in self.bodiless()]))

    def bodiless(self) -> list[Message]:
        """Messages at the head of the queue whose bodies have to be read, the head first."""
        found: dict[int, Message] = {}
        budget = min(_LOOKAHEAD_BYTES, self._limits.body_bytes_max)
        head = self.head()
        if head is not None and head.raw is None:
            found[head.number] = head  # the head comes first, with or without room
        if self._returned:
            for _, _, message in self._returned[:64]:
                if message.raw is None and self.live.get(message.number) is message:
                    found[message.number] = message
        for message in self._ready:
            if self.live.get(message.number) is not message:
                continue
            budget -= message.length
            if message.raw is None:
                found[message.number] = message
            if budget <= 0:
                break
        return list(found.values())

    def fill_body(self, message: Message, raw: bytes) -> None:
        """Give a ready message its body, if there is room for it or it is the first."""
        self._stirred[self._place] = None
        if message.raw is None and self.live.get(message.number) is message:
            fits = self._body_bytes + message.length <= self._limits.body_bytes_max
            if fits or self.head() is message:
                message.raw = raw
                self._body_bytes += message.length

    def fill_bodies(self, base: int, batch: bytes) -> None:
        """Give the ready messages of a batch their bodies, the first messages first."""
        self._stirred[self._place] = None
        head = self.head()
        if head is not None and head.base == base and head.raw is None:
            self._keep_body(head, batch)
        for _, _, message in self._returned:
            self._fill(message, base, batch)
        for message in self._ready:
            if self._body_bytes >= self._limits.body_bytes_max:
                break
            self._fill(message, base, batch)

    def release_body(self, message: Message) -> None:
        """Delivered: its body is of use again only if it comes back."""
        if self._body_bytes > self._limits.body_bytes_max // 2:
            self._let_body_go(message)

    def _shrink(self) -> None:
        """Messages came in below `end` (into a dead-letter queue, say): drop the last messages."""
        ready = sorted(
            [m for m in self._ready if self.live.get(m.number) is m]
            + [m for _, _, m in self._returned if self.live.get(m.number) is m],
            key=lambda message: message.number,
        )
        keep = ready[: self._limits.messages_max]
        for message in ready[len(keep) :]:
            self.forget(message)
        self._ready = deque(keep)
        self._returned = []
        self.ready_count = len(keep)
        self.end = keep[-1].number
        self.complete = False

    def _fill(self, message: Message, base: int, batch: bytes) -> None:
        if (
            message.base == base
            and message.raw is None
            and self.live.get(message.number) is message
            and self._body_bytes + message.length <= self._limits.body_bytes_max
        ):
            self._keep_body(message, batch)

    def _keep_body(self, message: Message, batch: bytes) -> None:
        message.raw = batch[message.position : message.position + message.length]
        self._body_bytes += message.length

    def _hold(self, message: Message) -> None:
        self.live[message.number] = message
        if message.raw is not None:
            if self._body_bytes + message.length > self._limits.body_bytes_max:
                message.raw = None
            else:
                self._body_bytes += message.length

    def _let_body_go(self, message: Message) -> None:
        if message.raw is not None:
            self._body_bytes -= message.length
            message.raw = None

    def _push(self, message: Message) -> None:
        self.ready_count += 1
        self._stirred[self._place] = None
        ready = self._ready
        if not ready or ready[-1].number < message.number:
            ready.append(message)
        else:
            heappush(self._returned, (message.number, self.ready_count, message))

    def _pop(self) -> None:
        ready, returned = self._ready, self._returned
        if returned and (not ready or returned[0][0] < ready[0].number):
            heappop(returned)
        else:
            ready.popleft()
        self.ready_count -= 1
