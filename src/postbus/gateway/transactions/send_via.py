"""Sending to one entity through another one, so that a transaction on that one can do it.

A client names both with the link (send-via); or it attaches a coordinator as the first link of an
AMQP session, and then the entity of the first link behind it is the one that everything else in
the session goes through (cross-entity transactions, wire §8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postbus.amqp.codec.types import Symbol
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sending import SenderLink
from postbus.amqp.session import Session
from postbus.auth.authority import Right, missing_claim
from postbus.errors import EntityNotFound, InvalidArgument, InvalidOperation, SecondReceiver
from postbus.gateway.client_links import ClientReceiver, ClientSender, SessionLinks
from postbus.gateway.transactions.enlisting import Route, refuse_partitioned
from postbus.gateway.transactions.open_transactions import SPANS_ENTITIES
from postbus.model.address import SubQueue, resolve_address
from postbus.namespace.entities import QueueEntity, TopicEntity
from postbus.namespace.entity import Entity

if TYPE_CHECKING:
    from postbus.gateway.client_connection import ClientConnection

DESTINATION: Final = Symbol("com.microsoft:transfer-destination-address")


def begin_group(session: Session) -> None:
    """A coordinator is attached: if it is the first link of its session that has to do with
    messages, transactions in the session may reach several entities."""
    if any(isinstance(link.owner, (ClientSender, ClientReceiver)) for link in session.links):
        return
    if session.owner is None:
        session.owner = SessionLinks()
    session.owner.cross_entity = True


def join_as_receiver(link: SenderLink, entity: Entity) -> None:
    """A client receives here. Of all the receivers in a cross-entity session each must be of the
    same top-level entity: what they settle is in one fragment."""
    group = _group(link.session)
    if group is None:
        return
    if group.via is None:
        group.via = entity.top_level
    elif group.via is not entity.top_level:
        raise SecondReceiver(SPANS_ENTITIES)


def route_of(
    gateway: ClientConnection, link: ReceiverLink, entity: QueueEntity | TopicEntity
) -> Route | None:
    """The way that messages take which are sent on this link; None for no detour."""
    group = _group(link.session)
    named = (link.properties or {}).get(DESTINATION)
    if group is not None and group.via is None:
        group.via = entity
    if named is None:
        if group is None or group.via is None or group.via is entity:
            return None
        return Route(group.via, entity.name, always=False)
    if group is not None and group.via is not None and group.via is not entity:
        raise InvalidOperation(SPANS_ENTITIES)
    destination = _destination(gateway, named)
    refuse_partitioned(entity)
    refuse_partitioned(destination)
    return None if destination is entity else Route(entity, destination.name, always=True)


def _destination(gateway: ClientConnection, named: object) -> QueueEntity | TopicEntity:
    if not isinstance(named, str):
        raise InvalidArgument(f"The link property '{DESTINATION}' must be a string.")
    address = resolve_address(named)
    if not gateway.allows(Right.SEND, address.path):
        raise missing_claim(Right.SEND, gateway.uri(address.written))
    found = gateway.namespace.at(address)
    if found is None:
        raise EntityNotFound(address.written)
    if address.subqueue is not SubQueue.MAIN or not isinstance(found, (QueueEntity, TopicEntity)):
        raise InvalidOperation(f"Messages cannot be sent to '{address.path}'.")
    return found


def _group(session: Session) -> SessionLinks | None:
    shared = session.owner
    return shared if isinstance(shared, SessionLinks) and shared.cross_entity else None
