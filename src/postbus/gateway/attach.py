"""A client attaches a link: find out what it names, check the right, give it an owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from postbus.amqp.codec.types import Symbol, ULong
from postbus.amqp.events import Event
from postbus.amqp.frames.performatives import Coordinator
from postbus.amqp.frames.terminus import Source
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sending import SenderLink
from postbus.auth.authority import Right, missing_claim
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER
from postbus.errors import (
    EntityDisabled,
    EntityNotFound,
    InvalidArgument,
    InvalidOperation,
    NotSupported,
    QuotaExceeded,
    SessionRequired,
)
from postbus.gateway.browsing import Browser, PartitionedBrowser
from postbus.gateway.cbs import TokenNode
from postbus.gateway.client_links import ClientReceiver, ClientSender
from postbus.gateway.management import ManagementNode
from postbus.gateway.nodes import CBS_SPELLING, MANAGEMENT_SPELLING, NodeReceiver, NodeSender
from postbus.gateway.partitioned_links import PartitionedReceiver, PartitionedSender
from postbus.gateway.partitioned_management import PartitionedNode
from postbus.gateway.partitioned_sessions import NextSessionReceiver
from postbus.gateway.session_link import ClientSessionReceiver, SessionFilter, read_session_filter
from postbus.gateway.terminus_checks import browses, check_terminus
from postbus.gateway.transactions.coordinator import accept_coordinator
from postbus.gateway.transactions.send_via import DESTINATION, join_as_receiver, route_of
from postbus.model.address import Address, SubQueue, resolve_address
from postbus.model.limits import BATCH_SIZE_MAX
from postbus.namespace.entities import QueueEntity, TopicEntity
from postbus.namespace.entity import Entity, ReceivableEntity

if TYPE_CHECKING:
    from postbus.gateway.client_connection import ClientConnection

TOKEN_REQUEST_BYTES_MAX: Final = 32 * 1024
"""A token has at most half of that; whoever puts one has proven nothing yet."""
REQUEST_OVERHEAD_BYTES: Final = 16 * 1024
"""What a request may have around the message that it schedules, or the state that it sets."""
STRANGER_LINKS_MAX: Final = 16
"""A client needs a pair of them to show its first token."""
_SUBQUEUES: Final = {
    SubQueue.MAIN: MAIN,
    SubQueue.DEAD_LETTER: DEAD_LETTER,
    SubQueue.TRANSFER_DEAD_LETTER: TRANSFER_DEAD_LETTER,
}


def attach(gateway: ClientConnection, link: ReceiverLink | SenderLink) -> list[Event]:
    """Accept the link, or raise the reason not to."""
    terminus: Any = link.target if isinstance(link, ReceiverLink) else link.source
    if isinstance(terminus, Coordinator):
        if not isinstance(link, ReceiverLink):
            raise InvalidArgument("A coordinator is a target.")
        _check_stranger(gateway)
        return accept_coordinator(gateway, link)
    address = resolve_address(check_terminus(terminus))
    if address.is_cbs:
        _check_stranger(gateway)
        _check_first(gateway, link)
        return _accept_node(gateway, link, address)
    if address.management:
        if not gateway.rights.covers(address.path):
            raise missing_claim(Right.LISTEN, gateway.uri(address.written))
        _find(gateway, address)
        return _accept_node(gateway, link, address)
    if isinstance(link, ReceiverLink):
        return _accept_inlet(gateway, link, address)
    return _accept_outlet(gateway, link, address)


def _check_stranger(gateway: ClientConnection) -> None:
    served = sum(link.owner is not None for link in gateway.links())
    if gateway.stranger and served >= STRANGER_LINKS_MAX:
        raise QuotaExceeded(
            f"A connection may have {STRANGER_LINKS_MAX} links before it shows a token."
        )


def _check_first(gateway: ClientConnection, link: ReceiverLink | SenderLink) -> None:
    """Of `$cbs` a connection has one pair, as Azure has it: the Go SDK opens a pair for each
    token, and where it could not close one it waits for this to connect anew."""
    for other in gateway.links():
        at_node = isinstance(other.owner, (NodeSender, NodeReceiver))
        if other.role == link.role and at_node and other.owner.entity is None:
            raise InvalidOperation(
                f"A link to connection '{gateway.id}' $cbs node has already been opened."
            )


def _find(gateway: ClientConnection, address: Address) -> Entity:
    entity = gateway.namespace.at(address)
    if entity is None:
        raise EntityNotFound(address.written)
    return entity


def _accept_node(
    gateway: ClientConnection, link: ReceiverLink | SenderLink, address: Address
) -> list[Event]:
    path = address.path.lower()
    owner: NodeSender | NodeReceiver
    if isinstance(link, SenderLink):
        if isinstance(link.source, Source) and browses(link.source):
            raise NotSupported("The answers of a node cannot be browsed.")
        owner = NodeReceiver(gateway, link, path)
    elif address.is_cbs:
        owner = NodeSender(gateway, link, path, CBS_SPELLING, TokenNode(gateway).handle)
    else:
        entity = _find(gateway, address)
        kind = PartitionedNode if entity.partitioned else ManagementNode
        node = kind(gateway, entity, entity.subqueue(_SUBQUEUES[address.subqueue]), address.path)
        owner = NodeSender(gateway, link, path, MANAGEMENT_SPELLING, node.handle)
    link.owner = owner
    if not address.is_cbs:
        owner.entity = _find(gateway, address)
        owner.entity.links.add(link)
    size_max = TOKEN_REQUEST_BYTES_MAX
    if owner.entity is not None:
        # What a request says is decoded at once, so it has the bound of a batch.
        size_max = min(owner.entity.message_size_max, BATCH_SIZE_MAX) + REQUEST_OVERHEAD_BYTES
    early = link.accept(
        properties=gateway.service.link_properties(),
        max_message_size=size_max if isinstance(link, ReceiverLink) else None,
    )
    owner.open()
    return early


def _accept_inlet(gateway: ClientConnection, link: ReceiverLink, address: Address) -> list[Event]:
    # Rights before existence: a stranger does not learn what there is (semantics A §6).
    if not gateway.allows(Right.SEND, address.path):
        raise missing_claim(Right.SEND, gateway.uri(address.written))
    entity = _find(gateway, address)
    if address.subqueue is not SubQueue.MAIN or not isinstance(entity, (QueueEntity, TopicEntity)):
        raise InvalidOperation(f"Messages cannot be sent to '{address.path}'.")
    if not entity.policy().sends:
        raise EntityDisabled(entity.path, "Send")
    route = route_of(gateway, link, entity)
    credit = gateway.service.settings.link_credit_max
    kind = PartitionedSender if entity.partitioned else ClientSender
    link.owner = sender = kind(gateway, link, entity, credit, route)
    size_max = entity.message_size_max
    named = (link.properties or {}).get(DESTINATION)
    early = link.accept(
        properties={
            **gateway.service.link_properties(),
            Symbol("com.microsoft:max-message-batch-size"): ULong(min(size_max, BATCH_SIZE_MAX)),
            **({} if named is None else {DESTINATION: named}),
        },
        max_message_size=size_max,
    )
    sender.open()
    entity.links.add(link)
    return early


def _accept_outlet(gateway: ClientConnection, link: SenderLink, address: Address) -> list[Event]:
    if not gateway.allows(Right.LISTEN, address.path):
        raise missing_claim(Right.LISTEN, gateway.uri(address.written))
    entity = _find(gateway, address)
    transferred = address.subqueue is SubQueue.TRANSFER_DEAD_LETTER
    if not isinstance(entity, ReceivableEntity) and not (
        transferred and isinstance(entity, TopicEntity)
    ):
        raise InvalidOperation(
            f"Messages cannot be received from the topic '{address.path}': name a subscription."
        )
    source = link.source
    assert isinstance(source, Source)
    browsing = browses(source)
    wanted = None if browsing else _session_wanted(entity, address, source)
    if browsing and read_session_filter(source) is not None:
        raise NotSupported("A browser sees the messages of all sessions: it cannot ask for one.")
    if not entity.description.status.receives:
        raise EntityDisabled(entity.path, "Receive")
    entity.check_not_forwarded(address)
    if not browsing:
        join_as_receiver(link, entity)
    subqueue = entity.subqueue(_SUBQUEUES[address.subqueue])
    if wanted is not None:
        assert isinstance(entity, ReceivableEntity)
        # A receiver that names no session waits for the next one of any fragment.
        wants_next = entity.partitioned and wanted.session_id is None
        fragment = entity.fragment_for(wanted.session_id or "")
        session_kind = NextSessionReceiver if wants_next else ClientSessionReceiver
        waiting = session_kind(gateway, link, entity, fragment, subqueue, wanted)
        waiting.open()
        link.owner = waiting
        entity.links.add(link)
        return []  # it is answered when it has a session
    owner: type[ClientReceiver] = Browser if browsing else ClientReceiver
    if entity.partitioned:
        owner = PartitionedBrowser if browsing else PartitionedReceiver
    # Each connection begins with another fragment, so that none is preferred.
    first = entity.fragments[gateway.id % len(entity.fragments)]
    link.owner = receiver = owner(gateway, link, entity, first, subqueue)
    if source.filter is None:
        # Java dereferences the filter (wire §3.3).
        source.filter = {}
    early = link.accept(source=source, properties=gateway.service.link_properties())
    receiver.open()
    entity.links.add(link)
    return early


def _session_wanted(
    entity: ReceivableEntity | TopicEntity, address: Address, source: Source
) -> SessionFilter | None:
    """The session that a receiver asks for, which it must do where there are any, and nowhere
    else. A dead-letter queue has none (semantics B §1)."""
    wanted = read_session_filter(source)
    if entity.needs_session(address.subqueue):
        if wanted is None:
            raise SessionRequired()
    elif wanted is not None:
        raise InvalidOperation(
            "A sessionful message receiver cannot be created on an entity that does not "
            "require sessions."
        )
    return wanted
