"""A client's connection as its links and nodes see it.

They know this base and not the connection itself (`postbus.gateway.connection`), which knows all
of them.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final

from postbus.amqp.events import Event
from postbus.amqp.link import Link
from postbus.auth.authority import Authority, Claims
from postbus.errors import ServiceBusError
from postbus.gateway.client_rights import ClientRights
from postbus.gateway.context import ConnectionContext
from postbus.gateway.transactions.open_transactions import Transactions
from postbus.model.authorization import Right
from postbus.model.times import Instant
from postbus.namespace.namespace import Namespace
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.requests import Lose
from postbus.runtime.runtime import Runtime
from postbus.runtime.sliced_work import Step

if TYPE_CHECKING:
    from postbus.gateway.client_links import ClientReceiver

ORPHANS_MAX: Final = 10_000


class ClientConnection:
    """Who the client is, what it may do, and what it was promised."""

    _last_id: ClassVar[int] = 0

    def __init__(self, service: ConnectionContext, elapsed_ms: int) -> None:
        ClientConnection._last_id += 1
        self.id = ClientConnection._last_id
        self.service = service
        self.refusals = service.refusals
        self.now: Instant = service.clock()
        """The broker's time when something last came."""
        self.rights = ClientRights(service, elapsed_ms)
        self.waiting_bytes = 0
        """Responses that wait for the client's credit, on all links."""
        self.promised_bytes = 0
        """Messages that are written to the client when their commit is back."""
        self.held_back: dict[ClientReceiver, None] = {}
        """Receivers that found no room for what they were to be promised."""
        self.session_holders: set[int] = set()
        """The links that hold a message session."""
        self.orphans: dict[bytes, tuple[LoadedFragment, int]] = {}
        """Locks that no link holds, by token, each with its fragment and subqueue."""
        self._is_broken = False
        self._transactions: Transactions | None = None

    # -- what it is --------------------------------------------------------------------------

    @property
    def authority(self) -> Authority:
        return self.service.authority

    @property
    def namespace(self) -> Namespace:
        return self.service.namespace

    @property
    def stranger(self) -> bool:
        """The client has shown no token that is good."""
        return not self.rights.proven

    def allows(self, right: Right, path: str) -> bool:
        return self.rights.allows(right, path)

    def uri(self, path: str) -> str:
        """How an entity is named in refusals (wire §7.2)."""
        return f"sb://{self.refusals.host}/{path}"

    def runtime(self, fragment: LoadedFragment) -> Runtime:
        return self.service.namespace.runtime(fragment)

    @property
    def transactions(self) -> Transactions:
        """Made when they are first asked for: most connections have none."""
        if self._transactions is None:
            self._transactions = Transactions(self.service)
        return self._transactions

    def locked(self, fragment: LoadedFragment, subqueue: int, token: bytes) -> None:
        """The client holds a lock that belongs to no link."""
        if self._is_broken:  # it is gone by now, and the lock goes with it
            self.runtime(fragment).submit(Lose(fragment, [(subqueue, token)]))
            return
        if len(self.orphans) >= ORPHANS_MAX:
            self.orphans.pop(next(iter(self.orphans)))
        self.orphans[token] = fragment, subqueue

    def lose(self, held: list[tuple[LoadedFragment, int, bytes]]) -> None:
        """The connection broke: end the locks that its links hold, and those of no link."""
        self._is_broken = True
        lost: dict[LoadedFragment, list[tuple[int, bytes]]] = {}
        for fragment, subqueue, token in held:
            lost.setdefault(fragment, []).append((subqueue, token))
        for token, (fragment, subqueue) in self.orphans.items():
            lost.setdefault(fragment, []).append((subqueue, token))
        for fragment, tokens in lost.items():
            self.runtime(fragment).submit(Lose(fragment, tokens))

    # -- what it does ------------------------------------------------------------------------

    @abstractmethod
    def holds_back(self, receiver: ClientReceiver) -> bool:
        """The client was promised as much as may wait for it. The receiver that asks is woken when
        there is room again."""

    @abstractmethod
    def links(self) -> list[Link]:
        """The links of all its sessions."""

    @abstractmethod
    def touch(self) -> None:
        """There is something to write: do so once, when this turn of the loop is over."""

    @abstractmethod
    def detach(self, link: Link, error: ServiceBusError, entity: str) -> None:
        """End a link, and say why."""

    @abstractmethod
    def heard(self, events: list[Event]) -> None:
        """A link was accepted long after it was asked for: this is what its client said since."""

    @abstractmethod
    def proceed(self, work: Step) -> None:
        """What has just come takes several turns: all that came behind it waits until then."""

    @abstractmethod
    def add_claims(self, audience: str, claims: Claims) -> None:
        """A token was put for an audience. What it renews goes on undisturbed."""
