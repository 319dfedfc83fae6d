"""Requests to `$management`: read, decided by a real engine, and answered; no connection."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

from postbus.amqp.codec import decode
from postbus.amqp.sections import Properties, encode_data, encode_properties
from postbus.broker import chores, session_operations
from postbus.broker.index_pages import Need
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import MAIN
from postbus.errors import ServiceBusError
from postbus.gateway.management import ManagementNode
from postbus.gateway.nodes import MANAGEMENT_SPELLING, NodeRequest
from postbus.messages.envelope import read_message
from postbus.observe.meters import EntityMeter
from postbus.runtime.requests import Call
from tests.support.engine import T0, Engine

LOCKED = UUID(bytes_le=(7).to_bytes(4, "big") + (1).to_bytes(4, "big") + bytes(8))
"""Stands in a sample for the token of a locked message, which differs with every engine."""


class ClientSender:
    """The way back: answers are only kept."""

    path = "orders/$management"
    spelling = MANAGEMENT_SPELLING

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.gateway = SimpleNamespace(
            refusals=SimpleNamespace(describe=lambda error, entity, stranger: str(error)),
            stranger=False,
        )

    def send_back(self, payload: tuple[bytes, ...], reply_to: str | None) -> None:
        self.answers.append(b"".join(payload))


class Runtime:
    """Decides a call at once, with the pages it asks for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def submit(self, call: Call) -> None:
        engine = self._engine

        def decide(pages: Any) -> Need | None:
            call.pages = pages
            return call.decide(engine.engine, engine.now)

        try:
            engine.paged(decide)
        except ServiceBusError as error:
            call.refuse(error)
        else:
            call.answer()


def engine_with_messages() -> tuple[Engine, bytes]:
    """One active, one scheduled, one deferred and one locked message; the lock's token."""
    engine = Engine()
    for i in range(4):
        raw = encode_properties(Properties(message_id=f"m{i}")) + encode_data(b"body %d" % i)
        message = read_message(raw, 1_000)
        if i == 3:
            message.enqueued_at = T0 + 60_000
        messages = [message]
        engine.turn(lambda messages=messages: engine.queue.send(messages, T0))
    deferred, locked = engine.receive(), engine.receive()
    assert deferred is not None and locked is not None and locked.token is not None
    engine.defer(deferred)
    return engine, locked.token


def engine_with_sessions() -> tuple[Engine, bytes]:
    """Two sessions: of one that is held a message is deferred and one is locked; the lock's
    token."""
    engine = Engine(Policy(requires_session=True))
    for i in range(4):
        properties = Properties(message_id=f"m{i}", group_id="s" if i < 3 else "free")
        raw = encode_properties(properties) + encode_data(b"body %d" % i)
        messages = [read_message(raw, 1_000)]
        engine.turn(lambda messages=messages: engine.queue.send(messages, T0))
    session = engine.turn(lambda: session_operations.accept(engine.queue, "s", 1, T0))
    engine.paged(lambda pages: chores.refill_session(engine.queue, "s", pages))
    engine.paged(lambda pages: chores.fetch_session_bodies(engine.queue, "s", pages))
    taken = [engine.queue.take_in_session(session, T0) for _ in range(2)]
    tokens = [None if each is None else each[0].token for each in taken]
    deferred, locked = tokens
    assert deferred is not None and locked is not None
    engine.turn(lambda: engine.queue.defer(deferred, T0))
    engine.paged(lambda pages: session_operations.set_state(engine.queue, "s", b"state", T0, pages))
    return engine, locked


def run_to_its_end(step: Callable[[], bool]) -> None:
    while step():
        pass


SESSIONAL: Final = 3


def run_management(data: bytes) -> None:
    """The first byte says which subqueue is asked, or that one with sessions is. Refuses what
    cannot be read (DecodeError) and what cannot be done (ServiceBusError); whatever is answered can
    be read."""
    place = data[0] % 4 if data else 0
    engine, token = engine_with_sessions() if place == SESSIONAL else engine_with_messages()
    sender: Any = ClientSender()
    gateway: Any = SimpleNamespace(
        allows=lambda right, path: True,
        now=T0,
        id=1,
        locked=lambda fragment, subqueue, locked_token: None,
        runtime=lambda fragment: Runtime(engine),
        proceed=run_to_its_end,
        service=SimpleNamespace(
            settings=SimpleNamespace(property_size_max_bytes=1_000, header_size_max_bytes=4_000),
            sliced_work=SimpleNamespace(add=run_to_its_end),
        ),
        session_holders=range(1_000),
    )
    fragment = SimpleNamespace(meter=None, name="orders")
    entity: Any = SimpleNamespace(
        only_fragment=fragment,
        fragment_for=lambda key: fragment,
        fragment_of_token=lambda token: fragment,
        partitioned=False,
        path="orders",
        meter=EntityMeter(),
        touch=lambda now: None,
        policy=lambda: engine.policy,
    )
    subqueue = MAIN if place == SESSIONAL else place
    node = ManagementNode(gateway, entity, subqueue, "orders/$management")
    payload = data[1:].replace(LOCKED.bytes, UUID(bytes_le=token).bytes)
    request = NodeRequest(sender, payload)
    try:
        node.handle(request)
    except ServiceBusError as error:
        request.refuse(error, "orders")
    [answer] = sender.answers
    offset = 0
    while offset < len(answer):
        _, offset = decode(answer, offset)
    engine.crash()  # what was written is what a restart can read
