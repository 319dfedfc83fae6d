"""Where an entity forwards to: the name in what a client wrote, and what the client is given back.

Azure gives a URL back as it came, with its scheme and its case; the SDKs' own tests compare both.
"""

from typing import NamedTuple

from postbus.errors import InvalidArgument
from postbus.model.address import SubQueue, check_entity_name, resolve_address, strip_authority


class Destination(NamedTuple):
    """A queue or topic, as it was written down."""

    name: str | None
    """What names it; None where there is none."""
    sent: str | None
    """The URL in which it was named; None where it was named without."""


def read_destination(element: str, text: str) -> Destination:
    """What `sb://host/name`, or a bare `name`, says. Raises InvalidArgument.

    The host is not looked at: a broker is reached by more names than it knows of.
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
    """The URL that a client is given back for what it sent, a URL or a name in the client's case.

    `url_of_host` goes in front of a name, and ends with a slash.
    """
    # A copy that forwards elsewhere leaves the old spelling behind.
    if sent is None or resolve_address(sent).entity.lower() != name.lower():
        sent = name
    return sent if _is_url(sent) else f"{url_of_host}{sent}"


def _is_url(text: str) -> bool:
    return strip_authority(text) != text
