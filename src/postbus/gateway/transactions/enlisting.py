"""Sends and settlements that are part of a transaction, and sends that go through another entity.

Answered when they have been checked: with the outcome that they will have if the transaction is
committed, or with the reason why they are not part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from postbus.amqp.codec import encode
from postbus.amqp.deliveries import IncomingDelivery, OutgoingDelivery
from postbus.amqp.frames.outcomes import Accepted, Modified, Outcome, Rejected, Released
from postbus.amqp.frames.performatives import DeliveryState
from postbus.amqp.frames.transactions import TransactionalState
from postbus.broker.message import Message
from postbus.broker.transaction import Rewrite, Settlement, Verdict
from postbus.errors import (
    EntityNotFound,
    InvalidArgument,
    MessageSizeExceeded,
    NotSupported,
    ServiceBusError,
)
from postbus.gateway.settlement import ACCEPTED, confirmation
from postbus.gateway.transactions.open_transactions import OpenTransaction
from postbus.gateway.transactions.operations import (
    EnlistEach,
    EnlistSend,
    PropertyChanges,
    SendThrough,
)
from postbus.messages.envelope import Changes
from postbus.namespace.entity import Entity
from postbus.runtime.requests import Call

if TYPE_CHECKING:
    from postbus.gateway.client_connection import ClientConnection
    from postbus.gateway.client_links import ClientReceiver, ClientSender


class Route(NamedTuple):
    """The way of messages that are sent through another entity."""

    via: Entity
    destination: str
    always: bool
    """Or only in a transaction."""


def transaction_of(gateway: ClientConnection, state: DeliveryState | None) -> OpenTransaction:
    """The open transaction that a transfer or disposition names."""
    if not isinstance(state, TransactionalState):
        raise InvalidArgument("The state names no transaction.")
    return gateway.transactions.find(state.txn_id)


def refuse_partitioned(entity: Entity) -> None:
    """Raise NotSupported where a transaction would be on a partitioned entity."""
    if entity.partitioned:
        raise NotSupported(
            f"The entity '{entity.path}' is partitioned: Postbus does not support transactions "
            "and sends through another entity on partitioned entities yet."
        )


def spoil(gateway: ClientConnection, state: DeliveryState, error: ServiceBusError) -> None:
    """A send was refused: without it nothing of its transaction happens.

    The Java SDK takes every send in a transaction for done, whatever the answer is, and would
    commit a completion without the message that was to go out for it.
    """
    with suppress(ServiceBusError):
        transaction_of(gateway, state).spoil(error)


# -- sending -----------------------------------------------------------------------------------


def send(sender: ClientSender, delivery: IncomingDelivery, messages: list[Message]) -> bool:
    """Take a transfer that is more than a send to the entity of its link; False if it is not."""
    gateway, route, state = sender.gateway, sender.route, delivery.state
    if state is None and (route is None or not route.always):
        return False
    size = len(delivery.payload)
    if route is not None:
        refuse_partitioned(route.via)
    via = sender.fragment if route is None else route.via.only_fragment
    destination = None
    if route is not None:
        destination = _fragment_id(gateway, route.destination)
    outcome: DeliveryState = ACCEPTED
    transaction: OpenTransaction | None = None
    if state is not None:
        transaction = transaction_of(gateway, state)
        outcome = transaction.accepted

    def done(result: object) -> None:
        delivery.link.settle(delivery, outcome)
        if sender.fragment.meter is not None:
            sender.fragment.meter.bytes_in += size
        sender.answered()

    def failed(error: ServiceBusError) -> None:
        if sender.fragment.meter is not None:
            sender.fragment.meter.refused(error.condition)
        if transaction is not None:
            transaction.spoil(error)
        rejected = gateway.refusals.rejected(error, sender.entity.path)
        delivery.link.settle(delivery, rejected)
        sender.answered()

    if transaction is not None:
        transaction.ask(via, EnlistSend(messages, destination), done, failed, size)
    elif destination is not None:
        operation = SendThrough(messages, destination)
        request = Call(via, operation, done, failed, size, exclusive=False, grows=True)
        gateway.runtime(via).submit(request)
    return True


def _fragment_id(gateway: ClientConnection, name: str) -> int:
    """Looked up for each message: the entity may have been deleted, or deleted and made again."""
    entity = gateway.namespace.entity(name)
    if entity is None:
        raise EntityNotFound(name)
    refuse_partitioned(entity)
    return entity.only_fragment.id


# -- settling ----------------------------------------------------------------------------------


def settlements_of(
    subqueue: int, tokens: Sequence[bytes], verdict: Outcome | Changes, size_max: int
) -> tuple[list[Settlement], int]:
    """What a client's verdict means to the engine, and the bytes that are kept of it."""
    if isinstance(verdict, Accepted):
        return [Settlement(subqueue, token, Verdict.COMPLETE) for token in tokens], 0
    if isinstance(verdict, Released):
        return [Settlement(subqueue, token, Verdict.RELEASE) for token in tokens], 0
    changes = Changes.of(verdict) if isinstance(verdict, (Modified, Rejected)) else verdict
    kind = Verdict.ABANDON
    if changes.dead_letter:
        kind = Verdict.DEAD_LETTER
    elif changes.defer:
        kind = Verdict.DEFER
    rewrite: Rewrite | None = None
    size = 0
    if changes.properties:
        encoded = encode(changes.properties)
        size = len(encoded)
        if size > size_max:
            raise MessageSizeExceeded(
                f"The properties to change take {size} bytes, {size_max} bytes are allowed."
            )
        rewrite = PropertyChanges(encoded)
    reason, description = changes.reason, changes.description
    made = [Settlement(subqueue, each, kind, reason, description, rewrite) for each in tokens]
    return made, size


def settle(
    receiver: ClientReceiver,
    deliveries: list[OutgoingDelivery],
    state: DeliveryState,
    settled: bool,
) -> None:
    """Take a verdict that counts if its transaction is committed. One by one, as without."""
    gateway, link = receiver.gateway, deliveries[0].link

    def failed(error: ServiceBusError) -> None:
        rejected = gateway.refusals.rejected(error, receiver.entity.path)
        for delivery in deliveries:
            link.settle(delivery, rejected)
        gateway.touch()

    try:
        refuse_partitioned(receiver.entity)
        transaction = transaction_of(gateway, state)
        assert isinstance(state, TransactionalState)
        if state.outcome is None:
            raise InvalidArgument("The transactional state has no outcome.")
        size_max = gateway.service.settings.header_size_max_bytes
        tags = [each.tag for each in deliveries]
        settlements, size = settlements_of(receiver.subqueue, tags, state.outcome, size_max)
    except ServiceBusError as error:
        failed(error)
        return
    outcome = TransactionalState(transaction.id, confirmation(state.outcome))

    def done(failures: dict[bytes, ServiceBusError]) -> None:
        for delivery in deliveries:
            error = failures.get(delivery.tag)
            if error is None:
                link.settle(delivery, outcome)
            else:
                link.settle(delivery, gateway.refusals.rejected(error, receiver.entity.path))
        if failures and settled:
            transaction.spoil(next(iter(failures.values())))
        tokens = [each.tag for each in deliveries if each.tag not in failures]
        transaction.when_committed(partial(receiver.tokens.difference_update, tokens))
        gateway.touch()

    def refused(error: ServiceBusError) -> None:
        if settled:
            transaction.spoil(error)
        failed(error)

    try:
        transaction.ask(receiver.fragment, EnlistEach(settlements), done, refused, size)
    except ServiceBusError as error:
        refused(error)
