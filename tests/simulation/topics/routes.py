"""Who forwards to whom, and which subscription takes which messages: what is known of a history
without asking the broker.

A message's id tells its way: `m7/3/5` is message m7, through subscription 3, which forwarded it to
the topic again, through subscription 5. So no two messages of a history have the same id, and a
message that is there twice was doubled.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from postbus.broker.message import Message
from postbus.broker.policy import Policy
from postbus.broker.topic import Copy, Sorted

TOPIC, ROUTE, END = 11, 12, 13
NAMES = {TOPIC: "news", ROUTE: "route", END: "end"}
COLOURS = "rgbx"
BROKEN = "x"
"""The colour that some filters cannot be evaluated for."""
TRAVELS_MAX = 6
"""More topics than any message can come through, with four hops."""


@dataclass
class Subscription:
    """One subscription, from when it was asked for until after it is gone."""

    owner: int
    colours: frozenset[str]
    twice: bool
    """A second rule matches, with an action: it gets a second copy."""
    fails: bool
    """Its filter cannot be evaluated for broken messages."""
    policy: Policy
    since: int | None = None
    """When its creation was confirmed, counted in messages sent."""
    deleted: bool = False
    targets: set[int] = field(default_factory=set)
    """Wherever it has ever forwarded to, dead letters included."""

    def copies(self, name: str, colour: str) -> list[str]:
        """The ids of its copies of a message."""
        if colour not in self.colours:
            return []
        way = f"{name}/{self.owner}"
        if self.fails and colour == BROKEN:
            return [way] if self.policy.dead_letter_on_filter_errors else []
        return [way, f"{way}b"] if self.twice else [way]


@dataclass(frozen=True)
class Root:
    """A message as a client sent it."""

    name: str
    colour: str
    body: bytes
    to: int
    at: int
    """How many were sent before it."""


class Routes:
    """All subscriptions and messages that clients ever asked for."""

    def __init__(self) -> None:
        self.subscriptions: dict[int, Subscription] = {}
        self.roots: dict[str, Root] = {}
        self.route_targets: set[int] = set()
        self.deleted: set[int] = set()
        """Fragments of entities that were deleted."""

    def root_of(self, name: str) -> Root:
        return self.roots[name.split("/", maxsplit=1)[0]]

    def last(self, name: str) -> Subscription | None:
        """The subscription that an id was made for; None for an id that a client gave."""
        *way, last = name.split("/")
        return self.subscriptions[int(last.rstrip("b"))] if way else None

    def reaches(self, name: str) -> set[int]:
        """Where a message may go on to from where it was given its id."""
        subscription = self.last(name)
        start = {self.root_of(name).to} if subscription is None else set(subscription.targets)
        return start | self.route_targets if ROUTE in start else start

    def standing(self) -> list[Subscription]:
        return [each for each in self.subscriptions.values() if not each.deleted]

    def certain(self, root: Root) -> list[Subscription]:
        """The subscriptions that were there when the message was sent, and still are."""
        return [s for s in self.standing() if s.since is not None and s.since <= root.at]


def colour_of(body: bytes) -> str:
    return body.split(b":")[1].decode()


OWNERS_AT_ONCE = 1
"""Of some messages, as if it took long to make their copies."""


class RoutesMatcher:
    """Applies the rules of the topic, in the plainest way."""

    cost = 1

    def __init__(self, routes: Routes) -> None:
        self._routes = routes

    def copies(self, message: Message, raw: bytes, after: int = 0) -> Sorted:
        found = [copy for copy in self._copies(message, raw) if copy.owner > after]
        owners = list(dict.fromkeys(copy.owner for copy in found))
        if len(message.message_id) % 3 or len(owners) <= OWNERS_AT_ONCE:
            return Sorted(found, True)
        last = owners[OWNERS_AT_ONCE - 1]
        return Sorted([copy for copy in found if copy.owner <= last], False)

    def _copies(self, message: Message, raw: bytes) -> list[Copy]:
        colour = colour_of(raw)
        found: list[Copy] = []
        for subscription in sorted(self._routes.standing(), key=lambda each: each.owner):
            owner = subscription.owner
            if subscription.fails and colour == BROKEN and colour in subscription.colours:
                failure = ("FilterFailed", "it cannot be evaluated")
                way = f"{message.message_id}/{owner}"
                found.append(Copy(owner, message_id=way, failure=failure))
                continue
            for way in subscription.copies(message.message_id, colour):
                changed = b"changed" if way.endswith("b") else None
                found.append(Copy(owner, message_id=way, properties=changed, header_size=9))
        return found
