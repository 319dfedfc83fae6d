"""What both ends of a link have in common: attaching, refusing, detaching (AMQP 2.6)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, ClassVar, Literal

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


class Link(ABC):
    """One end of a link. `role` is ours; `owner` is for whoever owns the connection.

    `name`, `source`, `target`, the settle modes and `properties` are those of the peer's attach,
    or for a link we attached, ours until the peer's attach has come. A link outlives nothing: all
    its methods but send() do nothing once it is gone, so an owner may answer late.
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
    # The same as a frame has it (AMQP 2.8.1).
    wire_role: ClassVar[bool]

    def __init__(self, session: Session, handle: int, attach: Attach, state: LinkState) -> None:
        self.session = session
        self.connection = session.connection
        self.handle = handle
        # Of the peer; -1 until its attach has come.
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
        """Note what an attach frame says about the link."""
        self.source: Source | None = attach.source
        self.target: Target | Coordinator | None = attach.target
        self.snd_settle_mode = attach.snd_settle_mode
        self.rcv_settle_mode = attach.rcv_settle_mode
        self.properties: dict[Any, Any] | None = attach.properties

    @property
    def closed(self) -> bool:
        """Whether the link is gone, or on its way out at our wish."""
        return self.state in (LinkState.DETACHING, LinkState.DETACHED)

    def hold(self, attach: Attach, size: int) -> None:
        """Register a link the peer attached, to wait for the owner's answer."""
        self.remote_handle = attach.handle
        # AMQP 2.7.3: zero means no limit, as absence does.
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
        """Answer the peer's attach; may come much later than it.

        Settle modes are echoed (wire §0.6), as are source and target unless others
        are given; a null one comes back empty but present, for null is a refusal (wire §3.2).
        Returns what the peer had to say on the link in the meantime.
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
        """Answer the peer's attach with a no (wire §3.4)."""
        if self.state is LinkState.PENDING:
            self._answer_nothing()
            self.session.write(Detach(self.handle, closed=True, error=error))
            self.session.forget_link(self, answered=False)

    def detach(self, error: Error | None = None) -> None:
        """End the link; LinkDetached comes when the peer has answered."""
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
        """Take the peer's answer to our attach; say whether it accepted the link.

        A refusal comes as an attach without our own terminus, then a detach (AMQP 2.6.3).
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
        """The peer detaches, or answers our detach."""
        if self.state is LinkState.PENDING:
            # Never a detach without an attach before it (wire §3.4).
            self._answer_nothing()
            self.session.write(Detach(self.handle, closed=detach.closed))
        elif self.state is not LinkState.DETACHING:
            self._send_detach(None, detach.closed)
        self.session.forget_link(self, answered=True)
        self.connection.report(LinkDetached(self, detach.error, detach.closed))

    def _send_detach(self, error: Error | None, closed: bool) -> None:
        # Verdicts and transfers of this turn go first.
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
        """Let go of everything: the link, its session or its connection has ended."""
        if self.state is LinkState.PENDING:
            self.connection.usage.pending_links -= 1
        self.state = LinkState.DETACHED
        self.attached = False
        self.connection.usage.attach_bytes -= self._attach_size
        self._attach_size = 0
        self._release()

    @abstractmethod
    def on_flow(self, flow: Flow) -> None:
        """Take the peer's view of the link."""

    @abstractmethod
    def flow_fields(self) -> tuple[int, int, bool]:
        """Return our view of the link: delivery-count, link-credit and drain."""

    @abstractmethod
    def _accepted(self, max_message_size: int | None, initial_delivery_count: int) -> int | None:
        """Start with what the owner accepted; return the max-message-size to announce."""

    @abstractmethod
    def _early_events(self) -> list[Event]:
        """Return what came before the owner accepted."""

    @abstractmethod
    def initial_delivery_count(self) -> int | None:
        """Return what our attach says of the delivery-count."""

    @abstractmethod
    def _refused_by(self, attach: Attach) -> bool:
        """Say whether the peer's answer to our attach lacks the terminus that we asked for."""

    @abstractmethod
    def _release(self) -> None:
        """Let go of deliveries."""
