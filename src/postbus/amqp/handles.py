"""Which handle stands for which link of a session, in each direction (AMQP 2.6.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postbus.amqp.faults import FramingError, HandleInUse, SessionError, UnattachedHandle
from postbus.amqp.limits import Limits
from postbus.amqp.link import Link
from postbus.amqp.sending import SenderLink

if TYPE_CHECKING:
    from postbus.amqp.connection import Connection


class Handles:
    """The handles of one session, and the connection's count of them.

    `local` has the links that live or wait for an answer, by our handle. `remote` has the peer's
    handles that are in use on the wire, also those of links it has yet to detach; None stands for
    one of which we want to hear no more than that. What comes on a handle that the peer has
    detached is late, and is ignored; on one that it has never attached it is an error.
    """

    __slots__ = (
        "_connection",
        "_former",
        "_limits",
        "awaited",
        "local",
        "peer_handle_max",
        "remote",
    )

    def __init__(self, connection: Connection, limits: Limits) -> None:
        self._connection = connection
        self._limits = limits
        self.local: dict[int, Link] = {}
        self.remote: dict[int, Link | None] = {}
        # Links we attached and the peer has not answered, by name and our role.
        self.awaited: dict[tuple[str, bool], Link] = {}
        self.peer_handle_max = limits.handle_max
        # The peer's handles that were detached, a bit for each: there are few, and they are small.
        self._former = 0

    def allocate(self, wanted: int = 0) -> int:
        """Return a handle of ours that is free: the wanted one if possible."""
        local = self.local
        if wanted not in local and wanted <= self.peer_handle_max:
            return wanted
        # At most one more than there are links, and these are bounded.
        free = next(handle for handle in range(len(local) + 1) if handle not in local)
        if free > self.peer_handle_max:
            raise SessionError(
                f"no more than {self.peer_handle_max + 1} links fit into the session",
                "amqp:resource-limit-exceeded",
            )
        return free

    def check_free(self, handle: int) -> None:
        """Refuse an attach whose handle is out of range or taken."""
        if handle > self._limits.handle_max:
            # AMQP 2.7.2 asks for no less than closing the connection.
            raise FramingError(f"link handle {handle}, {self._limits.handle_max} is the highest")
        if self.remote.get(handle) is not None:
            raise HandleInUse(f"link handle {handle} is attached")
        # A peer that never answers our detaches and takes new handles instead.
        if self._connection.usage.handle_count >= 2 * self._limits.links_max:
            raise SessionError(
                "too many links were attached and not detached", "amqp:resource-limit-exceeded"
            )

    def bind(self, handle: int, link: Link) -> None:
        """Note that the peer's handle stands for a link."""
        if handle not in self.remote:
            self._connection.usage.handle_count += 1
        self.remote[handle] = link

    def link_at(self, handle: int) -> Link | None:
        """Return the link the peer means, None for one we no longer care about."""
        try:
            return self.remote[handle]
        except KeyError:
            if self._former >> handle & 1:
                return None
            raise UnattachedHandle(f"no link is attached at handle {handle}") from None

    def unbind(self, handle: int) -> None:
        """The peer has detached, for the first time or once more."""
        if handle in self.remote:
            del self.remote[handle]
            self._former |= 1 << handle
            self._connection.usage.handle_count -= 1

    def release_local(self, link: Link) -> None:
        """Free our handle of a link we have detached."""
        if self.local.get(link.handle) is link:
            del self.local[link.handle]

    def senders(self) -> list[SenderLink]:
        """The links on which we send."""
        return [link for link in self.local.values() if isinstance(link, SenderLink)]

    def clear(self) -> list[Link]:
        """Forget the peer's handles; return every link there was. Ours stay to be looked at."""
        links = dict.fromkeys(self.local.values())
        links |= dict.fromkeys(link for link in self.remote.values() if link is not None)
        links |= dict.fromkeys(self.awaited.values())
        self._connection.usage.handle_count -= len(self.remote)
        self.remote.clear()
        self.awaited.clear()
        return list(links)
