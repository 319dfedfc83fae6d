"""Entity paths in AMQP addresses and request paths, and the destinations of forwarding.

`<entity>[/Subscriptions/<name>][/$DeadLetterQueue | /$Transfer/$DeadLetterQueue][/$management]`.
An entity's name may itself contain slashes, so a path is read from its right end.
"""

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple
from urllib.parse import unquote

from postbus.errors import InvalidArgument

ENTITY_NAME_LENGTH_MAX: Final = 260
SUBSCRIPTION_NAME_LENGTH_MAX: Final = 50
# Longer than any address that can name something, even percent-encoded and behind a long host name.
# A longer text is not parsed.
ADDRESS_LENGTH_MAX: Final = 4_096

CBS: Final = "$cbs"

_MANAGEMENT: Final = "/$management"
_TRANSFER_DEAD_LETTERS: Final = "/$transfer/$deadletterqueue"
_DEAD_LETTERS: Final = "/$deadletterqueue"
_SUBSCRIPTIONS: Final = "subscriptions"

_AUTHORITY: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://[^/?#]*", re.ASCII)
_HOST_AND_PORT: Final = re.compile(
    r"([A-Za-z0-9._\-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::\d+)?", re.ASCII
)
# The part of a path that names messages over HTTP (wire §9.6).
_MESSAGE: Final = re.compile(
    r".+/messages/(?:head|[^/]+/[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})",
    re.ASCII | re.IGNORECASE,
)
_NAME: Final = re.compile(r"[A-Za-z0-9._\-]+(?:/[A-Za-z0-9._\-]+)*", re.ASCII)


class SubQueue(Enum):
    """Which queue of an entity a path leads to."""

    MAIN = ""
    DEAD_LETTER = "/$DeadLetterQueue"
    TRANSFER_DEAD_LETTER = "/$Transfer/$DeadLetterQueue"


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of a path. Names are in the client's spelling; they compare case-insensitively."""

    entity: str
    subscription: str | None = None
    subqueue: SubQueue = SubQueue.MAIN
    management: bool = False
    written: str = field(default="", compare=False)
    """The whole path as the client wrote it; refusals quote it."""

    @property
    def is_cbs(self) -> bool:
        """The node that takes tokens (wire §2)."""
        return self.entity.lower() == CBS and self.path == self.entity

    @property
    def path(self) -> str:
        """The whole path, with the fixed parts in Azure's spelling."""
        subscription = "" if self.subscription is None else f"/Subscriptions/{self.subscription}"
        management = _MANAGEMENT if self.management else ""
        return f"{self.entity}{subscription}{self.subqueue.value}{management}"


def resolve_address(text: str) -> Address:
    """Parse an AMQP address: bare, with a leading slash, or a whole URI (wire §3.1).

    Does not check that the entity exists. Raises InvalidArgument for an address that names nothing.
    """
    if len(text) > ADDRESS_LENGTH_MAX:
        raise InvalidArgument(
            f"The address has {len(text)} characters; {ADDRESS_LENGTH_MAX} are allowed."
        )
    return resolve_path(unquote(strip_authority(text)))


def resolve_path(path: str) -> Address:
    """As resolve_address, for a path without scheme, host and percent-encoding."""
    rest = path.strip("/")
    management = _ends_with(rest, _MANAGEMENT)
    if management:
        rest = rest[: -len(_MANAGEMENT)]
    subqueue = SubQueue.MAIN
    if _ends_with(rest, _TRANSFER_DEAD_LETTERS):
        subqueue, rest = SubQueue.TRANSFER_DEAD_LETTER, rest[: -len(_TRANSFER_DEAD_LETTERS)]
    elif _ends_with(rest, _DEAD_LETTERS):
        subqueue, rest = SubQueue.DEAD_LETTER, rest[: -len(_DEAD_LETTERS)]
    rest, subscription = _split_subscription(rest)
    if not rest:
        raise InvalidArgument(f"The address '{path}' names no entity.")
    return Address(rest, subscription, subqueue, management, path.strip("/"))


def strip_authority(uri: str) -> str:
    """A URI without its scheme, host and port; any other text as it is."""
    match = _AUTHORITY.match(uri)
    return uri if match is None else uri[match.end() :]


def host_without_port(authority: str) -> str:
    """The host in a URI's authority; empty for an invalid authority."""
    found = _HOST_AND_PORT.fullmatch(authority)
    return "" if found is None else found[1]


def check_entity_name(name: str) -> None:
    """Raise InvalidArgument where `name` cannot be the name of a queue (semantics A §5.2)."""
    if not name:
        raise InvalidArgument("The entity name is empty ('URI_PATH').")
    if len(name) > ENTITY_NAME_LENGTH_MAX:
        raise InvalidArgument(
            f"The entity name has {len(name)} characters; "
            f"{ENTITY_NAME_LENGTH_MAX} are allowed ('URI_PATH')."
        )
    if _NAME.fullmatch(name) is None:
        raise InvalidArgument(
            f"'URI_PATH' contains disallowed characters: '{name}'. An entity name has letters, "
            "digits, '.', '-' and '_', in parts separated by single slashes."
        )
    # HTTP clients remove dots from a path before they send it, so such a part is out of reach.
    parts = name.lower().split("/")
    if "." in parts or ".." in parts:
        raise InvalidArgument(f"The entity name '{name}' has a part that is only dots.")
    if _SUBSCRIPTIONS in parts[1:]:
        raise InvalidArgument(
            f"The entity name '{name}' cannot be told from that of a subscription: "
            "'Subscriptions' is reserved."
        )
    if _MESSAGE.fullmatch(name) is not None:
        raise InvalidArgument(
            f"The entity name '{name}' cannot be told from the address of a message."
        )


def check_subscription_name(name: str) -> None:
    """Raise InvalidArgument where no subscription can have this name (semantics A §5.2)."""
    if len(name) > SUBSCRIPTION_NAME_LENGTH_MAX:
        raise InvalidArgument(
            f"The name of the subscription has {len(name)} characters; "
            f"{SUBSCRIPTION_NAME_LENGTH_MAX} are allowed ('URI_PATH')."
        )
    if _NAME.fullmatch(name) is None or "/" in name or name in (".", ".."):
        raise InvalidArgument(
            f"'URI_PATH' contains disallowed characters: '{name}'. The name of a subscription has "
            "letters, digits, '.', '-' and '_', and is not only dots."
        )


def _ends_with(text: str, suffix: str) -> bool:
    return text[-len(suffix) :].lower() == suffix


def _split_subscription(path: str) -> tuple[str, str | None]:
    head, _, name = path.rpartition("/")
    entity, _, marker = head.rpartition("/")
    if entity and name and marker.lower() == _SUBSCRIPTIONS:
        return entity, name
    return path, None


class Destination(NamedTuple):
    """The queue or topic that messages are forwarded to, as a client wrote it.

    Azure returns a URL as it came, with its scheme and its case. The SDKs' own tests compare both.
    """

    name: str | None
    """Its name; None where the text is empty."""
    sent: str | None
    """The client's URL; None where the client gave a bare name."""


def read_destination(element: str, text: str) -> Destination:
    """The destination in `sb://host/name`, or in a bare `name`. Raises InvalidArgument.

    The host is ignored: clients reach a broker by more names than it knows.
    """
    if not text:
        return Destination(None, None)
    try:
        address = resolve_address(text)
        check_entity_name(address.entity)
    except InvalidArgument as error:
        raise InvalidArgument(f"The property '{element}' is not valid: {error}") from None
    if address.subscription or address.management or address.subqueue is not SubQueue.MAIN:
        raise InvalidArgument(
            f"The property '{element}' must name a queue or a topic, not '{address.path}'."
        )
    return Destination(address.entity, text if _is_url(text) else None)


def written(name: str, sent: str | None, url_of_host: str) -> str:
    """The URL that replies give back for a destination, in the client's spelling.

    `url_of_host` goes in front of a name, and ends with a slash.
    """
    # A changed copy of a description may still hold the spelling of an earlier destination.
    if sent is None or resolve_address(sent).entity.lower() != name.lower():
        sent = name
    return sent if _is_url(sent) else f"{url_of_host}{sent}"


def _is_url(text: str) -> bool:
    return strip_authority(text) != text
