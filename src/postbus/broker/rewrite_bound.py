"""How many properties a request may change: a client says it once, for thousands of messages.

The changes are written for each message, and each time all of its properties are read and written.
So there is a bound on their bytes, for memory, and a bound on their values, for time.
"""

from typing import Final

from postbus.broker.browse import RECEIVE_BYTES_MAX
from postbus.broker.message import NewProperties
from postbus.errors import MessageSizeExceeded

VALUES_MAX: Final = 32_768
"""Values that are read and written within a turn: some 35 ms."""


class Rewriting:
    """The changes that one request has made so far."""

    __slots__ = ("_size", "_values")

    def __init__(self) -> None:
        self._size = 0
        self._values = 0

    def add(self, properties: NewProperties) -> None:
        """Raise the refusal of changes to more than can be changed together."""
        self._size += len(properties.section)
        self._values += properties.values
        check_together(self._size)
        if self._values > VALUES_MAX and self._values > properties.values:
            raise MessageSizeExceeded(
                f"The messages whose properties are to be changed have {self._values} of them, "
                f"{VALUES_MAX} are allowed at a time: name fewer messages."
            )


def check_together(size: int) -> None:
    """Raise the refusal of messages that are too large to be changed together."""
    if size > RECEIVE_BYTES_MAX:
        raise MessageSizeExceeded(
            f"The messages whose properties are to be changed take {size} bytes, "
            f"{RECEIVE_BYTES_MAX} bytes are allowed at a time: name fewer messages."
        )
