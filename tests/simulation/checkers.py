"""The promises, one class each. A checker looks; it never changes anything.

`decided` sees each record as the engine writes it, `locked` and `taken` each message as it is
given out, `shown`, `delivered`, `confirmed` and `refused` what clients are told, `seen` everything
there is at a quiet moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from postbus.broker.message import DEFERRED, SCHEDULED, Message
from postbus.broker.queue import Queue
from postbus.broker.record_kinds import RecordKind
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN
from tests.simulation.history import Violation
from tests.simulation.inventory import Seen
from tests.simulation.model import REMOVES, Asked, Entry, Event, Model

ENDS = frozenset({"complete", "cancel"})
FAILS = frozenset({RecordKind.ABANDONED, RecordKind.LOCK_EXPIRED, RecordKind.DEFERRED})


class Checker:
    """Looks at nothing; each promise overrides what it needs."""

    promise = ""

    def __init__(self, model: Model) -> None:
        self.model = model

    def broken(self, name: str | None, text: str) -> Violation:
        return Violation(self.promise, name, text)

    def decided(self, event: Event, now: int) -> None: ...

    def locked(self, message: Message) -> None: ...

    def taken(self, name: str, number: int, subqueue: int, now: int) -> None: ...

    def shown(self, name: str, raw: bytes) -> None: ...

    def delivered(self, name: str, count: int, subqueue: int) -> None: ...

    def confirmed(self, verb: str, names: Iterable[str]) -> None: ...

    def refused(self, asked: Asked) -> None: ...

    def seen(self, inventory: Seen, queue: Queue) -> None: ...


class DurableFirst(Checker):
    promise = "nothing is told before it is durable"

    def delivered(self, name: str, count: int, subqueue: int) -> None:
        self._is_durable(name, "delivered")

    def confirmed(self, verb: str, names: Iterable[str]) -> None:
        for name in names:
            if verb == "send":
                self._is_durable(name, "acknowledged")
            elif verb in ENDS and name in self.model.durable:
                raise self.broken(name, f"{verb} was confirmed, and it is still there")

    def _is_durable(self, name: str, what: str) -> None:
        if name not in self.model.durable and name not in self.model.gone:
            raise self.broken(name, f"{what}, and the store has not got it")


class NothingIsLost(Checker):
    promise = "nothing acknowledged is lost"

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._acknowledged: set[str] = set()

    def confirmed(self, verb: str, names: Iterable[str]) -> None:
        if verb == "send":
            self._acknowledged.update(names)

    def decided(self, event: Event, now: int) -> None:
        if event.kind not in REMOVES:
            return
        name, before = event.after.name, event.before
        if before is None:
            raise self.broken(name, f"{event.kind.name} of a message that is not there")
        asked = event.asked
        if event.kind is RecordKind.EXPIRED:
            if not before.expired(now) or _in_force(event, now):
                raise self.broken(name, f"expired before its time: {before}")
        elif event.kind is RecordKind.COMPLETED:
            _settled_by_holder(self, event, "complete", now)
        elif event.kind is RecordKind.CANCELLED:
            if asked is None or before.number not in asked.numbers or before.lane != SCHEDULED:
                raise self.broken(name, f"nobody cancelled {before}")
        elif event.kind is RecordKind.RESUBMITTED:
            known = (
                asked is not None and asked.verb == "resubmit" and before.number in asked.numbers
            )
            if not known or before.subqueue != DEAD_LETTER or event.lock is not None:
                raise self.broken(name, f"nobody sent {before} again")
        elif event.kind is RecordKind.DELETED:
            if asked is None or asked.verb != "purge" or event.lock is not None:
                raise self.broken(name, f"nobody purged {before}")
        elif event.lock is not None:
            raise self.broken(name, f"received and deleted under a lock: {before}")

    def seen(self, inventory: Seen, queue: Queue) -> None:
        for name in sorted(self._acknowledged):
            if name not in inventory and self.model.gone.get(name) in (
                None,
                RecordKind.RESUBMITTED,
            ):
                raise self.broken(name, "acknowledged, never removed, and not there")


class RefusedIsNotThere(Checker):
    """A client that is refused sends again, with another id if it likes: what it was refused must
    not come as well. One that was told that nobody knows has to look."""

    promise = "what was refused is not there"

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._refused: set[str] = set()

    def refused(self, asked: Asked) -> None:
        self._refused.update(asked.names)

    def seen(self, inventory: Seen, queue: Queue) -> None:
        for name in sorted(self._refused & (inventory.keys() | self.model.gone.keys())):
            raise self.broken(name, "refused, and stored")


class NothingReturns(Checker):
    promise = "nothing completed returns"

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._ended: set[str] = set()

    def confirmed(self, verb: str, names: Iterable[str]) -> None:
        if verb in ENDS:
            self._ended.update(names)

    def shown(self, name: str, raw: bytes) -> None:
        if name in self._ended:
            raise self.broken(name, "shown or delivered after it was gone")

    def seen(self, inventory: Seen, queue: Queue) -> None:
        for name in sorted(self._ended & inventory.keys()):
            raise self.broken(name, f"there after it was gone: {inventory[name].entry}")


class OneHolder(Checker):
    promise = "one holder per lock"

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._tokens: set[bytes] = set()

    def taken(self, name: str, number: int, subqueue: int, now: int) -> None:
        self._is_free(name)

    def _is_free(self, name: str) -> None:
        lock = self.model.locks.get(name)
        if lock is not None:
            raise self.broken(name, f"given out while {lock.holder} holds it until {lock.until}")

    def locked(self, message: Message) -> None:
        self._is_free(message.message_id)
        assert message.token is not None
        if message.token in self._tokens:
            raise self.broken(message.message_id, "a lock token was used twice")
        self._tokens.add(message.token)

    def decided(self, event: Event, now: int) -> None:
        name, lock, asked = event.after.name, event.lock, event.asked
        if event.kind is RecordKind.ABANDONED:
            _settled_by_holder(self, event, "abandon", now)
        elif event.kind is RecordKind.DEFERRED:
            _settled_by_holder(self, event, "defer", now)
        elif event.kind is RecordKind.LOCK_EXPIRED and (
            lock is None or (lock.until > now and (asked is None or asked.verb != "lose"))
        ):
            raise self.broken(name, f"a lock ran out that had not: {lock}")


class CountIsRight(Checker):
    """One more for each failed delivery; the same for anything else."""

    promise = "the delivery count is right"

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._confirmed: Counter[str] = Counter()
        self._possible: Counter[str] = Counter()
        self._again: set[str] = set()
        """Sent again, which begins anew; what was confirmed before may be told after it."""

    def confirmed(self, verb: str, names: Iterable[str]) -> None:
        if verb in ("abandon", "defer"):
            self._confirmed.update(names)

    def decided(self, event: Event, now: int) -> None:
        before, after = event.before, event.after
        if before is None:
            is_new = event.kind is RecordKind.ENQUEUED or self._comes_again(event)
            if after.count and is_new:
                raise self.broken(after.name, f"new, and delivered {after.count} times already")
            return
        if event.kind is RecordKind.RESUBMITTED:
            self._again.add(after.name)
        rise = int(event.kind in FAILS)
        if event.kind is RecordKind.DEAD_LETTERED:
            rise = int(self._dead_letter_counts(event, before, now))
        if before.subqueue != MAIN:
            rise = 0
        self._possible[after.name] += rise
        if after.count != before.count + rise:
            raise self.broken(
                after.name,
                f"{event.kind.name} after {before.count} deliveries made it {after.count}",
            )

    def _comes_again(self, event: Event) -> bool:
        asked = event.asked
        return event.kind is RecordKind.PUT_BACK and asked is not None and asked.verb == "resubmit"

    def _dead_letter_counts(self, event: Event, before: Entry, now: int) -> bool:
        limit = self.model.policy.max_delivery_count
        if event.after.subqueue != DEAD_LETTER or before.subqueue != MAIN:
            raise self.broken(before.name, f"dead-lettered from {before} to {event.after}")
        if event.after.reason == "MaxDeliveryCountExceeded":
            if event.after.count < limit or event.lock is None:
                raise self.broken(before.name, f"dead-lettered too early: {event.after}")
            return True
        if event.after.reason == "TTLExpiredException":
            if not before.expired(now) or _in_force(event, now):
                raise self.broken(before.name, f"expired before its time: {before}")
        else:
            _settled_by_holder(self, event, "dead_letter", now)
        return False

    def delivered(self, name: str, count: int, subqueue: int) -> None:
        self._within(name, count, subqueue)

    def seen(self, inventory: Seen, queue: Queue) -> None:
        for name, (entry, _) in inventory.items():
            self._within(name, entry.count, entry.subqueue)

    def _within(self, name: str, count: int, subqueue: int) -> None:
        least = 0 if name in self._again else self._confirmed[name]
        if subqueue == MAIN and not least <= count <= self._possible[name]:
            raise self.broken(
                name, f"counted {count}, of {least} to {self._possible[name]} failures"
            )


class OrderIsKept(Checker):
    promise = "ready messages go out by number"

    def taken(self, name: str, number: int, subqueue: int, now: int) -> None:
        first = self.model.first_ready(subqueue, now)
        if first is None or first.number != number:
            raise self.broken(name, f"number {number} went out before {first}")


class TotalsAreRight(Checker):
    promise = "size and counts are right"

    def seen(self, inventory: Seen, queue: Queue) -> None:
        counts = {place: n for place, n in queue.ledger.counts.items() if n}
        if counts != self.model.counts():
            raise self.broken(None, f"counts {counts}, there are {self.model.counts()}")
        if queue.ledger.size_bytes != self.model.size_bytes():
            raise self.broken(
                None, f"{queue.ledger.size_bytes} bytes, there are {self.model.size_bytes()}"
            )


class BodiesAreRight(Checker):
    promise = "no body is wrong or missing"

    def decided(self, event: Event, now: int) -> None:
        if event.body is not None:
            self._same(event.after.name, event.body)

    def shown(self, name: str, raw: bytes) -> None:
        self._same(name, raw)

    def seen(self, inventory: Seen, queue: Queue) -> None:
        for name, (_, body) in inventory.items():
            self._same(name, body)

    def _same(self, name: str, body: bytes) -> None:
        sent = self.model.sent.get(name)
        if sent is None or (sent.body != body and body not in sent.edited):
            raise self.broken(name, f"has a body nobody sent: {body!r}")


class TimeIsKept(Checker):
    promise = "nothing comes before its time"

    def decided(self, event: Event, now: int) -> None:
        before, after = event.before, event.after
        if event.kind is RecordKind.ACTIVATED:
            due = self.model.sent[after.name].scheduled_at
            if before is None or before.lane != SCHEDULED or now < due:
                raise self.broken(after.name, f"activated at {now}, due at {due}")
        elif event.kind is RecordKind.COPIED and after != before:
            raise self.broken(after.name, f"a copy changed {before} to {after}")
        elif event.kind is RecordKind.DEFERRED and after.lane != DEFERRED:
            raise self.broken(after.name, f"deferred, and in lane {after.lane}")


class ModelIsMatched(Checker):
    promise = "the queue holds what it must"

    def decided(self, event: Event, now: int) -> None:
        brings = event.kind in (RecordKind.ENQUEUED, RecordKind.SCHEDULED, RecordKind.PUT_BACK)
        if brings != (event.before is None):
            raise self.broken(event.after.name, f"{event.kind.name} of {event.before}")

    def seen(self, inventory: Seen, queue: Queue) -> None:
        live = self.model.live
        for name in sorted(live.keys() | inventory.keys()):
            found = inventory[name].entry if name in inventory else None
            if found != live.get(name):
                raise self.broken(name, f"found {found}, must be {live.get(name)}")


def _in_force(event: Event, now: int) -> bool:
    return event.lock is not None and event.lock.until > now


def _settled_by_holder(checker: Checker, event: Event, verb: str, now: int) -> None:
    asked, lock = event.asked, event.lock
    if lock is None or lock.until <= now or asked != Asked(verb, lock.token):
        raise checker.broken(event.after.name, f"{event.kind.name}: {asked} under {lock}")


def all_checkers(model: Model) -> list[Checker]:
    kinds = [DurableFirst, NothingIsLost, RefusedIsNotThere, NothingReturns, OneHolder]
    kinds += [CountIsRight, OrderIsKept, TotalsAreRight, BodiesAreRight, TimeIsKept, ModelIsMatched]
    return [kind(model) for kind in kinds]
