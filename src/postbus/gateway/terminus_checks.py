"""What a client asks of a link's terminus that is not there: refused by name, never echoed and
ignored (AMQP 3.5)."""

from typing import Final

from postbus.amqp.codec.types import Described
from postbus.amqp.frames.terminus import Source, Target
from postbus.errors import InvalidArgument, NotSupported
from postbus.gateway.session_link import is_session_filter

MOVE: Final = "move"
COPY: Final = "copy"
_MODES: Final = (None, MOVE, COPY)
_SELECTORS: Final = frozenset(
    {"apache.org:selector-filter:string", "jms-selector", 0x0000_468C_0000_0004}
)
_NO_LOCALS: Final = frozenset(
    {"apache.org:no-local-filter:list", "no-local", 0x0000_468C_0000_0003}
)


def check_terminus(terminus: Source | Target | None) -> str:
    """The address that a client names. Raises for what is not supported, and for none."""
    address = None if terminus is None else terminus.address
    if terminus is not None and terminus.dynamic:
        raise NotSupported(
            "Dynamic nodes are not supported, and with them temporary queues and topics: create "
            "an entity and name it."
        )
    if not isinstance(address, str):
        if isinstance(terminus, Target):
            raise NotSupported(
                "The link names no address: senders without a target (anonymous relay) are not "
                "supported."
            )
        raise InvalidArgument("The link names no address.")
    if isinstance(terminus, Source):
        _check_filters(terminus)
    return address


def _check_filters(source: Source) -> None:
    # A client need not look at the answer to see which are in force: it would go on without.
    for key, value in (source.filter or {}).items():
        if is_session_filter(key, value):
            continue
        descriptor = value.descriptor if isinstance(value, Described) else None
        # Of other types there can be values that have no hash.
        names = {each for each in (key, descriptor) if isinstance(each, (str, int))}
        if names & _SELECTORS:
            raise NotSupported(
                "Selectors are not supported: give a subscription an SQL filter and receive from "
                "that."
            )
        if names & _NO_LOCALS:
            raise NotSupported("Receivers that leave out their own messages are not supported.")
        raise NotSupported(f"The filter '{key!s:.64}' is not supported.")


def browses(source: Source) -> bool:
    """Does the client want to see messages and take none? (AMQP 3.5.7)"""
    if source.distribution_mode not in _MODES:
        raise InvalidArgument(
            f"The distribution mode '{source.distribution_mode!s:.64}' is neither '{MOVE}' nor "
            f"'{COPY}'."
        )
    if source.distribution_mode != COPY:
        return False
    if source.durable:
        # What a durable subscriber of JMS asks for means to take messages, of a subscription
        # that is made by asking.
        raise NotSupported(
            "Durable subscriptions are not made by a link: create a subscription and receive "
            "from '<topic>/Subscriptions/<subscription>' as from a queue."
        )
    return True
