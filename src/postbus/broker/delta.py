"""The changes since the last checkpoint, laid over every page the index returns.

Index + delta is the durable state of a fragment. A message that comes and goes between two
checkpoints leaves no trace here, and so never touches the index.

A checkpoint freezes the delta: its rows are on their way to the index, and messages go on changing.
The frozen changes are laid over pages until the index has them. Changes since are noted a second
time, in a delta of their own, which takes the place of this one then.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice

from postbus.broker.message import Message, from_row, to_row
from postbus.model.index_rows import Row, RowKey
from postbus.model.times import Instant

_LANES = 8


class Delta:
    """Per lane: number → the message as it is now, or None if only the index still has it."""

    __slots__ = ("_groups", "_lanes", "_left", "_numbers", "_prepared_to", "_rows", "_since",
                 "_unsorted", "size")  # fmt: skip

    def __init__(self) -> None:
        self._lanes: dict[int, dict[int, Message | None]] = {}
        self._numbers: dict[int, list[int]] = {}
        """Per lane: numbers that were put there, so that a page need not go through all changes.
        Some of the messages may be gone, and a number may come twice."""
        self._unsorted: set[int] = set()
        """Lanes whose numbers are not in order. Mostly each number is higher than the last."""
        self._groups: dict[int, dict[str, dict[int, None]]] = {}
        """Per lane: session → numbers that were put there. Some of the messages may be gone."""
        self._left: dict[int, set[str]] = {}
        """Per lane: sessions that the index has too many rows of."""
        self._rows: dict[int, dict[int, Row]] = {}
        """Per lane: rows that were made ahead of the checkpoint, of messages as they are now."""
        self._prepared_to: dict[int, int] = {}
        """Per lane: how many changes were looked at for this."""
        self._since: Delta | None = None
        """The changes since the freeze; None when nothing is frozen."""
        self.size = 0

    def lane(self, subqueue: int, lane: int) -> dict[int, Message | None]:
        key = subqueue * _LANES + lane
        found = self._lanes.get(key)
        if found is None:
            found = self._lanes[key] = {}
        return found

    def put(self, message: Message) -> None:
        number, key = message.number, message.subqueue * _LANES + message.lane
        lane = self.lane(message.subqueue, message.lane)
        if number not in lane:
            self.size += 1
        elif self._rows:
            self._drop_row(message.subqueue, message.lane, number)
        if lane.get(number) is None:
            self._note_number(key, number)
        lane[number] = message
        if message.session_id is not None:
            groups = self._groups.setdefault(key, {})
            groups.setdefault(message.session_id, {})[number] = None
        if self._since is not None:
            self._since.put(message)

    def remove(
        self,
        subqueue: int,
        lane: int,
        number: int,
        maybe_indexed: bool,
        session_id: str | None = None,
    ) -> None:
        """The message left this lane; the index must forget it if it may have it."""
        if self._since is not None:
            self._since.remove(subqueue, lane, number, maybe_indexed, session_id)
        changes = self.lane(subqueue, lane)
        if self._rows:
            self._drop_row(subqueue, lane, number)
        if maybe_indexed:
            if number not in changes:
                self.size += 1
            changes[number] = None
            if session_id is not None:
                self._left.setdefault(subqueue * _LANES + lane, set()).add(session_id)
            return
        gone = changes.pop(number, None)
        if gone is not None:
            self.size -= 1
            if gone.session_id is not None:
                self._leave_group(subqueue * _LANES + lane, gone.session_id, number)

    def _leave_group(self, key: int, session_id: str, number: int) -> None:
        groups = self._groups[key]
        numbers = groups[session_id]
        numbers.pop(number, None)
        if not numbers:
            del groups[session_id]

    def _note_number(self, key: int, number: int) -> None:
        numbers = self._numbers.get(key)
        if not numbers:
            self._numbers[key] = [number]
            return
        if number <= numbers[-1]:
            self._unsorted.add(key)
        numbers.append(number)

    def _from(self, key: int, start: int, end: int | None, limit: int) -> list[Message]:
        """The first messages that were put into a lane, from a number on, one more than `limit`."""
        numbers, lane = self._numbers.get(key), self._lanes.get(key)
        if numbers is None or lane is None:
            return []
        if key in self._unsorted:
            self._unsorted.discard(key)
            numbers = self._numbers[key] = sorted({n for n in numbers if lane.get(n) is not None})
        found: list[Message] = []
        for place in range(bisect_left(numbers, start), len(numbers)):
            number = numbers[place]
            if len(found) > limit or (end is not None and number > end):
                break
            message = lane.get(number)
            if message is not None:
                found.append(message)
        return found

    def _drop_row(self, subqueue: int, lane: int, number: int) -> None:
        rows = self._rows.get(subqueue * _LANES + lane)
        if rows is not None:
            rows.pop(number, None)

    def prepare(self, limit: int) -> None:
        """Make up to `limit` rows ahead of a checkpoint: making all of them at once takes long. A
        change leaves its row out again."""
        for key, lane in self._lanes.items():
            start = self._prepared_to.get(key, 0)
            if start >= len(lane):
                continue
            rows = self._rows.setdefault(key, {})
            for number, message in islice(lane.items(), start, start + limit):
                if message is not None:
                    rows[number] = to_row(message)
            self._prepared_to[key] = start + limit
            return

    def rows(self) -> list[Row]:
        found: list[Row] = []
        for key, lane in self._lanes.items():
            prepared = self._rows.get(key, {})
            for number, message in lane.items():
                if message is not None:
                    found.append(prepared.get(number) or to_row(message))
        return found

    def removed(self) -> list[RowKey]:
        return [
            RowKey(key // _LANES, key % _LANES, number)
            for key, lane in self._lanes.items()
            for number, message in lane.items()
            if message is None
        ]

    @property
    def frozen(self) -> bool:
        """Are changes on their way to the index?"""
        return self._since is not None

    def freeze(self) -> None:
        """The rows and removals until now are on their way to the index."""
        assert self._since is None, "one checkpoint at a time"
        for message in self._messages():
            message.indexed = True  # its removal must reach the index from here on
        self._rows = {}
        self._prepared_to = {}
        self._since = Delta()

    def unfreeze(self) -> None:
        """The index did not get what was frozen. All of it is still here."""
        self._since = None

    def thaw(self) -> None:
        """The index has what was frozen: only the changes since are left."""
        since = self._since
        assert since is not None
        self._lanes, self._groups, self._left = since._lanes, since._groups, since._left
        self._numbers, self._unsorted = since._numbers, since._unsorted
        self._rows, self._prepared_to = since._rows, since._prepared_to
        self.size = since.size
        self._since = None

    def _messages(self) -> Iterator[Message]:
        for lane in self._lanes.values():
            for message in lane.values():
                if message is not None:
                    yield message

    def over_lane(
        self, rows: list[Row], subqueue: int, lane: int, start: int, limit: int
    ) -> tuple[list[Message], int | None]:
        """A lane's messages from `start` on, and the number they reach to; None for the last."""
        end = rows[-1].number if len(rows) >= limit else None
        changed = self._from(subqueue * _LANES + lane, start, end, limit)
        return _merge(rows, self.lane(subqueue, lane), changed, end, limit)

    def over_group(
        self, rows: list[Row], subqueue: int, lane: int, session_id: str, start: int, limit: int
    ) -> tuple[list[Message], int | None]:
        """The same for one session."""
        changes = self.lane(subqueue, lane)
        numbers = self._groups.get(subqueue * _LANES + lane, {}).get(session_id, ())
        end = rows[-1].number if len(rows) >= limit else None
        own = [
            message
            for number in numbers
            if number >= start
            and (end is None or number <= end)
            and (message := changes.get(number)) is not None
        ]
        return _merge(rows, changes, own, end, limit)

    def over_groups(
        self, groups: list[bytes], subqueue: int, lane: int, after: str | None, limit: int
    ) -> tuple[list[str], str | None]:
        """A lane's sessions behind `after`, and the session that the page ends with; None for the
        last page. A session that the index still has may have lost its last row since."""
        end = groups[-1].decode() if len(groups) >= limit else None
        merged = {group.decode() for group in groups}
        for session_id in self._groups.get(subqueue * _LANES + lane, {}):
            if after is not None and session_id <= after:
                continue
            if (end is None or session_id <= end) and self.has_group(subqueue, lane, session_id):
                merged.add(session_id)
        # Code points are in the same order as the bytes of their UTF-8.
        found = sorted(merged)
        if len(found) > limit:
            del found[limit:]
            end = found[-1]
        return found, end

    def has_group(self, subqueue: int, lane: int, session_id: str) -> bool:
        """Has a message of this session come or changed since the checkpoint?"""
        numbers = self._groups.get(subqueue * _LANES + lane, {}).get(session_id)
        if not numbers:
            return False
        changes = self.lane(subqueue, lane)
        return any(changes.get(number) is not None for number in numbers)

    def may_have_left(self, subqueue: int, lane: int, session_id: str) -> bool:
        """May all the rows that the index has of this session be gone?"""
        return session_id in self._left.get(subqueue * _LANES + lane, ())

    def due_limit(self, subqueue: int, lane: int, limit: int) -> int:
        """How many rows to ask for, so that `limit` rows are left without the changed rows. Rounded
        up in steps of 1,024, so that a second call asks for the same page."""
        return limit + -(-len(self.lane(subqueue, lane)) // 1024) * 1024

    def over_due(
        self, rows: list[Row], subqueue: int, lane: int, until: Instant, limit: int
    ) -> list[Message]:
        """A lane's messages due by `until`, earliest first, `limit` at the most."""
        changes = self.lane(subqueue, lane)
        merged = [from_row(row) for row in rows if row.number not in changes]
        merged += [message for message in changes.values() if message and _due_by(message, until)]
        merged.sort(key=_by_wake)
        return merged[:limit]

    def next_wake(self, subqueue: int, lane: int, after: Instant) -> Instant | None:
        changes = self.lane(subqueue, lane).values()
        wakes = [m.wake_at for m in changes if m is not None and m.wake_at is not None]
        return min((wake for wake in wakes if wake > after), default=None)


def _merge(
    rows: list[Row],
    changes: dict[int, Message | None],
    changed: list[Message],
    end: int | None,
    limit: int,
) -> tuple[list[Message], int | None]:
    merged = [from_row(row) for row in rows if row.number not in changes]
    merged += changed
    merged.sort(key=_by_number)
    if len(merged) > limit:
        del merged[limit:]
        end = merged[-1].number
    return merged, end


def _due_by(message: Message, until: Instant) -> bool:
    wake_at = message.wake_at
    return wake_at is not None and wake_at <= until


def _by_number(message: Message) -> int:
    return message.number


def _by_wake(message: Message) -> tuple[Instant, int]:
    return message.wake_at or 0, message.number
