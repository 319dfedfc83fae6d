"""Links whose client no longer has the right that they need (wire §2.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postbus.amqp.link import Link
from postbus.amqp.receiving import ReceiverLink
from postbus.auth.authority import lost_claim
from postbus.gateway.client_links import ClientReceiver, ClientSender
from postbus.model.address import resolve_address
from postbus.model.authorization import Right

if TYPE_CHECKING:
    from postbus.gateway.client_connection import ClientConnection


def detach_unproven(gateway: ClientConnection, links: list[Link]) -> None:
    """Detach what needs a right that is gone. Management nodes check each request."""
    for link in links:
        owner = link.owner
        if isinstance(owner, (ClientSender, ClientReceiver)):
            right = Right.SEND if isinstance(owner, ClientSender) else Right.LISTEN
            path = resolve_address(address_of(link) or "").path
            paths = [path]
            if isinstance(owner, ClientSender) and owner.route is not None:
                paths.append(owner.route.destination)
            for each in paths:
                if link.owner is not None and not gateway.allows(right, each):
                    lost = lost_claim(link.name, right, gateway.uri(each))
                    gateway.detach(link, lost, owner.entity.path)


def address_of(link: Link) -> str | None:
    """What the client's attach names."""
    terminus: Any = link.target if isinstance(link, ReceiverLink) else link.source
    address = getattr(terminus, "address", None)
    return address if isinstance(address, str) else None
