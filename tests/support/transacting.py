"""A client with transactions, on our own AMQP core: every frame is the test's to choose."""

from __future__ import annotations

from typing import Any

from postbus.amqp.codec.types import Described, Symbol, ULong
from postbus.amqp.deliveries import Disposed, IncomingDelivery
from postbus.amqp.events import LinkAttached, LinkDetached, MessageReceived, SettledBySender
from postbus.amqp.frames.outcomes import Accepted, Error, Outcome, Rejected
from postbus.amqp.frames.performatives import ROLE_RECEIVER, ROLE_SENDER, Attach, DeliveryState
from postbus.amqp.frames.terminus import Source, Target
from postbus.amqp.frames.transactions import (
    Coordinator,
    Declare,
    Declared,
    Discharge,
    TransactionalState,
)
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sections import (
    Properties,
    encode_amqp_value,
    encode_application_properties,
    encode_data,
    encode_properties,
    read_application_properties,
    read_data,
    read_value,
    scan,
)
from postbus.amqp.sending import SenderLink
from postbus.amqp.session import Session
from tests.support.raw_client import RawClient, now_ms
from tests.support.server import Server

SESSION_FILTER = Symbol("com.microsoft:session-filter")


class Refused(AssertionError):
    """What the server said no with."""

    def __init__(self, error: Error | None) -> None:
        super().__init__(f"{error}")
        self.condition = "" if error is None else error.condition
        self.text = "" if error is None else error.description or ""


class Transacting(RawClient):
    """One connection with one AMQP session. Everything waits for its answer."""

    def __init__(self, server: Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._tags = 0
        self.came: dict[ReceiverLink, list[IncomingDelivery]] = {}
        self._names = 0

    # -- links ---------------------------------------------------------------------------------

    def coordinator(self, session: Session | None = None) -> SenderLink:
        return self._sending(Coordinator([Symbol("amqp:local-transactions")]), session)

    def sender(
        self, address: str, destination: str | None = None, session: Session | None = None
    ) -> SenderLink:
        properties = None
        if destination is not None:
            properties = {Symbol("com.microsoft:transfer-destination-address"): destination}
        return self._sending(Target(str(address)), session, properties)

    def receiver(
        self,
        address: str,
        snd_settle_mode: int | None = None,
        session: Session | None = None,
        seen: list[Any] | None = None,
        session_id: str | None = None,
    ) -> ReceiverLink:
        """What comes until it is attached is added to `seen`."""
        self._names += 1
        filters = None if session_id is None else {SESSION_FILTER: session_id}
        source = Source(address, filter=filters)
        attach = Attach(f"r-{self._names}", 0, ROLE_RECEIVER, source=source, target=Target("t"))
        if snd_settle_mode is not None:
            attach.snd_settle_mode = snd_settle_mode
        link = (session or self.session).attach(ReceiverLink, attach)
        self.write()
        self._attached(link, [] if seen is None else seen)
        return link

    def _sending(
        self,
        target: Target | Coordinator,
        session: Session | None = None,
        properties: dict[Any, Any] | None = None,
    ) -> SenderLink:
        self._names += 1
        attach = Attach(
            f"s-{self._names}", 0, ROLE_SENDER, source=Source("s"), target=target,
            properties=properties,
        )  # fmt: skip
        link = (session or self.session).attach(SenderLink, attach)
        self.write()
        self._attached(link, [])
        while not link.sendable:
            self.pump()
        return link

    def _attached(self, link: SenderLink | ReceiverLink, seen: list[Any]) -> None:
        while True:
            events = self.pump()
            seen += events
            for event in events:
                if isinstance(event, LinkDetached) and event.link is link:
                    raise Refused(event.error)
                if isinstance(event, LinkAttached) and event.link is link:
                    return

    def read(self) -> list[Any]:
        data = self.socket.recv(262_144)
        if not data:
            raise ConnectionResetError("the server has closed the connection")
        events = self.core.receive_data(data, now_ms())
        self.write()
        return events

    def pump(self) -> list[Any]:
        """Read once; messages are kept for whoever asks for them."""
        events = self.read()
        for event in events:
            if isinstance(event, MessageReceived):
                self.came.setdefault(event.link, []).append(event.delivery)
        return events

    # -- messages ------------------------------------------------------------------------------

    def transfer(
        self, link: SenderLink, payload: bytes, transaction: bytes | None = None, **options: Any
    ) -> DeliveryState | None:
        """Send and wait for the verdict, whatever it is."""
        self._tags += 1
        state = None if transaction is None else TransactionalState(transaction)
        sent = link.send(self._tags.to_bytes(4, "big"), payload, state=state, **options)
        self.write()
        if options.get("settled"):
            return None
        while True:
            for event in self.pump():
                if isinstance(event, Disposed) and sent in event.deliveries:
                    return event.state
                if isinstance(event, LinkDetached) and event.link is link:
                    raise Refused(event.error)

    def send(self, link: SenderLink, body: str, transaction: bytes | None = None) -> None:
        """Send and have it taken: in a transaction, with the state that says so."""
        state = self.transfer(link, message(body), transaction)
        if transaction is None:
            expect(state)
        else:
            expect_in(state, transaction, Accepted())

    def fill(self, queue: str, *bodies: str) -> None:
        sender = self.sender(queue)
        for body in bodies:
            self.send(sender, body)

    def next(self, link: ReceiverLink) -> IncomingDelivery:
        """The next message on a link; credit is granted for it alone."""
        link.grant(1)
        self.write()
        while not self.came.get(link):
            self.pump()
        return self.came[link].pop(0)

    def settle_in(
        self, delivery: IncomingDelivery, outcome: Outcome, transaction: bytes
    ) -> DeliveryState | None:
        """Give a verdict and wait for its confirmation, whatever that is."""
        self.settle_later(delivery, outcome, transaction)
        self.write()
        while True:
            for event in self.pump():
                if isinstance(event, SettledBySender) and delivery in event.deliveries:
                    return event.state

    def settle_later(
        self, delivery: IncomingDelivery, outcome: Outcome, transaction: bytes
    ) -> None:
        """Give a verdict with the next frames that are written."""
        delivery.link.settle(delivery, TransactionalState(transaction, outcome), settled=False)

    def complete(self, delivery: IncomingDelivery, transaction: bytes) -> None:
        expect_in(self.settle_in(delivery, Accepted(), transaction), transaction, Accepted())

    # -- transactions --------------------------------------------------------------------------

    def declare(self, coordinator: SenderLink) -> bytes:
        state = self.transfer(coordinator, value(Declare()))
        if isinstance(state, Rejected):
            raise Refused(state.error)
        assert isinstance(state, Declared), state
        return state.txn_id

    def discharge(self, coordinator: SenderLink, transaction: bytes, fail: bool = False) -> None:
        expect(self.transfer(coordinator, value(Discharge(transaction, fail))))

    def commit(self, coordinator: SenderLink, transaction: bytes) -> None:
        self.discharge(coordinator, transaction)

    def roll_back(self, coordinator: SenderLink, transaction: bytes) -> None:
        self.discharge(coordinator, transaction, fail=True)

    # -- management ----------------------------------------------------------------------------

    def manage(
        self, address: str, operation: str, body: dict[str, Any], transaction: bytes | None = None
    ) -> tuple[int, Any]:
        """Ask `$management`, and return its status code and its answer."""
        node = f"{address}/$management"
        receiver = self.receiver(node)
        receiver.grant(10)
        sender = self.sender(node)
        payload = b"".join(
            (
                encode_properties(Properties(message_id="1", reply_to="t")),
                encode_application_properties({"operation": f"com.microsoft:{operation}"}),
                encode_amqp_value(body),
            )
        )
        expect(self.transfer(sender, payload, transaction), transaction)
        while not self.came.get(receiver):
            self.pump()
        reply = self.came[receiver].pop(0).payload
        sections = scan(reply)
        status = read_application_properties(reply, sections)["statusCode"]
        answer = read_value(reply, sections)
        receiver.detach()
        sender.detach()
        self.write()
        return status, answer


def expect(state: DeliveryState | None, transaction: bytes | None = None) -> None:
    """Accepted, or what it was refused with is raised."""
    if isinstance(state, Rejected):
        raise Refused(state.error)
    wanted = Accepted() if transaction is None else TransactionalState(transaction, Accepted())
    assert state == wanted, state


def expect_in(state: DeliveryState | None, transaction: bytes, outcome: Outcome) -> None:
    if isinstance(state, Rejected):
        raise Refused(state.error)
    assert state == TransactionalState(transaction, outcome), state


def message(body: str, message_id: str | None = None) -> bytes:
    properties = b"" if message_id is None else encode_properties(Properties(message_id=message_id))
    return properties + encode_data(body.encode())


def body_of(delivery: IncomingDelivery) -> str:
    return read_data(delivery.payload, scan(delivery.payload)).decode()


def value(asked: Declare | Discharge) -> bytes:
    fields: list[Any] = [asked.global_id] if isinstance(asked, Declare) else [
        asked.txn_id, asked.fail
    ]  # fmt: skip
    return encode_amqp_value(Described(ULong(asked.CODE), fields))
