"""The promises of queues, one class each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from postbus.broker.message import DEFERRED, OUTBOX, SCHEDULED, STATE, Message
from postbus.broker.record_kinds import RecordKind
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER
from tests.simulation import promises
from tests.simulation.history import Violation
from tests.simulation.queues.clients import LARGE
from tests.simulation.queues.messages import SentMessage, name_of
from tests.simulation.queues.model import REMOVES, Entry, Event, Place, QueueModel, entry_of
from tests.simulation.queues.peeking import check_peeks
from tests.simulation.queues.queues import Checker, Queues
from tests.simulation.receivers import Receiver
from tests.simulation.replay import Rows

ENDS = frozenset({"complete", "cancel"})
FAILS = frozenset({RecordKind.ABANDONED, RecordKind.LOCK_EXPIRED, RecordKind.DEFERRED})


class DurableFirst(Checker):
    promise = promises.FIRST

    def delivered(self, model: QueueModel, name: str, count: int, subqueue: int) -> None:
        if name not in self.queues.ledger.names:
            raise self.broken(name, "delivered, and the store does not have it")

    def confirmed(self, model: QueueModel, verb: str, names: Sequence[str]) -> None:
        for name in names:
            if verb == "send" and not self._is_stored(model, name):
                raise self.broken(name, "acknowledged, and the store does not have it")
            if verb in ENDS and model.durable.named(name) is not None:
                raise self.broken(name, f"{verb} was confirmed, and it is still there")

    def _is_stored(self, model: QueueModel, name: str) -> bool:
        ledger, sent = self.queues.ledger, self.queues.messages.by_name[name]
        return name in ledger.names or (model.id, sent.message_id) in ledger.dropped


class NothingIsLost(Checker):
    promise = promises.LOST

    def decided(self, model: QueueModel, event: Event) -> None:
        kind, before, asked = event.kind, event.before, event.asked
        if kind not in REMOVES or before is None:
            return
        name, allowed = before.name, True
        if kind is RecordKind.EXPIRED:
            allowed = before.expired(self.now) and not event.lock_in_force
        elif kind is RecordKind.COMPLETED:
            allowed = event.settled_as("complete")
        elif kind is RecordKind.CANCELLED:
            allowed = before.lane == SCHEDULED and _names(event, before)
        elif kind is RecordKind.RESUBMITTED:
            asked_for = asked is not None and asked.verb == "resubmit" and _names(event, before)
            allowed = asked_for and before.subqueue == DEAD_LETTER and event.lock is None
        elif kind is RecordKind.DELETED:
            allowed = asked is not None and asked.verb == "purge" and event.lock is None
        elif kind is RecordKind.FORWARDED:
            allowed = before.lane == OUTBOX
        elif kind is RecordKind.RECEIVED:
            allowed = event.lock is None
        if not allowed:
            raise self.broken(name, f"{kind.name} of {before}: {asked} under {event.lock}")

    def all_at_rest(self) -> None:
        """Everything is there once, was consumed once, or was dropped as a duplicate."""
        ledger = self.queues.ledger
        there: Counter[str] = Counter(ledger.consumed)
        for model in self.queues.models.values():
            there.update(e.name for e in model.durable.entries.values() if e.lane != STATE)
        dropped = Counter(ledger.dropped)
        for sent in self.queues.messages.by_name.values():
            if there[sent.name] > 1:
                raise Violation(promises.ONCE, sent.name, f"{there[sent.name]} of it")
            if there[sent.name] == 0 and _must_be_there(sent):
                dropped[sent.queue, sent.message_id] -= 1
                if dropped[sent.queue, sent.message_id] < 0:
                    raise self.broken(sent.name, "accepted, no duplicate, and not there")


def _names(event: Event, entry: Entry) -> bool:
    return event.asked is not None and entry.number in event.asked.numbers


def _must_be_there(sent: SentMessage) -> bool:
    if sent.transaction is None:
        return sent.acknowledged
    return sent.transaction.must_have(sent)


class RefusedIsNotThere(Checker):
    """A client that is refused sends again, perhaps with another id: the refused message must not
    come as well. Where the outcome is unknown, the client has to look."""

    promise = promises.REFUSED

    def all_at_rest(self) -> None:
        for sent in self.queues.messages.by_name.values():
            if sent.refused and sent.name in self.queues.ledger.names:
                raise self.broken(sent.name, "refused, and stored")


class NothingReturns(Checker):
    promise = promises.RETURNS

    def __init__(self, queues: Queues) -> None:
        super().__init__(queues)
        self._ended: set[str] = set()

    def confirmed(self, model: QueueModel, verb: str, names: Sequence[str]) -> None:
        if verb in ENDS:
            self._ended.update(names)

    def shown(self, name: str, message: Message, raw: bytes) -> None:
        if name in self._ended:
            raise self.broken(name, "shown or delivered after it was gone")

    def at_rest(self, model: QueueModel, rows: Rows) -> None:
        for row, body in rows:
            if name_of(body) in self._ended:
                raise self.broken(name_of(body), f"there after it was gone: {row.number}")


class OneHolder(Checker):
    promise = promises.LOCK

    def __init__(self, queues: Queues) -> None:
        super().__init__(queues)
        self._tokens: set[bytes] = set()

    def taken(self, model: QueueModel, receiver: Receiver, entry: Entry) -> None:
        self._check_free(model, entry.name)

    def _check_free(self, model: QueueModel, name: str) -> None:
        lock = model.locks.get(name)
        if lock is not None:
            raise self.broken(name, f"given out while {lock.holder} holds it until {lock.until}")

    def locked(self, model: QueueModel, message: Message, name: str) -> None:
        self._check_free(model, name)
        assert message.token is not None
        if message.token in self._tokens:
            raise self.broken(name, "a lock token was used twice")
        self._tokens.add(message.token)

    def decided(self, model: QueueModel, event: Event) -> None:
        kind, lock, asked = event.kind, event.lock, event.asked
        allowed = True
        if kind is RecordKind.ABANDONED:
            allowed = event.settled_as("abandon")
        elif kind is RecordKind.DEFERRED:
            allowed = event.settled_as("defer")
        elif kind is RecordKind.LOCK_EXPIRED:
            lost = asked is not None and asked.verb == "lose"
            allowed = lock is not None and (lost or not event.lock_in_force)
        if not allowed:
            raise self.broken(event.after.name, f"{kind.name}: {asked} under {lock}")


class CountIsRight(Checker):
    """One more for each failed delivery from a queue; the same for anything else."""

    promise = promises.COUNT

    def __init__(self, queues: Queues) -> None:
        super().__init__(queues)
        self._confirmed: Counter[str] = Counter()
        self._possible: Counter[str] = Counter()
        self._resubmitted: set[str] = set()
        """Their count begins anew; failures from before may be confirmed after it."""

    def confirmed(self, model: QueueModel, verb: str, names: Sequence[str]) -> None:
        if verb in ("abandon", "defer"):
            self._confirmed.update(names)

    def decided(self, model: QueueModel, event: Event) -> None:
        kind, before, after = event.kind, event.before, event.after
        if before is None:
            resubmitted = event.asked is not None and event.asked.verb == "resubmit"
            if after.count and (kind is not RecordKind.PUT_BACK or resubmitted):
                raise self.broken(after.name, f"new, and delivered {after.count} times already")
            return
        if kind is RecordKind.RESUBMITTED:
            self._resubmitted.add(after.name)
        rise = int(kind in FAILS)
        if kind is RecordKind.DEAD_LETTERED:
            rise = int(self._dead_letter_counts(model, event, before))
        if before.subqueue != MAIN:
            rise = 0
        self._possible[after.name] += rise
        if after.count != before.count + rise:
            text = f"{kind.name} after {before.count} deliveries made it {after.count}"
            raise self.broken(after.name, text)

    def _dead_letter_counts(self, model: QueueModel, event: Event, before: Entry) -> bool:
        after, counts = event.after, False
        if before.lane == OUTBOX:
            allowed = after.subqueue == TRANSFER_DEAD_LETTER
        elif after.subqueue != DEAD_LETTER or before.subqueue != MAIN:
            allowed = False
        elif after.reason == "MaxDeliveryCountExceeded":
            counts = True
            allowed = after.count >= model.policy.max_delivery_count and event.lock is not None
        elif after.reason == "TTLExpiredException":
            allowed = before.expired(self.now) and not event.lock_in_force
        else:
            allowed = event.settled_as("dead_letter")
        if not allowed:
            raise self.broken(before.name, f"dead-lettered from {before} to {after}")
        return counts

    def delivered(self, model: QueueModel, name: str, count: int, subqueue: int) -> None:
        self._check_within(name, count, subqueue)

    def at_rest(self, model: QueueModel, rows: Rows) -> None:
        for row, body in rows:
            self._check_within(name_of(body), row.delivery_count, row.subqueue)

    def _check_within(self, name: str, count: int, subqueue: int) -> None:
        least = 0 if name in self._resubmitted else self._confirmed[name]
        if subqueue == MAIN and not least <= count <= self._possible[name]:
            text = f"counted {count}, of {least} to {self._possible[name]} failures"
            raise self.broken(name, text)


class OrderIsKept(Checker):
    promise = promises.ORDER

    def taken(self, model: QueueModel, receiver: Receiver, entry: Entry) -> None:
        session_id = receiver.session_id
        if session_id is not None:
            model.check_holder(session_id, receiver.holder, self.now)
        ready = model.ready(receiver.subqueue, session_id, self.now)
        if not ready or ready[0] != entry:
            text = f"{entry.place} of {session_id!r} went out before {ready[:1]}"
            promise = self.promise if session_id is None else promises.SESSION_ORDER
            raise Violation(promise, entry.name, text)


class SendersOrderIsKept(Checker):
    promise = promises.SENDER

    def __init__(self, queues: Queues) -> None:
        super().__init__(queues)
        self._last: dict[tuple[int, int], int] = {}

    def written(self, model: QueueModel, event: Event, at: int) -> None:
        sent = self.queues.messages.by_name.get(event.after.name)
        if event.kind is not RecordKind.ENQUEUED or sent is None or sent.sender is None:
            return
        link = model.id, sent.sender
        if sent.order < self._last.get(link, -1):
            raise self.broken(sent.name, f"stored after m{self._last[link]}")
        self._last[link] = sent.order


class TotalsAreRight(Checker):
    promise = promises.TOTALS

    def at_rest(self, model: QueueModel, rows: Rows) -> None:
        engine = self.queues.world.fragments[model.id].engine
        if engine is None:
            return
        entries = model.live.entries.values()
        counts = {lane: n for lane, n in engine.ledger.counts.items() if n}
        there = Counter((entry.subqueue, entry.lane) for entry in entries)
        size = sum(entry.size for entry in entries)
        if counts != there:
            raise self.broken(None, f"counts {counts}, there are {there}")
        if engine.ledger.size_bytes != size:
            raise self.broken(None, f"{engine.ledger.size_bytes} bytes, there are {size}")


class BodiesAreRight(Checker):
    promise = promises.BODY

    def decided(self, model: QueueModel, event: Event) -> None:
        entry = event.after
        if event.body is not None and entry.lane != STATE:
            self._check(entry.name, entry.message_id, entry.session_id, event.body)

    def shown(self, name: str, message: Message, raw: bytes) -> None:
        self._check(name, message.message_id, message.session_id, raw)

    def at_rest(self, model: QueueModel, rows: Rows) -> None:
        for row, body in rows:
            if row.lane != STATE:
                self._check(name_of(body), row.message_id, row.session_id, body)

    def _check(self, name: str, message_id: str, session_id: str | None, body: bytes) -> None:
        sent = self.queues.messages.by_name.get(name)
        if sent is None or (body != sent.body and body not in sent.revised):
            raise self.broken(name, f"has a body nobody sent: {body!r}")
        if (sent.message_id, sent.session_id) != (message_id, session_id):
            raise self.broken(name, f"has become {message_id} of {session_id!r}")


class TimeIsKept(Checker):
    promise = promises.BEFORE

    def decided(self, model: QueueModel, event: Event) -> None:
        kind, before, after = event.kind, event.before, event.after
        if kind is RecordKind.ACTIVATED:
            due = self.queues.messages.by_name[after.name].due
            if before is None or before.lane != SCHEDULED or self.now < due:
                raise self.broken(after.name, f"activated at {self.now}, due at {due}")
        elif kind is RecordKind.COPIED and after != before:
            raise self.broken(after.name, f"a copy changed {before} to {after}")
        elif kind is RecordKind.DEFERRED and after.lane != DEFERRED:
            raise self.broken(after.name, f"deferred, and in lane {after.lane}")


class ModelIsMatched(Checker):
    promise = promises.MATCH

    def at_rest(self, model: QueueModel, rows: Rows) -> None:
        found: dict[Place, Entry] = {}
        for row, body in rows:
            entry = entry_of(name_of(body), row)
            found[entry.place] = entry
        durable = model.durable.entries
        for place in sorted(durable.keys() | found.keys()):
            if durable.get(place) != found.get(place):
                there = durable.get(place) or found[place]
                text = f"found {found.get(place)}, must be {durable.get(place)}"
                raise self.broken(there.name, text)
        engine = self.queues.world.fragments[model.id].engine
        if engine is not None and model.live.entries != durable:
            raise Violation(promises.REPLAY, None, "decided and written differ")
        check_peeks(self.queues, model)


class DueMessagesCome(Checker):
    """Whether or not the engine is in memory, as long as the store answers."""

    promise = promises.DUE

    def all_at_rest(self) -> None:
        for model in self.queues.models.values():
            for entry in model.durable.entries.values():
                if entry.lane == SCHEDULED and entry.enqueued_at < self.now:
                    text = f"due at {entry.enqueued_at}, it is {self.now}"
                    raise self.broken(entry.name, text)


class WorkHasEnded(Checker):
    promise = promises.ENDS

    def at_rest(self, model: QueueModel, rows: Rows) -> None:
        for entry in model.durable.entries.values():
            if entry.lane == OUTBOX:
                to = self.queues.messages.by_name[entry.name].queue
                # A destination without room keeps them waiting (semantics B §7).
                if self.queues.world.policy_of(to).size_bytes_max >= LARGE:
                    raise self.broken(entry.name, f"still on its way in {entry.place}")


class WaitersAreServed(Checker):
    """Receivers are looked at only where something happened, so a lost wake-up shows."""

    promise = promises.SERVED

    def all_at_rest(self) -> None:
        world = self.queues.world
        for receiver in world.receivers:
            model = self.queues.models.get(receiver.fragment.id)
            if model is None or not world.policy_of(model.id).receives or not receiver.capacity():
                continue
            for entry in model.ready(receiver.subqueue, None, world.now):
                raise self.broken(entry.name, f"nobody gets {entry}")


def queue_checkers(queues: Queues) -> list[Checker]:
    kinds: list[type[Checker]] = [DurableFirst, NothingIsLost, RefusedIsNotThere, NothingReturns]
    kinds += [OneHolder, CountIsRight, OrderIsKept, SendersOrderIsKept, WaitersAreServed]
    kinds += [
        TotalsAreRight,
        BodiesAreRight,
        TimeIsKept,
        ModelIsMatched,
        DueMessagesCome,
        WorkHasEnded,
    ]
    return [kind(queues) for kind in kinds]
