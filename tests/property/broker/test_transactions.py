"""Whatever a transaction does and whatever is in its way: all of it happens, or nothing.

Each example builds an entity, enlists some of everything, lets one thing go wrong or none, and
commits. What is refused has changed nothing; what is not is there in full after a crash as well.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from postbus.broker import browse
from postbus.broker.message import (
    ACTIVE,
    DEFERRED,
    LANES,
    OUTBOX,
    SCHEDULED,
    Message,
    NewProperties,
)
from postbus.broker.subqueue_numbers import TRANSFER_DEAD_LETTER, subqueue_of
from postbus.broker.transaction import Settlement, Transaction, Verdict
from postbus.errors import InvalidArgument, ServiceBusError
from tests.support.topics import Place, Sorter

THERE = 9
LATER_MS = 3_600_000
WRONGS = (
    "nothing",
    "lock lost",
    "cancelled",
    "full",
    "sends disabled",
    "receives disabled",
    "too large",
    "unreadable",
    "loaded again",
)

operations = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 4)),
        st.tuples(st.just("schedule"), st.integers(1, 3)),
        st.tuples(st.just("post"), st.integers(1, 4)),
        st.tuples(st.just("settle"), st.sampled_from(Verdict)),
        st.tuples(st.just("settle deferred"), st.sampled_from(Verdict)),
        st.tuples(st.just("rewrite"), st.sampled_from([Verdict.ABANDON, Verdict.DEAD_LETTER])),
        st.tuples(st.just("cancel"), st.integers(1, 3)),
    ),
    min_size=1,
    max_size=12,
)


class Scene:
    """An entity with enough of everything, and a transaction on it."""

    def __init__(self, topic: bool, checkpoint_every: int) -> None:
        self.place = Place(matcher=Sorter() if topic else None, checkpoint_every=checkpoint_every)
        place = self.place
        self.owner = 1 if topic else 0
        if topic:
            place.subscribe(self.owner)
        self.subqueue = subqueue_of(self.owner)
        place.publish(*[f"old{n}" for n in range(30)])
        self.scheduled = place.publish(
            *[f"due{n}" for n in range(40)], scheduled_at=place.now + LATER_MS
        )
        self.transaction = Transaction()
        self.settlements: list[Settlement] = []
        self.cancelled: list[int] = []
        self.made = 0
        self.expected: dict[str, int] = {"send": 0, "schedule": 0, "post": 0}
        self.readable = True

    @property
    def queue(self) -> Any:
        return self.place.at(self.owner)

    def messages(self, kind: str, count: int) -> list[Message]:
        self.expected[kind] += count
        self.made += count
        at = self.place.now + LATER_MS if kind == "schedule" else 0
        return [
            Message(b"new body", f"{kind}{self.made - n}", scheduled_at=at) for n in range(count)
        ]

    def take(self, deferred: bool) -> bytes:
        place, queue = self.place, self.queue
        taken = place.turn(lambda: queue.take(self.subqueue, 1, place.now))
        assert taken is not None
        message = taken[0]
        if deferred:
            number = message.number
            place.turn(lambda: queue.defer(message.token, place.now))
            [(message, _)] = place.paged(
                lambda pages: browse.receive_deferred(
                    queue, self.subqueue, [number], False, 1, place.now, pages
                )
            )
        assert message.token is not None
        return bytes(message.token)

    def rewrite(self, message: Message, raw: bytes | None) -> NewProperties:
        if not self.readable:
            raise InvalidArgument("unreadable")
        return NewProperties(b"new properties", 14)

    def do(self, kind: str, argument: Any) -> None:
        place, transaction = self.place, self.transaction
        engine = place.engine
        if kind == "send":
            transaction.send(engine, self.messages(kind, argument))
        elif kind == "schedule":
            transaction.schedule(engine, self.messages(kind, argument))
        elif kind == "post":
            transaction.post(engine, THERE, self.messages(kind, argument))
        elif kind == "cancel":
            numbers = self.scheduled[len(self.cancelled) :][:argument]
            place.paged(lambda pages: transaction.cancel(engine, numbers, pages))
            self.cancelled += numbers
        else:
            token = self.take(deferred=kind == "settle deferred")
            settlement = Settlement(
                self.subqueue,
                token,
                argument,
                "why",
                "because",
                self.rewrite if kind == "rewrite" else None,
            )
            transaction.settle(engine, [settlement], place.now)
            self.settlements.append(settlement)

    def go_wrong(self, wrong: str) -> None:
        place = self.place
        own = place.engine.own
        if wrong == "lock lost" and self.settlements:
            token = self.settlements[-1].token
            place.turn(lambda: self.queue.lose(token, place.now))
        elif wrong == "cancelled" and self.cancelled:
            place.cancel(self.cancelled[-1])
        elif wrong == "full":
            own.policy = own.policy._replace(size_bytes_max=place.queue.ledger.size_bytes)
        elif wrong == "sends disabled":
            own.policy = own.policy._replace(sends=False)
        elif wrong == "receives disabled":
            self.queue.policy = self.queue.policy._replace(receives=False)
        elif wrong == "too large":
            own.policy = own.policy._replace(message_size_max=1)
        elif wrong == "unreadable":
            self.readable = False
        elif wrong == "loaded again":
            place.crash()

    def commit(self) -> ServiceBusError | None:
        place = self.place
        try:
            place.paged(lambda pages: self.transaction.commit(place.engine, place.now, pages))
        except ServiceBusError as error:
            return error
        return None


def snapshot(place: Place) -> tuple[Any, ...]:
    """Everything durable."""
    ledger = place.queue.ledger
    rows = [
        (m.subqueue, m.lane, m.number, m.message_id, m.delivery_count, m.properties, m.reason)
        for owner in place.engine.queues
        for kind in range(3)
        for lane in LANES
        for m in place.rows(owner, kind, lane)
    ]
    return rows, dict(ledger.counts), ledger.size_bytes


def must_fail(scene: Scene, wrong: str, asked: list[tuple[str, Any]]) -> bool:
    kinds = {kind for kind, _ in asked}
    sends = bool(kinds & {"send", "schedule"})
    if wrong in ("lock lost", "receives disabled"):
        return bool(scene.settlements)
    return {
        "nothing": False,
        "cancelled": bool(scene.cancelled),
        "full": sends or "post" in kinds,
        "sends disabled": sends,
        "too large": sends or "post" in kinds,
        "unreadable": "rewrite" in kinds,
        "loaded again": True,
    }[wrong]


@settings(max_examples=300)
@given(
    asked=operations,
    wrong=st.sampled_from(WRONGS),
    topic=st.booleans(),
    checkpoint_every=st.sampled_from([0, 1, 7]),
)
def test_all_of_it_happens_or_nothing(
    asked: list[tuple[str, Any]], wrong: str, topic: bool, checkpoint_every: int
) -> None:
    scene = Scene(topic, checkpoint_every)
    place = scene.place
    for kind, argument in asked:
        scene.do(kind, argument)
    scene.go_wrong(wrong)
    before, held = snapshot(place), set(scene.queue.locks)

    refused = scene.commit()

    assert (refused is not None) == must_fail(scene, wrong, asked), refused
    if refused is not None:
        assert snapshot(place) == before and set(scene.queue.locks) == held
        scene.transaction.roll_back(place.engine)
        assert snapshot(place) == before and set(scene.queue.locks) == held
    else:
        check_all_happened(scene)
    assert not place.engine.shared.enlisted and not place.engine.shared.transactions
    after = snapshot(place)
    place.crash()
    assert snapshot(place) == after


def check_all_happened(scene: Scene) -> None:
    place = scene.place
    assert not {each.token for each in scene.settlements} & set(scene.queue.locks)
    names = place.names(scene.owner)
    assert sum(name.startswith("send") for name in names) == scene.expected["send"]
    waiting = place.rows(lane=SCHEDULED)
    assert sum(m.message_id.startswith("schedule") for m in waiting) == scene.expected["schedule"]
    assert not {m.number for m in waiting} & set(scene.cancelled)
    posted = place.rows(kind=TRANSFER_DEAD_LETTER, lane=OUTBOX)
    assert len(posted) == scene.expected["post"]
    # Deferred ones go back to where they were, and count as before.
    gone = {Verdict.COMPLETE, Verdict.DEAD_LETTER}
    left = sum(place.queue.ledger.count(scene.subqueue, lane) for lane in (ACTIVE, DEFERRED))
    settled = sum(each.verdict in gone for each in scene.settlements)
    assert left == 30 - settled + scene.expected["send"]
