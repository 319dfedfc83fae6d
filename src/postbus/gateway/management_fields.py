"""Read the map of a management request: every value checked, every fault named.

Integers come in all widths, names as strings or symbols (wire §6.1, §10.20).
"""

from __future__ import annotations

from typing import Any, Final, TypeVar
from uuid import UUID

from postbus.amqp.codec.types import AmqpArray
from postbus.errors import InvalidArgument

T = TypeVar("T")

TOKENS_MAX: Final = 2_048
NUMBERS_MAX: Final = 2_048


def check_number(value: int) -> int:
    """A number as the stores can hold it."""
    if not -(1 << 63) <= value < 1 << 63:
        raise InvalidArgument(f"{value} is no 64-bit number.")
    return int(value)


class Fields:
    """The named values of one request."""

    __slots__ = ("_values",)

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    @classmethod
    def of(cls, body: object) -> Fields:
        if body is None:
            return cls({})
        if not isinstance(body, dict):
            raise InvalidArgument("The body of the request is not a map.")
        return cls({str(key): value for key, value in body.items()})

    def only(self, names: frozenset[str]) -> None:
        """Raise InvalidArgument where a key is none of these."""
        for name, value in self._values.items():
            if value is not None and name not in names:
                raise InvalidArgument(f"'{name[:64]}' is not known here.")

    def get(self, name: str) -> Any:
        return self._values.get(name)

    def number(self, name: str) -> int:
        value = self.optional_number(name)
        if value is None:
            raise InvalidArgument(f"The request has no '{name}'.")
        return value

    def optional_number(self, name: str) -> int | None:
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidArgument(f"'{name}' is not a number.")
        return check_number(value)

    def flag(self, name: str) -> bool:
        """False where it is not said."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, bool):
            raise InvalidArgument(f"'{name}' is not a boolean.")
        return value is True

    def text(self, name: str) -> str:
        value = self.optional_text(name)
        if value is None:
            raise InvalidArgument(f"The request has no '{name}'.")
        return value

    def optional_text(self, name: str) -> str | None:
        value = self._values.get(name)
        if value is not None and not isinstance(value, str):
            raise InvalidArgument(f"'{name}' is not a string.")
        return None if value is None else str(value)

    def binary(self, name: str) -> bytes:
        value = self._values.get(name)
        if not isinstance(value, bytes):
            raise InvalidArgument(f"'{name}' is not binary.")
        return value

    def optional_map(self, name: str) -> dict[Any, Any] | None:
        value = self._values.get(name)
        if value is not None and not isinstance(value, dict):
            raise InvalidArgument(f"'{name}' is not a map.")
        return value

    def items(self, name: str, kind: type[T], count_max: int) -> list[T]:
        """A list or an array of one type."""
        value = self._values.get(name)
        if isinstance(value, AmqpArray):
            value = value.items
        if not isinstance(value, list):
            raise InvalidArgument(f"'{name}' is not a list.")
        if len(value) > count_max:
            raise InvalidArgument(f"'{name}' has {len(value)} items, {count_max} are allowed.")
        for item in value:
            if not isinstance(item, kind) or isinstance(item, bool):
                raise InvalidArgument(f"'{name}' holds a value of another type.")
        return value

    def list_of_maps(self, name: str, count_max: int) -> list[Fields]:
        items: list[dict[Any, Any]] = self.items(name, dict, count_max)
        return [Fields.of(item) for item in items]


def tokens_of(fields: Fields) -> list[bytes]:
    """The lock tokens of a request, each once."""
    tokens = fields.items("lock-tokens", UUID, TOKENS_MAX)
    if len(set(tokens)) != len(tokens):
        raise InvalidArgument("A lock token is named twice.")
    return [token.bytes_le for token in tokens]


def numbers_of(fields: Fields) -> list[int]:
    """The sequence numbers of a request."""
    return [check_number(n) for n in fields.items("sequence-numbers", int, NUMBERS_MAX)]
