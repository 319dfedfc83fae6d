"""The link handles of a session, in both directions (AMQP 2.6.2)."""

from postbus.amqp.connection_base import ConnectionBase
from postbus.amqp.faults import FramingError, HandleInUse, SessionError, UnattachedHandle
from postbus.amqp.limits import Limits
from postbus.amqp.link import Link
from postbus.amqp.sending import SenderLink


class Handles:
    """The links of one session by handle. Keeps the connection's count of handles.

    `local` maps our handles to links that live or wait for an answer. `remote` maps the peer's
    handles that are in use on the wire. None there means that we have detached the link and only
    wait for the peer's detach. A frame on a handle that the peer has detached is late, and is
    ignored. A frame on a handle that was never attached is an error.
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

    def __init__(self, connection: ConnectionBase, limits: Limits) -> None:
        self._connection = connection
        self._limits = limits
        self.local: dict[int, Link] = {}
        self.remote: dict[int, Link | None] = {}
        # Links that we attached and the peer has not answered, by name and our role.
        self.awaited: dict[tuple[str, bool], Link] = {}
        self.peer_handle_max = limits.handle_max
        # A bit for each handle that the peer has detached. handle_max bounds its length.
        self._former = 0

    def allocate(self, wanted: int = 0) -> int:
        """Return a free handle of ours: the wanted handle if possible."""
        local = self.local
        if wanted not in local and wanted <= self.peer_handle_max:
            return wanted
        # The search is bounded by the number of links.
        free = next(handle for handle in range(len(local) + 1) if handle not in local)
        if free > self.peer_handle_max:
            raise SessionError(
                f"no more than {self.peer_handle_max + 1} links fit into the session",
                "amqp:resource-limit-exceeded",
            )
        return free

    def check_free(self, handle: int) -> None:
        """Raise if the handle of an attach is out of range or taken."""
        if handle > self._limits.handle_max:
            # AMQP 2.7.2 demands that the connection is closed.
            raise FramingError(f"link handle {handle}, {self._limits.handle_max} is the highest")
        if self.remote.get(handle) is not None:
            raise HandleInUse(f"link handle {handle} is attached")
        # Bounds a peer that never answers our detaches and takes new handles instead.
        if self._connection.usage.handle_count >= 2 * self._limits.links_max:
            raise SessionError(
                "too many links were attached and not detached", "amqp:resource-limit-exceeded"
            )

    def bind(self, handle: int, link: Link) -> None:
        """Give the peer's handle to a link."""
        if handle not in self.remote:
            self._connection.usage.handle_count += 1
        self.remote[handle] = link

    def link_at(self, handle: int) -> Link | None:
        """Return the link at the peer's handle, or None if the link is gone already."""
        try:
            return self.remote[handle]
        except KeyError:
            if self._former >> handle & 1:
                return None
            raise UnattachedHandle(f"no link is attached at handle {handle}") from None

    def unbind(self, handle: int) -> None:
        """Free the peer's handle: the peer has detached. A repeated detach does nothing."""
        if handle in self.remote:
            del self.remote[handle]
            self._former |= 1 << handle
            self._connection.usage.handle_count -= 1

    def release_local(self, link: Link) -> None:
        """Free our handle of a link that we have detached."""
        if self.local.get(link.handle) is link:
            del self.local[link.handle]

    def senders(self) -> list[SenderLink]:
        """The links on which we send."""
        return [link for link in self.local.values() if isinstance(link, SenderLink)]

    def clear(self) -> list[Link]:
        """Forget the peer's handles and return all links. `local` stays for the owner to read."""
        links = dict.fromkeys(self.local.values())
        links |= dict.fromkeys(link for link in self.remote.values() if link is not None)
        links |= dict.fromkeys(self.awaited.values())
        self._connection.usage.handle_count -= len(self.remote)
        self.remote.clear()
        self.awaited.clear()
        return list(links)
