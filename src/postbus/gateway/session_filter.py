"""The filter by which a receiver asks for a message session (wire §3.3)."""

from typing import Any, Final, NamedTuple

from postbus.amqp.codec.types import Described
from postbus.amqp.frames.terminus import Source
from postbus.errors import InvalidArgument

_NAME: Final = "com.microsoft:session-filter"
_CODE: Final = 0x137000000C


class SessionFilter(NamedTuple):
    """Which session a receiver wants, and the words it asked in."""

    key: Any
    """Of the entry in the source's filter."""
    descriptor: Any
    """None where the value stands there bare."""
    session_id: str | None
    """None: the next one that is to be had. The empty text is an id like any other."""

    def naming(self, session_id: str) -> dict[Any, Any]:
        """The filter of the answer: Go insists on the descriptor, all others cannot read it."""
        if self.descriptor is None:
            return {self.key: session_id}
        return {self.key: Described(self.descriptor, session_id)}


def read_session_filter(source: Source) -> SessionFilter | None:
    """The session that is asked for; None where none is. Raises InvalidArgument."""
    for key, value in (source.filter or {}).items():
        if not is_session_filter(key, value):
            continue
        descriptor = value.descriptor if isinstance(value, Described) else None
        wanted = value.value if isinstance(value, Described) else value
        if wanted is not None and not isinstance(wanted, str):
            raise InvalidArgument(f"The value of the filter '{_NAME}' must be text or null.")
        return SessionFilter(key, descriptor, wanted)
    return None


def is_session_filter(key: Any, value: Any) -> bool:
    """Does this entry of a filter ask for a session?"""
    descriptor = value.descriptor if isinstance(value, Described) else None
    return str(key) == _NAME or str(descriptor) == _NAME or descriptor == _CODE
