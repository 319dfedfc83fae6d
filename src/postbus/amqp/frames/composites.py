"""Composite types: described lists whose fields are given by a table (AMQP 1.4).

Each class declares its fields once, in wire order. The one encoder and the one decoder here work
from that table; property tests hold the hand-written ones of readers.py and writers.py
against them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from postbus.amqp.codec import decode, encode_value
from postbus.amqp.codec.encoding import write_list, write_uint, write_ulong
from postbus.amqp.codec.types import (
    AmqpArray,
    Described,
    Encodable,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from postbus.amqp.faults import DecodeError


@dataclass(frozen=True, slots=True)
class FieldKind:
    """How a field's value is checked when read and written when sent."""

    name: str
    read: Callable[[Any], Any]
    write: Callable[[Any, bytearray], None]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a composite: its attribute name, its kind, and what null stands for."""

    name: str
    kind: FieldKind
    required: bool = False
    default: object = None


class Composite(Encodable):
    """A described list. Subclasses are slotted dataclasses with one attribute per field."""

    __slots__ = ()

    CODE: ClassVar[int]
    NAME: ClassVar[str]
    FIELDS: ClassVar[tuple[Field, ...]]
    # How many fields are written even when they are null; the rest is trimmed from the end.
    FIELDS_MIN: ClassVar[int] = 0

    def encode_into(self, out: bytearray) -> None:
        """Append `00 53 code` and the field list (wire §0.1)."""
        fields = self.FIELDS
        count = len(fields)
        while count > self.FIELDS_MIN and getattr(self, fields[count - 1].name) is None:
            count -= 1
        items = bytearray()
        for field in fields[:count]:
            value = getattr(self, field.name)
            if value is None:
                items.append(0x40)
            else:
                field.kind.write(value, items)
        out += b"\x00\x53"
        out.append(self.CODE)
        write_list(count, items, out)


_BY_CODE: dict[int, type[Composite]] = {}
_BY_NAME: dict[str, type[Composite]] = {}

C = TypeVar("C", bound=Composite)


def registered(cls: type[C]) -> type[C]:
    """Make a composite class known to from_described() by descriptor code and symbol."""
    _BY_CODE[cls.CODE] = cls
    _BY_NAME[cls.NAME] = cls
    return cls


def class_of(descriptor: object) -> type[Composite] | None:
    """Return the class a descriptor names, whether it came as ulong or as symbol."""
    if type(descriptor) is ULong:
        return _BY_CODE.get(descriptor)
    if type(descriptor) is Symbol:
        return _BY_NAME.get(descriptor)
    return None


def from_described(value: object) -> Composite:
    """Build the composite a decoded described list stands for, or raise DecodeError."""
    if not isinstance(value, Described):
        raise DecodeError(f"a described list must stand here, not {_name_of(value)}")
    cls = class_of(value.descriptor)
    if cls is None:
        raise DecodeError(f"no composite type has the descriptor {value.descriptor!r:.80}")
    return build(cls, value.value)


def build(cls: type[Composite], values: object) -> Composite:
    """Build a composite from its decoded field list, checking each field against the table."""
    if not isinstance(values, list):
        raise DecodeError(f"{cls.NAME} must be a list, not {_name_of(values)}")
    fields = cls.FIELDS
    if len(values) > len(fields):
        raise DecodeError(f"{len(values)} fields in {cls.NAME}, at most {len(fields)} allowed")
    args: list[object] = []
    for index, field in enumerate(fields):
        value = values[index] if index < len(values) else None
        if value is not None:
            try:
                value = field.kind.read(value)
            except DecodeError as error:
                raise DecodeError(f"{cls.NAME} {_wire_name(field)}: {error.text}") from None
        elif field.required:
            raise DecodeError(f"{cls.NAME} lacks its mandatory field {_wire_name(field)}")
        else:
            value = field.default
        args.append(value)
    return cls(*args)


def decode_composite(data: bytes, offset: int = 0) -> tuple[Composite, int]:
    """Decode the composite that starts at offset; also return where it ends."""
    value, end = decode(data, offset)
    return from_described(value), end


def _wire_name(field: Field) -> str:
    return field.name.replace("_", "-")


def _name_of(value: object) -> str:
    return "null" if value is None else type(value).__name__.lower()


def _exactly(name: str, cls: type, convert: Callable[[Any], Any] | None = None) -> Any:
    def read(value: object) -> object:
        if type(value) is not cls:
            raise DecodeError(f"{name} must stand here, not {_name_of(value)}")
        return value if convert is None else convert(value)

    return read


def _write_bool(value: bool, out: bytearray) -> None:
    out.append(0x41 if value else 0x42)


def _write_ubyte(value: int, out: bytearray) -> None:
    encode_value(UByte(value), out)


def _write_ushort(value: int, out: bytearray) -> None:
    encode_value(UShort(value), out)


def _write_symbol(value: str, out: bytearray) -> None:
    encode_value(Symbol(value), out)


def _write_timestamp(value: int, out: bytearray) -> None:
    encode_value(Timestamp(value), out)


def _read_symbols(value: object) -> list[Symbol]:
    # A field that may hold several values holds one bare value or an array (AMQP 1.4).
    if type(value) is Symbol:
        return [value]
    if isinstance(value, AmqpArray) and all(type(item) is Symbol for item in value.items):
        return list(value.items)  # type: ignore[arg-type]
    raise DecodeError(f"symbols must stand here, not {_name_of(value)}")


def _write_symbols(value: list[str], out: bytearray) -> None:
    wide = any(len(item) > 0xFF for item in value)
    encode_value(AmqpArray(0xB3 if wide else 0xA3, [Symbol(item) for item in value]), out)


def _read_anything(value: object) -> object:
    return value


def composite_kind(name: str, *codes: int) -> FieldKind:
    """A field that holds one of the composites with these descriptor codes."""
    allowed = frozenset(codes)

    def read(value: object) -> Composite:
        composite = from_described(value)
        if composite.CODE not in allowed:
            raise DecodeError(f"{name} must stand here, not {composite.NAME}")
        return composite

    return FieldKind(name, read, _write_composite)


def _write_composite(value: Composite, out: bytearray) -> None:
    value.encode_into(out)


BOOLEAN = FieldKind("boolean", _exactly("boolean", bool), _write_bool)
UBYTE = FieldKind("ubyte", _exactly("ubyte", UByte, int), _write_ubyte)
USHORT = FieldKind("ushort", _exactly("ushort", UShort, int), _write_ushort)
UINT = FieldKind("uint", _exactly("uint", UInt, int), write_uint)
ULONG = FieldKind("ulong", _exactly("ulong", ULong, int), write_ulong)
TIMESTAMP = FieldKind("timestamp", _exactly("timestamp", Timestamp, int), _write_timestamp)
STRING = FieldKind("string", _exactly("string", str), encode_value)
BINARY = FieldKind("binary", _exactly("binary", bytes), encode_value)
SYMBOL = FieldKind("symbol", _exactly("symbol", Symbol), _write_symbol)
SYMBOLS = FieldKind("symbols", _read_symbols, _write_symbols)
MAP = FieldKind("map", _exactly("map", dict), encode_value)
ANYTHING = FieldKind("*", _read_anything, encode_value)
