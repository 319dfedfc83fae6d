"""The link that a client declares and discharges transactions on (AMQP 4.2, wire §8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postbus.amqp.deliveries import IncomingDelivery
from postbus.amqp.events import Event
from postbus.amqp.faults import DecodeError
from postbus.amqp.frames.composites import from_described
from postbus.amqp.frames.transactions import Declare, Declared, Discharge
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sections import read_value, scan
from postbus.errors import InvalidArgument, NotSupported, ServiceBusError
from postbus.gateway.settlement import ACCEPTED
from postbus.gateway.transactions.send_via import begin_group

if TYPE_CHECKING:
    from postbus.gateway.client_connection import ClientConnection

CREDIT: Final = 100
REQUEST_BYTES_MAX: Final = 4 * 1024


def accept_coordinator(gateway: ClientConnection, link: ReceiverLink) -> list[Event]:
    """Whoever may use entities may use transactions; that is asked for with each operation."""
    begin_group(link.session)
    link.owner = owner = CoordinatorSender(gateway, link)
    early = link.accept(
        properties=gateway.service.link_properties(), max_message_size=REQUEST_BYTES_MAX
    )
    owner.open()
    return early


class CoordinatorSender:
    """A client's link to the coordinator."""

    entity: Final = None
    """It belongs to none."""

    def __init__(self, gateway: ClientConnection, link: ReceiverLink) -> None:
        self._gateway = gateway
        self._link = link

    def open(self) -> None:
        self._link.grant(CREDIT)

    def close(self) -> None:
        self._gateway.transactions.let_go(self)

    def received(self, delivery: IncomingDelivery) -> None:
        if delivery.settled:
            error = InvalidArgument("A coordinator cannot answer a transfer that is settled.")
            self._gateway.detach(self._link, error, "coordinator")
            return
        try:
            self._answer(delivery)
        except (ServiceBusError, DecodeError) as fault:
            refused = fault if isinstance(fault, ServiceBusError) else InvalidArgument(str(fault))
            self._reject(delivery, refused)
        if self._link.credit * 2 <= CREDIT:
            self._link.grant(CREDIT)

    def _answer(self, delivery: IncomingDelivery) -> None:
        payload = delivery.payload
        asked = from_described(read_value(payload, scan(payload)))
        transactions = self._gateway.transactions
        if isinstance(asked, Declare):
            if asked.global_id is not None:
                raise NotSupported("Distributed transactions are not supported.")
            self._link.settle(delivery, Declared(transactions.declare(self)))
        elif isinstance(asked, Discharge):

            def done() -> None:
                self._link.settle(delivery, ACCEPTED)
                self._gateway.touch()

            def failed(error: ServiceBusError) -> None:
                self._reject(delivery, error)
                self._gateway.touch()

            transactions.find(asked.txn_id).discharge(asked.fail is True, done, failed)
        else:
            raise InvalidArgument("A coordinator can be asked to declare and to discharge.")

    def _reject(self, delivery: IncomingDelivery, error: ServiceBusError) -> None:
        gateway = self._gateway
        self._link.settle(delivery, gateway.refusals.rejected(error, None, gateway.stranger))
