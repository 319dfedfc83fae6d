"""Links to partitioned entities: each send chooses a fragment, each receiver has all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postbus.amqp.deliveries import IncomingDelivery, OutgoingDelivery
from postbus.amqp.frames.outcomes import Outcome
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sending import SenderLink
from postbus.broker.message import Message
from postbus.errors import ServiceBusError
from postbus.gateway.client_links import ClientReceiver, ClientSender
from postbus.gateway.refusals import Refusals
from postbus.gateway.settlement import Send
from postbus.gateway.transactions.enlisting import refuse_partitioned
from postbus.messages.batches import open_batch
from postbus.messages.envelope import read_message
from postbus.runtime.fragment_receivers import FragmentReceivers
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.receivers import OutgoingMessage
from postbus.runtime.requests import GiveBack

if TYPE_CHECKING:
    from postbus.gateway.client_connection import ClientConnection
    from postbus.namespace.entities import TopicEntity
    from postbus.namespace.entity import ReceivableEntity


class UnkeyedSend(Send):
    """A transfer without a key. Where a fragment refuses it for certain, another one gets it."""

    __slots__ = ("_tried", "_unkeyed_sender")

    def __init__(
        self,
        fragment: LoadedFragment,
        messages: list[Message],
        link: ReceiverLink,
        delivery: IncomingDelivery,
        refusals: Refusals,
        sender: PartitionedSender,
        tried: int = 0,
    ) -> None:
        super().__init__(fragment, messages, link, delivery, refusals, sender)
        self._unkeyed_sender = sender
        self._tried = tried | 1 << fragment.index

    def refuse(self, error: ServiceBusError) -> None:
        sender = self._unkeyed_sender
        other = sender.entity.spread.choose_again(self.fragment, error, self._tried)
        if other is None:
            super().refuse(error)
        else:
            sender.send_again(other, self._delivery, self._tried)


class PartitionedSender(ClientSender):
    """A client's sender link to a partitioned entity."""

    def _take(self, delivery: IncomingDelivery, messages: list[Message]) -> None:
        gateway = self.gateway
        if delivery.state is not None:
            refuse_partitioned(self.entity)
        self.entity.touch(gateway.now)
        spread = self.entity.spread
        key = spread.key_of(messages)
        fragment = spread.choose(key)
        kind = Send if key is not None else UnkeyedSend
        send = kind(fragment, messages, self._link, delivery, gateway.refusals, self)
        gateway.runtime(fragment).submit(send)

    def send_again(self, fragment: LoadedFragment, delivery: IncomingDelivery, tried: int) -> None:
        """Send a transfer to another fragment. It is read anew, for the refused decision may have
        changed the messages."""
        gateway, payload = self.gateway, delivery.payload
        sizes = self._property_size_max, self._header_size_max
        if delivery.message_format == 0:
            messages = [read_message(payload, *sizes)]
        else:
            messages = open_batch(payload, delivery.message_format, *sizes).again().messages
        send = UnkeyedSend(fragment, messages, self._link, delivery, gateway.refusals, self, tried)
        gateway.runtime(fragment).submit(send)


class PartitionedReceiver(ClientReceiver):
    """A client's receiver link to a partitioned entity: takes the messages of all its fragments."""

    def __init__(
        self,
        gateway: ClientConnection,
        link: SenderLink,
        entity: ReceivableEntity | TopicEntity,
        fragment: LoadedFragment,
        subqueue: int,
    ) -> None:
        super().__init__(gateway, link, entity, fragment, subqueue)
        fragments = entity.fragments
        runtimes = [gateway.runtime(each) for each in fragments]
        self._places = FragmentReceivers(self, fragments, runtimes, subqueue, fragment.index)

    def open(self) -> None:
        self._places.open()

    def close(self) -> None:
        self._places.close()
        super().close()

    def wake(self) -> None:
        self._places.wake()

    def satisfied(self) -> bool:
        return self._link.credit == 0

    def returned(self, count: int, size: int) -> None:
        self._return(count, size)

    def engine_lost(self, fragment: LoadedFragment, error: ServiceBusError) -> None:
        self.tokens = {
            token for token in self.tokens if self.entity.fragment_of_token(token) is not fragment
        }

    def _give_back(self, outgoing: OutgoingMessage) -> None:
        fragment = self.entity.fragment_of_number(outgoing.message.number)
        self.gateway.runtime(fragment).submit(GiveBack(fragment, outgoing))

    def _submit(
        self,
        deliveries: list[OutgoingDelivery],
        state: Outcome,
        fragment: LoadedFragment | None = None,
    ) -> None:
        groups: dict[LoadedFragment, list[OutgoingDelivery]] = {}
        for delivery in deliveries:
            groups.setdefault(self.entity.fragment_of_token(delivery.tag), []).append(delivery)
        for each, settled in groups.items():
            super()._submit(settled, state, each)
