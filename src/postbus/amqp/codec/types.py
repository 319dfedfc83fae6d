"""The AMQP types Python has no exact counterpart for.

Plain Python values stand for the types they match: None null, bool boolean, int long, float
double, str string, bytes binary, uuid.UUID uuid, list list, dict map. The classes here stand for
the rest, so that a value that was decoded is encoded again as the type it came as.
"""

from abc import ABC, abstractmethod


class Symbol(str):
    """An ASCII name from a constrained domain (AMQP 1.6.21)."""

    __slots__ = ()


class UByte(int):
    __slots__ = ()


class UShort(int):
    __slots__ = ()


class UInt(int):
    __slots__ = ()


class ULong(int):
    __slots__ = ()


class Byte(int):
    __slots__ = ()


class Short(int):
    __slots__ = ()


class Int(int):
    __slots__ = ()


class Long(int):
    """A long by name; decode() gives a plain int, which is encoded the same way."""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since the Unix epoch."""

    __slots__ = ()


class Float32(float):
    __slots__ = ()


class Char(str):
    """One Unicode character."""

    __slots__ = ()


class Decimal32(bytes):
    """The four bytes of an IEEE 754 decimal32; kept as they are, never calculated with."""

    __slots__ = ()


class Decimal64(bytes):
    __slots__ = ()


class Decimal128(bytes):
    __slots__ = ()


class Encodable(ABC):
    """A value that knows its own byte form, such as a performative."""

    __slots__ = ()

    @abstractmethod
    def encode_into(self, out: bytearray) -> None:
        """Append it."""


class Described:
    """A value annotated with a descriptor (AMQP 1.2.2)."""

    __slots__ = ("descriptor", "value")

    def __init__(self, descriptor: object, value: object) -> None:
        self.descriptor = descriptor
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Described):
            return NotImplemented
        return self.descriptor == other.descriptor and self.value == other.value

    def __hash__(self) -> int:
        return hash((self.descriptor, self.value))

    def __repr__(self) -> str:
        return f"Described({self.descriptor!r}, {self.value!r})"


class AmqpArray:
    """Items that share one constructor (AMQP 1.6.24).

    `code` is that constructor's format code and `descriptors` whatever descriptors stand before
    it, so the array is written again as it was read. Items are held bare, without descriptor.
    """

    __slots__ = ("code", "descriptors", "items")

    def __init__(
        self, code: int, items: list[object], descriptors: tuple[object, ...] = ()
    ) -> None:
        self.code = code
        self.items = items
        self.descriptors = descriptors

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AmqpArray):
            return NotImplemented
        return (
            self.code == other.code
            and self.descriptors == other.descriptors
            and self.items == other.items
        )

    __hash__ = None  # type: ignore[assignment]  # holds a list, as a list does

    def __repr__(self) -> str:
        described = f", descriptors={self.descriptors!r}" if self.descriptors else ""
        return f"AmqpArray({self.code:#04x}, {self.items!r}{described})"
