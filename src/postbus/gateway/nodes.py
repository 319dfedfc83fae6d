"""Nodes that are asked and answer: `$cbs` and `<entity>/$management`.

A client attaches a pair of links in one AMQP session: requests go in on one, responses come out on
the other. The response link is found by the node and the session, never by a table of reply-to
addresses, which several SDKs fill with constants (wire §0.5).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from postbus.amqp.codec import has_more_values
from postbus.amqp.codec.types import Int, Symbol
from postbus.amqp.deliveries import IncomingDelivery, OutgoingDelivery
from postbus.amqp.faults import DecodeError
from postbus.amqp.frames.performatives import SND_SETTLED, DeliveryState
from postbus.amqp.frames.transactions import TransactionalState
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sections import (
    Properties,
    encode_amqp_value,
    encode_application_properties,
    encode_properties,
    read_application_properties,
    read_properties,
    read_value,
    scan,
)
from postbus.amqp.sending import SenderLink
from postbus.errors import InvalidArgument, InvalidOperation, QuotaExceeded, ServiceBusError
from postbus.gateway.settlement import ACCEPTED

if TYPE_CHECKING:
    from postbus.gateway.client_connection import ClientConnection
    from postbus.namespace.entities import Entity

REQUEST_CREDIT: Final = 100
RESPONSES_WAITING_MAX: Final = 200
RESPONSE_BYTES_MAX: Final = 4 << 20
"""Responses a client lets wait by granting no credit: on one link, and bytes on all of them."""


REQUEST_VALUES_MAX: Final = 32_768
"""Values in one request, of which the largest that is made names thousands of messages: others wait
while they are read."""


class StatusKeys:
    """How a node writes its status; `$cbs` and `$management` differ (wire §2.2, §6.1)."""

    __slots__ = ("code", "condition", "description")

    def __init__(self, code: str, description: str, condition: str) -> None:
        self.code = code
        self.description = description
        self.condition = condition


CBS_SPELLING: Final = StatusKeys("status-code", "status-description", "error-condition")
MANAGEMENT_SPELLING: Final = StatusKeys("statusCode", "statusDescription", "errorCondition")


class NodeRequest:
    """One question, and the way back to whoever asked."""

    __slots__ = ("_message_id", "_reply_to", "_sender", "body", "properties", "transaction")

    def __init__(self, sender: NodeSender, payload: bytes) -> None:
        size = len(payload)
        if size > REQUEST_VALUES_MAX and has_more_values(payload, 0, size, REQUEST_VALUES_MAX):
            raise DecodeError(f"more than {REQUEST_VALUES_MAX} values")
        sections = scan(payload)
        asked = read_properties(payload, sections)
        self._sender = sender
        self.transaction: TransactionalState | None = None
        """The one that it is part of."""
        self._message_id = asked.message_id
        self._reply_to = asked.reply_to
        self.properties = read_application_properties(payload, sections)
        self.body: Any = None
        if sections.body < sections.footer:
            self.body = read_value(payload, sections)

    @property
    def operation(self) -> str:
        return str(self.properties.get("operation", ""))

    def respond(self, status: int, text: str, body: Any, condition: str | None = None) -> None:
        spelling = self._sender.spelling
        properties: dict[str, Any] = {
            spelling.code: Int(status),
            spelling.description: text,
        }
        if condition is not None:
            properties[spelling.condition] = Symbol(condition)
        # The id comes back as the type it was sent as, or the client waits for ever (wire §0.4).
        payload = (
            encode_properties(Properties(correlation_id=self._message_id, to=self._reply_to)),
            encode_application_properties(properties),
            encode_amqp_value(body),
        )
        self._sender.send_back(payload, self._reply_to)

    def refuse(self, error: ServiceBusError, entity: str | None) -> None:
        gateway = self._sender.gateway
        text = gateway.refusals.describe(error, entity, gateway.stranger)
        self.respond(error.http_status, text, {}, error.condition)

    def fail(self, error: ServiceBusError) -> None:
        """It is refused before an entity was asked."""
        self.refuse(error, self._sender.path)


class NodeSender:
    """The request link of a node."""

    def __init__(
        self,
        gateway: ClientConnection,
        link: ReceiverLink,
        path: str,
        spelling: StatusKeys,
        handle: Callable[[NodeRequest], None],
    ) -> None:
        self.gateway = gateway
        self.entity: Entity | None = None
        """The entity it manages; none for `$cbs`."""
        self.path = path
        self.spelling = spelling
        self._link = link
        self._handle = handle

    def open(self) -> None:
        self._link.grant(REQUEST_CREDIT)

    def received(self, delivery: IncomingDelivery) -> None:
        try:
            request = NodeRequest(self, delivery.payload)
        except DecodeError as fault:
            error = InvalidArgument(f"The request cannot be read: {fault}")
            self._reject(delivery, error)
            return
        if self._receiver(None) is None:
            refusal = InvalidOperation(f"No link of this session receives from '{self.path}'.")
            self._reject(delivery, refusal)
            return
        state = delivery.state
        if isinstance(state, TransactionalState):
            if self.entity is None:
                refusal = InvalidOperation("A token cannot be put in a transaction.")
                self._reject(delivery, refusal)
                return
            request.transaction = state
            self._link.settle(delivery, TransactionalState(state.txn_id, ACCEPTED))
        else:
            self._link.settle(delivery, ACCEPTED)
        if self._link.credit * 2 <= REQUEST_CREDIT:
            self._link.grant(REQUEST_CREDIT)
        try:
            self._handle(request)
        except ServiceBusError as error:
            request.fail(error)

    def _reject(self, delivery: IncomingDelivery, error: ServiceBusError) -> None:
        gateway = self.gateway
        self._link.settle(delivery, gateway.refusals.rejected(error, self.path, gateway.stranger))

    def send_back(self, payload: tuple[bytes, ...], reply_to: str | None) -> None:
        receiver = self._receiver(reply_to)
        if receiver is not None:
            receiver.push(payload)
        self.gateway.touch()

    def _receiver(self, reply_to: str | None) -> NodeReceiver | None:
        """The link that whoever asked listens on.

        Its name or address may tell. Where several go by the same one, as those of the Python
        SDK's threads do, the links of a pair are found by the order of their handles.
        """
        senders: list[tuple[int, NodeSender]] = []
        receivers: list[tuple[int, NodeReceiver]] = []
        for link in self._link.session.links:
            owner = link.owner
            if isinstance(owner, NodeSender) and owner.path == self.path:
                senders.append((link.remote_handle or 0, owner))
            elif isinstance(owner, NodeReceiver) and owner.path == self.path:
                receivers.append((link.remote_handle or 0, owner))
        if not receivers:
            return None
        named = [
            each for each in receivers if reply_to is not None and each[1].answers_to(reply_to)
        ]
        found = [receiver for _, receiver in sorted(named or receivers, key=_handle_of)]
        ordered = [sender for _, sender in sorted(senders, key=_handle_of)]
        place = ordered.index(self) if self in ordered else 0  # gone, with a question open
        return found[min(place, len(found) - 1)]


def _handle_of(each: tuple[int, object]) -> int:
    return each[0]


class NodeReceiver:
    """The response link of a node; holds responses back while the client grants no credit."""

    def __init__(self, gateway: ClientConnection, link: SenderLink, path: str) -> None:
        self.path = path
        self.gateway = gateway
        self.entity: Entity | None = None
        self._link = link
        self._waiting: deque[tuple[bytes, ...]] = deque()
        self._sent = 0

    def open(self) -> None:
        pass

    def close(self) -> None:
        while self._waiting:
            self._pop()

    def _pop(self) -> tuple[bytes, ...]:
        payload = self._waiting.popleft()
        self.gateway.waiting_bytes -= sum(map(len, payload))
        return payload

    def answers_to(self, reply_to: str) -> bool:
        target = self._link.target
        return reply_to in (self._link.name, getattr(target, "address", None))

    def push(self, payload: tuple[bytes, ...]) -> None:
        size = sum(map(len, payload))
        waiting = self.gateway.waiting_bytes
        # One alone may be larger: what it tells has happened, and is told by nothing else.
        if len(self._waiting) >= RESPONSES_WAITING_MAX or (
            waiting and waiting + size > RESPONSE_BYTES_MAX
        ):
            error = QuotaExceeded("Too many responses wait for credit on this connection.")
            self.gateway.detach(self._link, error, self.path)
            return
        self.gateway.waiting_bytes += size
        self._waiting.append(payload)
        self._send()

    def credited(self) -> None:
        self._send()
        if self._link.drain:
            self._link.drained()

    def _send(self) -> None:
        link = self._link
        settled = link.snd_settle_mode == SND_SETTLED
        while self._waiting and link.sendable > 0:
            self._sent += 1
            link.send(self._sent.to_bytes(16, "big"), self._pop(), settled)

    def disposed(
        self, deliveries: list[OutgoingDelivery], state: DeliveryState | None, settled: bool
    ) -> None:
        """A response was taken note of."""
        for delivery in deliveries:
            self._link.settle(delivery, state)
        self._send()
