"""A connection whose words take several turns of the loop: what may happen to it meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from postbus.amqp.codec.types import AmqpArray, Long, UInt
from postbus.amqp.connection import Connection, ConnectionState
from postbus.amqp.events import Closed, Disposed, Event, LinkAttached, LinkDetached, MessageReceived
from postbus.amqp.frames.framing import encode_frame
from postbus.amqp.frames.outcomes import Accepted
from postbus.amqp.frames.performatives import ROLE_RECEIVER, ROLE_SENDER, Attach, Transfer
from postbus.amqp.frames.terminus import Source, Target
from postbus.amqp.limits import Limits
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sasl_plain import encode_plain
from postbus.amqp.sections import (
    Properties,
    encode_amqp_value,
    encode_application_properties,
    encode_data,
    encode_properties,
    read_application_properties,
    scan,
)
from postbus.amqp.sending import SenderLink
from postbus.broker.engine import Engine
from postbus.broker.index_pages import Pages
from postbus.broker.message import Message
from postbus.broker.subqueue_numbers import MAIN
from postbus.config.content import Content, Queue
from postbus.errors import DetachForced, ServerBusy
from postbus.gateway.client_rights import ClientRights
from postbus.gateway.connection import Gateway
from postbus.messages.batches import BATCH_FORMAT
from postbus.messages.envelope import read_message
from postbus.model.description import QueueDescription
from postbus.namespace.entities import QueueEntity
from postbus.ops.config_file import NamespaceConfig
from postbus.runtime import runtime
from postbus.runtime.clock import SystemClock
from postbus.runtime.operations import ask
from postbus.server import Server
from postbus.settings import Settings
from postbus.store.memory.namespace_data import MemoryData
from tests.support.operations import Do

# With the limits of production a batch would need megabytes to take several turns.
pytestmark = [pytest.mark.interpreted_only, pytest.mark.usefixtures("small_limits", "capsys")]

COUNT = 40
LONG = 0x81
MESSAGE = encode_properties(Properties(message_id="m")) + encode_data(b"x")
E = TypeVar("E", bound=Event)


class Peer:
    """A client on the loop of its server, so that a test sees each turn of both."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.core = Connection(
            Limits(),
            container_id="peer",
            server=False,
            now=0,
            hostname="localhost",
            mechanisms=["PLAIN"],
            initial_response=encode_plain("RootManageSharedAccessKey", "SAS_KEY_VALUE"),
        )
        self.core.open()
        self.session = self.core.begin()
        self.seen: list[Event] = []

    def write(self, *frames: bytes) -> None:
        """Write what is due and these frames behind it, in one piece."""
        self._writer.write(self.core.data_to_send() + b"".join(frames))

    async def until(self, kind: type[E]) -> E:
        """Read until something happens."""
        async with asyncio.timeout(10):
            while not (found := [each for each in self.seen if isinstance(each, kind)]):
                data = await self._reader.read(65_536)
                assert data, f"the connection ended, and no {kind.__name__} came"
                self.seen += self.core.receive_data(data, 0)
                self.write()
        return found[0]

    async def sender(self, address: str = "orders") -> SenderLink:
        attach = Attach("s", 0, ROLE_SENDER, source=Source("s"), target=Target(address))
        link = self.session.attach(SenderLink, attach)
        self.write()
        async with asyncio.timeout(10):
            while not link.sendable:
                self.seen += self.core.receive_data(await self._reader.read(65_536), 0)
                self.write()
        return link

    def send_batch(self, link: SenderLink, and_more: int = 0) -> None:
        """Send a batch, and single messages behind it, in one piece."""
        link.send(b"batch", (encode_data(MESSAGE) * COUNT,), message_format=BATCH_FORMAT)
        for number in range(and_more):
            link.send(b"%d" % number, (MESSAGE,))
        self.write()

    async def ask(self, operation: str, body: dict[str, Any]) -> None:
        """Make a request of the management node, which may respond."""
        node = "orders/$management"
        attach = Attach("r", 0, ROLE_RECEIVER, source=Source(node), target=Target("t"))
        responses = self.session.attach(ReceiverLink, attach)
        link = await self.sender(node)
        responses.grant(1)
        request = (
            encode_properties(Properties(message_id="p", reply_to=node)),
            encode_application_properties({"operation": f"com.microsoft:{operation}"}),
            encode_amqp_value(body),
        )
        link.send(b"q", request)
        self.write()

    def leave(self) -> None:
        self._writer.transport.abort()


class Place:
    """A server, a peer, and the server's end of its connection."""

    def __init__(self, server: Server, peer: Peer) -> None:
        self.server = server
        self.peer = peer

    @property
    def gateway(self) -> Gateway:
        [gateway] = self.server._service.gateways
        assert isinstance(gateway, Gateway)
        return gateway

    @property
    def orders(self) -> QueueEntity:
        entity = self.server.namespace.queue("orders")
        assert entity is not None
        return entity

    @property
    def unfinished_bytes(self) -> int:
        return self.server._metrics.connections.budgets[1].used_bytes

    async def stored_count(self) -> int:
        counts = await self.server.namespace.counts("orders")
        return counts.active + counts.scheduled

    @property
    def locks(self) -> dict[bytes, Message]:
        engine = self.orders.only_fragment.engine
        return {} if engine is None else engine.own.locks

    async def defer_some(self) -> list[Long]:
        """Deferred messages that take several turns to write, by their numbers."""
        properties = encode_application_properties({"n": 1})
        messages = [read_message(properties + MESSAGE, 1_000) for _ in range(COUNT)]

        def defer(engine: Engine, now: int, _: Pages) -> list[Long]:
            found = []
            engine.send(messages, now)
            while (taken := engine.own.take(MAIN, 1, now)) is not None:
                message = taken[0]
                assert message.token is not None
                found.append(Long(message.number))
                engine.own.defer(message.token, now, None)
            return found

        numbers: list[Long] = await ask(
            self.server.namespace.runtime(self.orders.only_fragment),
            self.orders.only_fragment,
            Do(defer),
        )
        return numbers

    async def behind(self) -> Gateway:
        """Wait until the connection is in the middle of a piece of work."""
        await self.when(lambda: self.gateway._input.work is not None)
        return self.gateway

    async def when(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0)

    async def quiet(self) -> None:
        await self.when(lambda: self.server._service.sliced_work.idle)
        for each in self.server.namespace.runtimes:
            await each.quiet()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    settings = Settings(
        data=tmp_path,
        ephemeral=False,
        port=0,
        admin_port=0,
        shutdown_grace_ms=10_000,
        unfinished_delivery_timeout_ms=300,
    )
    config = NamespaceConfig(content=Content((Queue("orders", QueueDescription()),)))
    server = Server(settings, config, MemoryData(SystemClock().now()))
    await server.start()
    port = server._listener._servers[0].sockets[0].getsockname()[1]
    peer = Peer(*await asyncio.open_connection("127.0.0.1", port))
    yield Place(server, peer)
    peer.leave()
    if not server._stop.is_set():
        server._signalled()
        await server.serve()


async def test_what_is_held_is_weighed_also_where_it_was_read_in_pieces(place: Place) -> None:
    """Else nothing bounds it, and no timer ends a message that never does."""
    await place.peer.sender()
    whole = encode_frame(0, Transfer(0, 0, b"t", 0, settled=True), encode_data(b"x"))
    part = encode_frame(0, Transfer(0, 1, b"t", 0, more=True), bytes(5_000))
    place.peer.write(whole * 5, part)
    await place.when(lambda: place.unfinished_bytes > 5_000)
    assert (await place.peer.until(LinkDetached)).error is not None
    await place.when(lambda: place.unfinished_bytes == 0)


async def test_what_has_come_is_answered_before_a_stop_also_where_it_is_half_read(
    place: Place,
) -> None:
    link = await place.peer.sender()
    place.peer.send_batch(link)
    await place.behind()
    place.server._signalled()
    stopping = asyncio.ensure_future(place.server.serve())
    await place.peer.until(Closed)
    assert [type(each.state) for each in place.peer.seen if isinstance(each, Disposed)] == [
        Accepted
    ]
    place.peer.leave()
    await stopping


async def test_a_link_that_is_detached_in_the_middle_of_its_batch_stores_none_of_it(
    place: Place,
) -> None:
    """After its key is gone, nothing is stored that the key had opened."""
    link = await place.peer.sender()
    place.peer.send_batch(link)
    gateway = await place.behind()
    [served] = gateway.links()
    gateway.detach(served, DetachForced("The right was taken away."), "orders")
    await place.peer.until(LinkDetached)
    await place.quiet()
    assert await place.stored_count() == 0
    assert gateway._reading, "and its client is listened to again"


async def test_a_right_that_ends_while_a_request_is_read_does_not_schedule_its_messages(
    place: Place,
) -> None:
    entries = [{"message-id": "m", "message": MESSAGE}] * COUNT
    await place.peer.ask("schedule-message", {"messages": entries})
    gateway = await place.behind()
    gateway.rights = ClientRights(gateway.service, gateway._elapsed_ms())  # as when a key goes
    payload = (await place.peer.until(MessageReceived)).delivery.payload
    assert read_application_properties(payload, scan(payload))["statusCode"] == 401
    assert await place.stored_count() == 0


async def test_a_connection_that_breaks_while_its_response_is_written_keeps_no_lock(
    place: Place,
) -> None:
    """R-SETTLE-10."""
    numbers = await place.defer_some()
    body = {"sequence-numbers": AmqpArray(LONG, [*numbers]), "receiver-settle-mode": UInt(1)}
    await place.peer.ask("receive-by-sequence-number", body)
    await place.when(lambda: len(place.locks) == len(numbers))
    place.gateway.abort()
    await place.quiet()
    assert not place.locks


@pytest.mark.parametrize("how", ["closes", "breaks", "is lost", "has ended, over TLS"])
async def test_a_peer_that_leaves_behind_its_batch_has_sent_it(place: Place, how: str) -> None:
    link = await place.peer.sender()
    place.peer.send_batch(link, and_more=3)
    if how == "closes":
        place.peer.core.close()
        place.peer.write()
    gateway = await place.behind()
    if how == "breaks":
        place.peer.leave()
    elif how == "is lost":
        gateway.abort()  # as where a write fails: the end comes though nothing is read
    elif how == "has ended, over TLS":
        gateway.eof_received()  # TLS tells of the end together with the last bytes
    await place.when(lambda: how != "is lost" or gateway._transport is None)
    assert gateway in place.server._service.gateways
    await place.quiet()
    assert await place.stored_count() == COUNT + 3
    place.peer.leave()
    await place.when(lambda: not place.server._service.gateways)
    assert place.server._metrics.connections.open_count == 0


async def test_the_end_of_a_silent_connection_comes_behind_its_batch(place: Place) -> None:
    link = await place.peer.sender()
    place.peer.send_batch(link)
    gateway = await place.behind()
    gateway.handle(gateway._connection.tick(gateway._elapsed_ms() + 1_000_000_000))
    assert gateway._connection.state is ConnectionState.CLOSING
    await place.quiet()
    assert await place.stored_count() == COUNT


async def test_a_close_that_was_not_read_when_a_write_failed_is_an_orderly_end(
    place: Place,
) -> None:
    """R-SETTLE-10: the Python SDK closes its socket right behind its close frame."""
    await place.peer.sender()
    gateway = place.gateway
    gateway.pause_writing()  # so that nothing is read
    place.peer.core.close()
    place.peer.write()
    gateway.connection_lost(BrokenPipeError())
    await place.when(lambda: not place.server._service.gateways)
    assert not gateway._is_broken


async def test_single_messages_take_as_many_turns_as_a_batch_of_them(place: Place) -> None:
    link = await place.peer.sender()
    long = encode_application_properties({f"{n}": n for n in range(100)}) + encode_data(b"x")
    for number in range(COUNT):
        link.send(b"%d" % number, (long,))
    place.peer.write()
    await place.when(lambda: bool(place.gateway._input.events))
    await place.quiet()
    assert await place.stored_count() == COUNT


async def test_a_peer_that_reads_again_is_read_again(place: Place) -> None:
    await place.peer.sender()
    place.gateway.pause_writing()
    assert not place.gateway._reading
    place.gateway.resume_writing()
    assert place.gateway._reading


async def test_nothing_more_is_read_while_a_batch_is(place: Place) -> None:
    """Else a peer could have the broker keep as much as it can send meanwhile."""
    link = await place.peer.sender()
    place.peer.send_batch(link)
    gateway = await place.behind()
    assert not gateway._reading
    gateway.resume_writing()
    gateway.touch()
    await asyncio.sleep(0)
    assert gateway._input.work is not None and not gateway._reading
    await place.quiet()
    await place.when(lambda: gateway._reading)


@pytest.mark.parametrize("lost_before", [False, True])
async def test_work_that_fails_ends_its_connection(place: Place, lost_before: bool) -> None:
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: failures.append(what))
    link = await place.peer.sender()
    place.peer.send_batch(link)
    gateway = await place.behind()

    def fail() -> bool:
        raise ValueError("broken")

    if lost_before:
        gateway.abort()
        await place.when(lambda: gateway._input.ended)
    gateway._input.work = fail
    await place.when(lambda: not place.server._service.gateways)
    assert len(failures) == 1
    assert place.server._metrics.connections.open_count == 0
    assert not place.orders.links


async def test_a_connection_that_is_given_up_leaves_no_receiver_behind(place: Place) -> None:
    """Nobody lets go of a receiver whose attach is looked at when its link has ended."""
    link = await place.peer.sender()
    place.peer.send_batch(link)
    gateway = await place.behind()
    attach = Attach("r", 1, ROLE_RECEIVER, source=Source("orders"), target=Target("t"))
    place.peer.session.attach(ReceiverLink, attach)
    place.peer.write()
    await place.when(lambda: len(gateway.links()) == 2)
    [_, receiver] = gateway.links()
    gateway.give_up(ServerBusy("It holds too much."), "memory_unfinished")
    await place.when(lambda: gateway not in place.server._service.gateways)
    # As where the budget ends the connection between two events of one read.
    gateway.handle([LinkAttached(receiver, attach)])
    assert not place.orders.links
    assert not place.orders.only_fragment.receivers_of(MAIN).members


async def test_the_silence_of_a_peer_that_is_not_read_means_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = await place.peer.sender()
    monkeypatch.setattr(runtime, "QUEUED_REQUESTS_MAX", -1)
    place.peer.send_batch(link)
    await place.peer.until(Disposed)
    gateway = place.gateway
    assert not gateway._reading, "the broker has too much to do"
    later_ms = gateway._elapsed_ms() + 10_000_000
    monkeypatch.setattr(Gateway, "_elapsed_ms", lambda _: later_ms)
    gateway._ring()
    assert gateway._connection.state is ConnectionState.OPEN
    monkeypatch.undo()
    for each in place.server.namespace.runtimes:
        each.wake(place.orders.only_fragment)
    await place.when(lambda: gateway._reading)
