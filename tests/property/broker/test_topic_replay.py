"""Whatever happens to a topic and to what it forwards, a crash leaves exactly what was committed,
and index and tail say what every record ever written says."""

from __future__ import annotations

import random
from contextlib import suppress
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postbus.broker import chores, forwarding, topic
from postbus.broker.destination import Destination
from postbus.broker.ledger import Layout, Ledger
from postbus.broker.message import ACTIVE, PUBLISHING, ForwardingInfo, Message
from postbus.broker.policy import Policy
from postbus.broker.record_kinds import BRINGS_BODY, RecordKind
from postbus.broker.records import decode, encode, encode_with_body
from postbus.broker.subqueue_numbers import DEAD_LETTER, KIND_MASK, MAIN, subqueue_of
from postbus.errors import ServiceBusError
from postbus.store import batch
from postbus.store.memory.store import MemoryStore
from tests.support.topics import Place, Sorter

_ALL = 1 << 20

HERE, THERE, SPREAD = Destination((1,)), Destination((2,)), Destination((1, 2) * 8)


def told(ledger: Ledger, place: Place | None) -> list[tuple[object, ...]]:
    """All there is, as its rows are written, with the totals that are kept of it."""
    found: list[tuple[object, ...]] = [(ledger.size_bytes, sorted(ledger.marks.items()))]
    size = 0
    for (subqueue, lane), count in sorted(ledger.counts.items()):
        stored = (
            place.store.index.load_lane(place.fragment, subqueue, lane, 0, _ALL) if place else []
        )
        messages, _ = ledger.delta.over_lane(stored, subqueue, lane, 0, _ALL)
        assert len(messages) == count
        size += sum(message.weight for message in messages)
        found += [
            (subqueue, lane, message.number, message.base, message.position, encode_of(message))
            for message in messages
        ]
    assert ledger.size_bytes == size
    return found


def encode_of(message: Message) -> bytes:
    message.delivered_at = 0
    return encode(RecordKind.ADVANCED, message, 0, 0, 0)


def full_replay(place: Place) -> Ledger:
    ledger = Ledger(Layout(batch.HEADER_SIZE, batch.RECORD_PREFIX_SIZE), 0, 0, b"")
    for stored in place.store.read(place.fragment, 0, _ALL):
        for position, record in batch.records(stored.data):
            ledger.replay(decode(record), stored.base, position, batch.unpack(stored.data).at)
    return ledger


class Actor:
    """Does one random thing after the other to a topic and to the queue behind it."""

    def __init__(self, chance: random.Random, checkpoint_every: int) -> None:
        store = MemoryStore()
        self.chance = chance
        self.topic = Place(store, 1, matcher=Sorter(), checkpoint_every=checkpoint_every)
        self.end = Place(store, 2, checkpoint_every=checkpoint_every)
        self.owners = 0
        self.sent = 0
        self.subscribe()

    def step(self) -> None:
        acts = [self.publish] * 4 + [self.spread] * 4 + [self.take] * 4 + [self.ship] * 3
        acts += [self.subscribe, self.unsubscribe, self.purge, self.purge, self.update, self.wait]
        with suppress(ServiceBusError):  # a refusal is an answer, and must change nothing
            self.chance.choice(acts)()

    def _policy(self) -> Policy:
        return Policy(
            forward_to=self.chance.choice([None, None, HERE, THERE, SPREAD]),
            forward_dead_letters_to=self.chance.choice([None, THERE, SPREAD]),
            max_delivery_count=2,
        )

    def _owner(self) -> int:
        return self.chance.choice([0, *self.topic.policies])

    def subscribe(self) -> None:
        if len(self.topic.policies) < 5:
            self.owners += 1
            self.topic.subscribe(self.owners, self._policy())

    def unsubscribe(self) -> None:
        if owner := self._owner():
            self.topic.unsubscribe(owner)

    def update(self) -> None:
        if owner := self._owner():
            self.topic.update(self._policy(), owner)
            self.topic.divert(owner)
        else:
            self.end.update(Policy(sends=self.chance.random() < 0.7))

    def publish(self) -> None:
        names = [f"m{self.sent + n}" for n in range(self.chance.randint(1, 3))]
        self.sent += len(names)
        due = self.topic.now + self.chance.choice([0, 0, 500])
        self.topic.publish(*names, ttl=self.chance.choice([-1, 900]), scheduled_at=due)

    def spread(self) -> None:
        self.topic.spread_slice()

    def purge(self) -> None:
        self.topic.purge_slice()

    def wait(self) -> None:
        self.topic.wait(self.chance.choice([1, 300, 1_000]))

    def take(self) -> None:
        owner = self._owner()
        subqueue = subqueue_of(owner, self.chance.choice([MAIN, DEAD_LETTER]))
        queue, now = self.topic.at(owner), self.topic.now
        taken = self.topic.turn(lambda: queue.take(subqueue, 1, now))
        if taken is None or taken[0].token is None:
            return
        token, verb = taken[0].token, self.chance.choice(["complete", "abandon", "dead_letter"])
        self.topic.turn(lambda: getattr(queue, verb)(token, now))

    def ship(self) -> None:
        outboxes = list(self.topic.engine.shared.outboxes)
        if not outboxes:
            return
        subqueue = self.chance.choice(outboxes)
        shipment = self.topic.collect(subqueue)
        if shipment is None:
            return
        to = self.topic if shipment.destination == 1 else self.end
        receipt = to.accept(self.topic, subqueue, shipment)
        to.commit()
        if self.chance.random() < 0.8:  # or the answer is lost
            self.topic.settle(subqueue, shipment, receipt)


@pytest.mark.interpreted_only  # the bounds are made small
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0, 1, 7, 40]))
def test_a_crash_leaves_what_was_committed(seed: int, checkpoint_every: int) -> None:
    chance = random.Random(seed)
    few = chance.randint(1, 4)
    with (
        mock.patch.multiple(topic, COPIES_AT_ONCE=few, STAGED_ROWS=few),
        mock.patch.multiple(forwarding, SHIPPED_AT_ONCE=few, DIVERTED_AT_ONCE=few),
        mock.patch.multiple(chores, SLICE=few),
    ):
        actor = Actor(chance, checkpoint_every)
        for _ in range(chance.randint(1, 120)):
            actor.step()
            if chance.random() < 0.08:
                for place in (actor.topic, actor.end):
                    live = told(place.queue.ledger, place)
                    assert told(full_replay(place), None) == live
                    place.crash()
                    assert told(place.queue.ledger, place) == live


FIELDS = [
    "hops",
    "size",
    "former_size",
    "cursor",
    "newest",
    "destination",
    "origin",
    "origin_number",
]
FIELDS += ["origin_number", "envelope", "annotations"]
texts = st.none() | st.text(max_size=8)


@given(st.sampled_from(list(RecordKind)), st.data())
def test_every_kind_of_record_brings_back_the_trail_of_its_message(
    kind: RecordKind, data: st.DataObject
) -> None:
    draw = data.draw
    body = draw(st.binary(max_size=20))
    message = Message(body, draw(st.text(max_size=8)))
    message.subqueue = subqueue_of(draw(st.integers(0, 2_000)), draw(st.integers(0, KIND_MASK)))
    message.number = draw(st.integers(1, 1 << 48))
    message.reason, message.source = draw(texts), draw(texts)
    message.lane = draw(st.sampled_from([ACTIVE, PUBLISHING]))
    trail = message.trail = ForwardingInfo(draw(st.integers(0, 1 << 20)))
    trail.hops = draw(st.integers(0, 4))
    # Stored in one place, for no message has both.
    setattr(
        trail,
        "cursor" if message.lane == PUBLISHING else "former_size",
        draw(st.integers(0, 1 << 20)),
    )
    trail.newest = draw(st.integers(0, 1 << 20))
    trail.destination, trail.origin = draw(st.integers(-1, 99)), draw(st.integers(-1, 1 << 60))
    trail.origin_number = draw(st.integers(0, 1 << 60))
    trail.envelope, trail.annotations = draw(st.binary(max_size=9)), draw(st.binary(max_size=9))
    if kind in BRINGS_BODY:
        written = encode_with_body(kind, message, body)
    else:
        written = encode(kind, message, 4, 0, 1)
    read = decode(written)
    assert read.kind is kind and read.message.trail is not None
    for field in FIELDS:
        assert getattr(read.message.trail, field) == getattr(trail, field)
    assert (read.message.reason, read.message.source) == (message.reason, message.source)
    assert read.message.charge == trail.size
