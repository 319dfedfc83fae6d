"""What queues, topics and subscriptions have in common: fragments, links, meters and a policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Final

import structlog

from postbus.amqp.link import Link
from postbus.broker.destination import Destination
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import MAIN, subqueue_of
from postbus.errors import DetachForced, EntityDisabled, InvalidOperation, ServiceBusError
from postbus.model.address import Address, SubQueue
from postbus.model.description import EntityStatus
from postbus.model.partitioning import fragment_of
from postbus.model.times import Instant
from postbus.namespace.prefetch import PrefetchWatch
from postbus.namespace.spread import Spread
from postbus.observe.meters import EntityMeter
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.settings import Settings

ID_BYTES: Final = 4
"""A lock token begins with the id of its fragment (`postbus.runtime.loading`)."""
INDEX_SHIFT: Final = 48
"""A sequence number is `fragment index << 48 | n` (semantics B §9)."""

log = structlog.get_logger("namespace")


class Entity(ABC):
    """What all of them have: a name, fragments, links and meters."""

    kind = "entity"
    spread: Spread
    """Chooses the fragments of sends; a subscription has that of its topic."""

    def __init__(
        self, name: str, fragments: Sequence[LoadedFragment], owner: int, settings: Settings
    ) -> None:
        self.name = name
        self.fragments = tuple(fragments)
        """By index. A subscription has those of its topic."""
        self._by_id = {fragment.id: fragment for fragment in self.fragments}
        self.owner = owner
        self.settings = settings
        self.created_at: Instant = 0
        self.updated_at: Instant = 0
        self.accessed_at: Instant = 0
        self.used_at: Instant = 0
        """When it was last used or changed, for those that are deleted when idle."""
        self.meter = EntityMeter()
        self.links: set[Link] = set()
        """Links of clients to it and to its management node."""

    @property
    def path(self) -> str:
        """As clients address it."""
        return self.name

    @property
    def top_level(self) -> Entity:
        """The queue or topic that the fragments belong to."""
        return self

    @property
    def partitioned(self) -> bool:
        """Does it have several fragments?"""
        return len(self.fragments) > 1

    # -- which fragment ----------------------------------------------------------------------

    @property
    def only_fragment(self) -> LoadedFragment:
        """The fragment of an entity that has one. Raises ValueError for any other."""
        [only] = self.fragments
        return only

    def fragment_for(self, key: str) -> LoadedFragment:
        """The fragment of the messages with this key, which is a session id or a partition key."""
        fragments = self.fragments
        return fragments[0] if len(fragments) == 1 else fragments[fragment_of(key)]

    def fragment_of_token(self, token: bytes) -> LoadedFragment:
        """The fragment that gave out a lock token. A token that names no fragment of the entity
        goes to the first one: its engine has no such lock, and says so."""
        fragments = self.fragments
        if len(fragments) == 1:
            return fragments[0]
        return self._by_id.get(int.from_bytes(token[:ID_BYTES], "big"), fragments[0])

    def fragment_of_number(self, number: int) -> LoadedFragment:
        """The fragment that gave out a sequence number. A number of no fragment goes to the
        first one: its engine has no such message, and says so."""
        index = number >> INDEX_SHIFT
        return self.fragments[index if 0 <= index < len(self.fragments) else 0]

    def by_token(self, tokens: Iterable[bytes]) -> dict[LoadedFragment, list[bytes]]:
        """Lock tokens by the fragments that gave them out."""
        groups: dict[LoadedFragment, list[bytes]] = {}
        for token in tokens:
            groups.setdefault(self.fragment_of_token(token), []).append(token)
        return groups

    def by_number(self, numbers: Iterable[int]) -> dict[LoadedFragment, list[int]]:
        """Sequence numbers by the fragments that gave them out."""
        groups: dict[LoadedFragment, list[int]] = {}
        for number in numbers:
            groups.setdefault(self.fragment_of_number(number), []).append(number)
        return groups

    # -- what the kinds differ in ------------------------------------------------------------

    @property
    @abstractmethod
    def status(self) -> EntityStatus: ...

    @property
    @abstractmethod
    def message_size_max(self) -> int:
        """Bytes of the largest message that it takes; a subscription takes what its topic does."""

    @abstractmethod
    def policy(self) -> Policy:
        """What its description means to the engine."""

    @property
    @abstractmethod
    def auto_delete_ms(self) -> int | None:
        """How long it may be idle before it is deleted; None: for ever."""

    def needs_session(self, subqueue: SubQueue) -> bool:
        """Can the messages of this subqueue be received within their sessions only? A dead-letter
        queue has no sessions (semantics B §1)."""
        return False

    def forwarded_to(self, subqueue: SubQueue) -> str | None:
        """The entity that the messages of this subqueue are forwarded to."""
        return None

    def check_not_forwarded(self, address: Address) -> None:
        """Raise InvalidOperation where the broker itself receives the messages at this address,
        to forward them (semantics B §8)."""
        target = self.forwarded_to(address.subqueue)
        if target is not None:
            raise InvalidOperation(
                f"Cannot create a message receiver on '{address.path}': its messages are "
                f"forwarded to '{target}'."
            )

    def subqueue(self, kind: int) -> int:
        """The number of one of its subqueues in its fragment."""
        return subqueue_of(self.owner, kind)

    def touch(self, now: Instant) -> None:
        self.accessed_at = self.used_at = now

    def next_version(self, now: Instant) -> Instant:
        """The time of a change. Two changes in one millisecond must have different versions."""
        return max(now, self.updated_at + 1)

    def detach_all(self, error: ServiceBusError) -> None:
        """End every link to the entity and to its management node."""
        for link in list(self.links):
            link.owner.gateway.detach(link, error, self.path)

    def detach_updated(self) -> None:
        """End the links that carry messages: the entity is not what they were attached to."""
        for link in self.message_links():
            status = self.status
            allowed = status.sends if link.role == "receiver" else status.receives
            error: ServiceBusError = (
                DetachForced(f"The entity '{self.path}' was updated.")
                if allowed
                else EntityDisabled(self.path)
            )
            link.owner.gateway.detach(link, error, self.path)

    def message_links(self) -> list[Link]:
        """Its links that carry messages; those to its management node carry requests."""
        return [link for link in self.links if getattr(link.owner, "carries_messages", False)]


class ReceivableEntity(Entity):
    """One that clients receive from: a queue, or a subscription."""

    description: Any
    """Each has its own kind; they agree in all that is asked for here."""

    def __init__(
        self,
        name: str,
        fragments: Sequence[LoadedFragment],
        owner: int,
        settings: Settings,
        now: Instant,
    ) -> None:
        super().__init__(name, fragments, owner, settings)
        self.prefetch = PrefetchWatch(now)
        self.forward_to: Destination | None = None
        self.forward_dead_letters_to: Destination | None = None

    @property
    def status(self) -> EntityStatus:
        status: EntityStatus = self.description.status
        return status

    @property
    def auto_delete_ms(self) -> int | None:
        # A queue that forwards is never idle (semantics B §8).
        return None if self.forward_to is not None else self.description.auto_delete_ms

    def needs_session(self, subqueue: SubQueue) -> bool:
        return subqueue is SubQueue.MAIN and bool(self.description.requires_session)

    def forwarded_to(self, subqueue: SubQueue) -> str | None:
        target: str | None = None
        if subqueue is SubQueue.MAIN:
            target = self.description.forward_to
        elif subqueue is SubQueue.DEAD_LETTER:
            target = self.description.forward_dead_letters_to
        return target

    @property
    def sessions_held(self) -> int:
        main = self.subqueue(MAIN)
        waiters = [each.session_waiters.get(main) for each in self.fragments]
        return sum(each.held_count for each in waiters if each is not None)

    def findings(self, now: Instant) -> list[str]:
        """What an operator should hear of (R-PRE-05)."""
        description = self.description
        return self.prefetch.findings(description.lock_duration_ms, description.default_ttl_ms, now)

    def warn(self, now: Instant) -> None:
        findings = self.findings(now)
        if findings and self.prefetch.may_warn(now):
            log.warning("prefetch outlasts locks", entity=self.path, findings=findings)
