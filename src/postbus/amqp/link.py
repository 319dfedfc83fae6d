"""The common part of sender and receiver links: attach, refuse, detach (AMQP 2.6)."""

from __future__ import annotations

from abc import abstractmethod
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from postbus.amqp.connection_base import LinkBase
from postbus.amqp.events import Event, LinkDetached
from postbus.amqp.faults import ProtocolError
from postbus.amqp.frames.performatives import (
    Attach,
    Coordinator,
    Detach,
    Error,
    Flow,
    Source,
    Target,
)

if TYPE_CHECKING:
    from postbus.amqp.session import Session


class LinkState(Enum):
    PENDING = auto()
    """The peer attached; the owner has not answered yet."""
    ATTACHING = auto()
    """We attached; the peer has not answered yet."""
    ATTACHED = auto()
    DETACHING = auto()
    """We detached; the peer has not answered yet."""
    DETACHED = auto()


class Link(LinkBase):
    """Our end of a link. `role` is our role; `owner` is free for the owner of the connection.

    `name`, `source`, `target`, the settle modes and `properties` are from the peer's attach. For a
    link that we attached, they are ours until the peer's attach has come. Once the link is gone,
    all methods except send() do nothing, so the owner may answer late.
    """

    __slots__ = (
        "_attach_size",
        "attached",
        "connection",
        "delivery_count",
        "handle",
        "name",
        "owner",
        "peer_message_size_max",
        "properties",
        "rcv_settle_mode",
        "remote_handle",
        "session",
        "snd_settle_mode",
        "source",
        "state",
        "target",
    )

    role: ClassVar[Literal["sender", "receiver"]]
    # The role as frames encode it (AMQP 2.8.1).
    wire_role: ClassVar[bool]

    def __init__(self, session: Session, handle: int, attach: Attach, state: LinkState) -> None:
        self.session = session
        self.connection = session.connection
        self.handle = handle
        # The peer's handle; -1 until its attach has come.
        self.remote_handle = -1
        self.state = state
        self.attached = False
        self.owner: Any = None
        self.delivery_count = 0
        self.peer_message_size_max: int | None = None
        self._attach_size = 0
        self.name = attach.name
        self.take_terms(attach)

    def take_terms(self, attach: Attach) -> None:
        """Copy the terms of the link from an attach frame."""
        self.source: Source | None = attach.source
        self.target: Target | Coordinator | None = attach.target
        self.snd_settle_mode = attach.snd_settle_mode
        self.rcv_settle_mode = attach.rcv_settle_mode
        self.properties: dict[Any, Any] | None = attach.properties

    @property
    def closed(self) -> bool:
        """Whether the link is gone, or we have detached it."""
        return self.state in (LinkState.DETACHING, LinkState.DETACHED)

    def hold(self, attach: Attach, size: int) -> None:
        """Register a link that the peer attached. It waits for the owner's answer."""
        self.remote_handle = attach.handle
        # AMQP 2.7.3: zero and absence both mean that there is no limit.
        self.peer_message_size_max = attach.max_message_size or None
        self._attach_size = size
        self.connection.usage.pending_links += 1
        self.connection.usage.attach_bytes += size

    def accept(
        self,
        source: Source | None = None,
        target: Target | Coordinator | None = None,
        properties: dict[Any, Any] | None = None,
        max_message_size: int | None = None,
        initial_delivery_count: int = 0,
    ) -> list[Event]:
        """Accept the peer's attach, possibly much later.

        Settle modes are echoed (wire §0.6), and so are source and target unless others are given.
        A null source or target is answered with an empty one, because null would mean a refusal
        (wire §3.2). Returns the events of everything that the peer has sent on the link meanwhile.
        """
        if self.state is not LinkState.PENDING:
            return []
        self.connection.usage.pending_links -= 1
        self.state = LinkState.ATTACHED
        self.attached = True
        self.session.write(
            self._attach(
                source or self.source or Source(),
                target or self.target or Target(),
                properties,
                self._accepted(max_message_size, initial_delivery_count),
            )
        )
        return self._early_events()

    def refuse(self, error: Error) -> None:
        """Refuse the peer's attach (wire §3.4)."""
        if self.state is LinkState.PENDING:
            self._answer_nothing()
            self.session.write(Detach(self.handle, closed=True, error=error))
            self.session.forget_link(self, answered=False)

    def detach(self, error: Error | None = None) -> None:
        """Detach the link. LinkDetached comes when the peer has answered."""
        if self.state is LinkState.PENDING:
            self.refuse(error or Error("amqp:link:detach-forced", "The link was closed."))
        elif self.state in (LinkState.ATTACHING, LinkState.ATTACHED):
            self._send_detach(error, closed=True)
            self.state = LinkState.DETACHING
            self.attached = False
            self.session.release_handle(self)
            self._release()

    def fail(self, fault: ProtocolError) -> None:
        """Detach the link because the peer broke a rule on it."""
        error = self.connection.error_of(fault)
        if self.state is LinkState.PENDING:
            self.refuse(error)
        else:
            self._send_detach(error, closed=True)
            self.session.forget_link(self, answered=False)
        self.connection.report(LinkDetached(self, error, closed=True))

    def on_attach(self, attach: Attach) -> bool:
        """Take the peer's answer to our attach; return whether it accepted the link.

        A refusal is an attach without our terminus, followed by a detach (AMQP 2.6.3).
        """
        self.remote_handle = attach.handle
        self.peer_message_size_max = attach.max_message_size or None
        if self.state is not LinkState.ATTACHING or self._refused_by(attach):
            return False
        self.take_terms(attach)
        self.state = LinkState.ATTACHED
        self.attached = True
        return True

    def on_detach(self, detach: Detach) -> None:
        """Take the peer's detach, or its answer to our detach."""
        if self.state is LinkState.PENDING:
            # A detach must follow an attach (wire §3.4).
            self._answer_nothing()
            self.session.write(Detach(self.handle, closed=detach.closed))
        elif self.state is not LinkState.DETACHING:
            self._send_detach(None, detach.closed)
        self.session.forget_link(self, answered=True)
        self.connection.report(LinkDetached(self, detach.error, detach.closed))

    def _send_detach(self, error: Error | None, closed: bool) -> None:
        # The verdicts of this turn go out before the detach.
        self.session.flush()
        self.session.write(Detach(self.handle, closed, error))

    def _answer_nothing(self) -> None:
        self.connection.usage.pending_links -= 1
        self.state = LinkState.DETACHING
        self.session.write(self._attach(None, None, None, None))

    def _attach(
        self,
        source: Source | None,
        target: Target | Coordinator | None,
        properties: dict[Any, Any] | None,
        max_message_size: int | None,
    ) -> Attach:
        return Attach(
            self.name,
            self.handle,
            self.wire_role,
            self.snd_settle_mode,
            self.rcv_settle_mode,
            source,
            target,
            initial_delivery_count=self.initial_delivery_count(),
            max_message_size=max_message_size,
            properties=properties,
        )

    def gone(self) -> None:
        """Release everything: the link, its session or its connection has ended."""
        if self.state is LinkState.PENDING:
            self.connection.usage.pending_links -= 1
        self.state = LinkState.DETACHED
        self.attached = False
        self.connection.usage.attach_bytes -= self._attach_size
        self._attach_size = 0
        self._release()

    @abstractmethod
    def on_flow(self, flow: Flow) -> None:
        """Take the peer's flow for the link."""

    @abstractmethod
    def flow_fields(self) -> tuple[int, int, bool]:
        """Return delivery-count, link-credit and drain for our flow."""

    @abstractmethod
    def _accepted(self, max_message_size: int | None, initial_delivery_count: int) -> int | None:
        """Take the terms that the owner accepted; return the max-message-size to announce."""

    @abstractmethod
    def _early_events(self) -> list[Event]:
        """Return the events of everything that came before the owner accepted the link."""

    @abstractmethod
    def initial_delivery_count(self) -> int | None:
        """Return the initial-delivery-count for our attach."""

    @abstractmethod
    def _refused_by(self, attach: Attach) -> bool:
        """Return whether the peer's answer to our attach lacks the terminus that we asked for."""

    @abstractmethod
    def _release(self) -> None:
        """Drop the deliveries of the link."""
