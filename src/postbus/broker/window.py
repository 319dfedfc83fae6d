"""The head of one subqueue, held in memory; the rest stays in the store.

Every active message with a number up to `end` is here, ready or locked. Messages beyond `end` are
read in pages when few ready messages are left, so memory does not grow with the backlog. All
windows share one budget of bytes.
"""

from collections import deque
from heapq import heapify, heappop, heappush
from typing import Any, Final

from postbus.broker.message import Message
from postbus.broker.window_budget import MESSAGE_BYTES, BudgetHolder, WindowBudget

_LOOKAHEAD_BYTES: Final = 1 << 20
LOW_MESSAGES: Final = 1_024
"""With so few ready messages the next page is read, if the budget has room for it."""
PAGE_MIN: Final = 64
PAGE_MAX: Final = 1_024


class Window(BudgetHolder):
    """Ready messages in order of number, and everything locked among them."""

    __slots__ = (
        "_body_bytes",
        "_budget",
        "_length",
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
        budget: WindowBudget,
        complete: bool,
        place: object = 0,
        ready_subqueues: dict[Any, None] | None = None,
    ) -> None:
        super().__init__()
        self._budget = budget
        self._place = place
        """The subqueue, or with it the session, that this is a window of."""
        self._stirred: dict[Any, None] = {} if ready_subqueues is None else ready_subqueues
        """Where to note that there is work for the receivers that wait there."""
        self._ready: deque[Message] = deque()
        # Given back out of order; merged by number when taken (R-SETTLE-07).
        self._returned: list[tuple[int, int, Message]] = []
        self._body_bytes = 0
        self._length = 0
        """The length of the message that was added last: others are about as long."""
        self.live: dict[int, Message] = {}
        self.end = 0
        self.complete = complete
        """Nothing lies beyond `end`."""
        self.ready_count = 0

    @property
    def low(self) -> bool:
        """Time to read the next page."""
        if self.complete or self.ready_count >= LOW_MESSAGES:
            return False
        budget, worthwhile = self._budget, PAGE_MIN * (MESSAGE_BYTES + self._length)
        return self.ready_count < budget.messages_min // 4 or budget.has_room(worthwhile)

    @property
    def page(self) -> int:
        """Messages that are worth reading at once: as many as fit, but not a few at a time. A power
        of two, so that a second call mostly asks for the same page."""
        fit = self._budget.room(self) // (MESSAGE_BYTES + self._length)
        if fit >= PAGE_MAX:
            return PAGE_MAX
        return PAGE_MIN if fit < 2 * PAGE_MIN else 1 << fit.bit_length() - 1

    @property
    def held(self) -> int:
        return len(self.live) * MESSAGE_BYTES + self._body_bytes

    def add(self, message: Message) -> None:
        """A message became active in this subqueue, under any number."""
        number = message.number
        if number > self.end:
            if not self.complete or not self._fits(message, len(self.live)):
                self.complete = False
                message.raw = None
                # It is not ready, but waiting receivers may need the window filled now.
                self._stirred[self._place] = None
                return
            self.end = number
        self._hold(message)
        self._push(message)
        budget = self._budget
        if budget.used > budget.bytes_max and self.ready_count > 2 * budget.messages_min:
            # Messages come in below `end`, into a dead-letter queue for example.
            self.shrink(self.held // 2)

    def extend(self, messages: list[Message], end: int | None) -> None:
        """Add the next page, which follows `end` directly and reaches to the new `end` (None: the
        last message there is). The rest of a page that does not fit is read again later."""
        self._stirred[self._place] = None  # if only to tell that there is nothing
        for place, message in enumerate(messages):
            # A locked message may lie beyond `end` after a shrink.
            if message.number in self.live:
                continue
            if place and self.ready_count >= PAGE_MIN and not self._fits(message, self.ready_count):
                self.complete = False
                self.end = max(self.end, message.number - 1)
                return
            self._hold(message)
            self._push(message)
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
        ready, returned, budget = self._ready, self._returned, self._budget
        if returned and (not ready or returned[0][0] < ready[0].number):
            heappop(returned)
        else:
            ready.popleft()
        self.ready_count -= 1
        budget.takes += 1
        self.taken_at = budget.takes

    def forget(self, message: Message) -> None:
        """A message that was taken left the subqueue, or its lane."""
        held = self.live.pop(message.number, None)
        if held is not None:
            self._let_body_go(held)
            self._gave_back(MESSAGE_BYTES)

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
        budget = self._lookahead()
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
        if (
            message.raw is None
            and self.live.get(message.number) is message
            and (self._body_fits(message) or self.head() is message)
        ):
            self._keep_body(message, raw)

    def fill_bodies(self, base: int, batch: bytes) -> None:
        """Give the ready messages of a batch their bodies, the first messages first."""
        self._stirred[self._place] = None
        head = self.head()
        if head is not None and head.base == base and head.raw is None:
            self._keep_body(head, _body_in(batch, head))
        ahead = self._lookahead()
        for _, _, message in self._returned:
            if not self._fill(message, base, batch):
                return
        for message in self._ready:
            if not self._fill(message, base, batch):
                return
            ahead -= message.length
            if ahead <= 0:
                return

    def release_body(self, message: Message) -> None:
        """Delivered: its body is of use again only if it comes back."""
        if self._budget.used > self._budget.bytes_max // 2:
            self._let_body_go(message)

    def close(self) -> None:
        """Give all memory back: the window is of no use any more."""
        budget = self._budget
        budget.used -= self.held
        budget.shrank(self)
        for message in self.live.values():
            message.raw = None
        self._body_bytes = 0
        self._budget = WindowBudget(0)  # for a caller that still has the window

    def shrink(self, target: int) -> None:
        """Drop the last ready messages, then bodies of ready messages. The head stays whole, and a
        locked message too: a request may be about to change its properties."""
        budget = self._budget
        least = max(budget.messages_min, 1)
        if self._returned:
            self._drop_leavers()
            self._ready.extend(message for _, _, message in self._returned)
            self._ready = deque(sorted(self._ready, key=_number))
            self._returned = []
        dropped = 0
        while self.ready_count > least and self.held > target:
            message = self._ready.pop()
            if self.live.get(message.number) is message:
                self.ready_count -= 1
                self.forget(message)
                dropped = message.number
        if dropped:
            self.complete = False
            self.end = dropped - 1
        head = self.head()
        for message in reversed(self._ready):
            if self.held <= target or self._body_bytes <= budget.body_bytes_min:
                return
            if message is not head and self.live.get(message.number) is message:
                self._let_body_go(message)

    def _lookahead(self) -> int:
        """Bytes of bodies at the head that are worth reading at once."""
        budget = self._budget
        return min(_LOOKAHEAD_BYTES, max(budget.body_bytes_min, budget.room(self)))

    def _fits(self, message: Message, count: int) -> bool:
        """Is there room for a message and its body, or are there fewer than the minimum?"""
        self._length = message.length
        budget = self._budget
        return count < budget.messages_min or budget.admits(self, MESSAGE_BYTES + message.length)

    def _body_fits(self, message: Message) -> bool:
        budget, length = self._budget, message.length
        return self._body_bytes + length <= budget.body_bytes_min or budget.admits(self, length)

    def _fill(self, message: Message, base: int, batch: bytes) -> bool:
        """Give a message its body if it is in this batch; returns whether there was room."""
        if (
            message.base != base
            or message.raw is not None
            or self.live.get(message.number) is not message
        ):
            return True
        if not self._body_fits(message):
            return False
        self._keep_body(message, _body_in(batch, message))
        return True

    def _keep_body(self, message: Message, raw: bytes) -> None:
        message.raw = raw
        self._body_bytes += message.length
        self._took(message.length)

    def _hold(self, message: Message) -> None:
        self.live[message.number] = message
        size, budget = MESSAGE_BYTES, self._budget
        if message.raw is not None:
            length = message.length
            if (
                budget.used + size + length <= budget.bytes_max
                or self._body_bytes + length <= budget.body_bytes_min
            ):
                self._body_bytes += length
                size += length
            else:
                message.raw = None
        self._took(size)

    def _took(self, size: int) -> None:
        budget = self._budget
        budget.used += size
        if not self.is_listed and self.held > budget.least:
            budget.grew(self)

    def _gave_back(self, size: int) -> None:
        budget = self._budget
        budget.used -= size
        if self.is_listed and self.held <= budget.least:
            budget.shrank(self)

    def _let_body_go(self, message: Message) -> None:
        if message.raw is not None:
            self._body_bytes -= message.length
            message.raw = None
            self._gave_back(message.length)

    def _push(self, message: Message) -> None:
        self.ready_count += 1
        self._stirred[self._place] = None
        ready = self._ready
        if not ready or ready[-1].number < message.number:
            ready.append(message)
        else:
            heappush(self._returned, (message.number, self.ready_count, message))


def _number(message: Message) -> int:
    return message.number


def _body_in(batch: bytes, message: Message) -> bytes:
    return batch[message.position : message.position + message.length]
