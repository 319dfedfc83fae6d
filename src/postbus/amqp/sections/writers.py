"""The sections of a message built, each as the bytes that stand in the payload."""

import struct
from typing import Any

from postbus.amqp.codec import encode_value
from postbus.amqp.codec.encoding import write_map
from postbus.amqp.codec.types import Symbol, Timestamp
from postbus.amqp.sections.fields import Properties

_FLAG: dict[bool | None, bytes] = {None: b"\x40", True: b"\x41", False: b"\x42"}


def encode_header(
    durable: bool | None = None,
    priority: int | None = None,
    ttl: int | None = None,
    first_acquirer: bool | None = None,
    delivery_count: int = 0,
) -> bytes:
    """Return a header section; the delivery count is always spelled out (wire §4.1)."""
    try:
        fields = (
            _FLAG[durable]
            + (b"\x40" if priority is None else bytes((0x50, priority)))
            + (b"\x40" if ttl is None else b"\x70" + ttl.to_bytes(4, "big"))
            + _FLAG[first_acquirer]
            + (b"\x43" if delivery_count == 0 else b"\x70" + delivery_count.to_bytes(4, "big"))
        )
    except OverflowError:
        raise ValueError("a header field is out of range") from None
    return b"\x00\x53\x70\xc0" + bytes((1 + len(fields), 5)) + fields


def encode_delivery_annotations(annotations: dict[Any, Any]) -> bytes:
    return _section(0x71, annotations)


def encode_message_annotations(annotations: dict[Any, Any]) -> bytes:
    return _section(0x72, annotations)


def encode_properties(properties: Properties) -> bytes:
    out = bytearray()
    properties.encode_into(out)
    return bytes(out)


def encode_application_properties(properties: dict[Any, Any]) -> bytes:
    return _section(0x74, properties)


def encode_data(data: bytes) -> bytes:
    return _section(0x75, data)


def encode_sequence(items: list[Any]) -> bytes:
    return _section(0x76, items)


def encode_amqp_value(value: object) -> bytes:
    return _section(0x77, value)


def encode_footer(footer: dict[Any, Any]) -> bytes:
    return _section(0x78, footer)


def _section(code: int, value: object) -> bytes:
    out = bytearray((0, 0x53, code))
    encode_value(value, out)
    return bytes(out)


class AnnotationLayout:
    """A message-annotations section with known keys and eight-byte values, written in one go.

    What a broker adds to each delivery is always the same few numbers and times; encoding them
    as a map costs ten times as much.
    """

    __slots__ = ("_arguments", "_entries", "_opening")

    def __init__(self, *entries: tuple[str, type[int]]) -> None:
        """Take each key with its type: Timestamp, or Long for a number."""
        keys: list[bytes] = []
        for name, kind in entries:
            key = bytearray()
            encode_value(Symbol(name), key)
            key.append(0x83 if kind is Timestamp else 0x81)
            keys.append(bytes(key))
        # The entries alone, to be joined by others; and the whole section with nothing else in it.
        self._entries = struct.Struct(">" + "".join(f"{len(key)}sq" for key in keys))
        self._arguments: list[Any] = [part for key in keys for part in (key, 0)]
        empty = self._section(bytes(self._entries.size), len(entries))
        self._opening = empty[: -self._entries.size]

    def encode(self, values: tuple[int, ...], others: dict[Any, Any] | None = None) -> bytes:
        """Return the section: a value for each key, then the entries of others."""
        arguments = self._arguments[:]
        arguments[1::2] = values
        try:
            entries = self._entries.pack(*arguments)
        except struct.error:
            raise ValueError("an annotation is out of range") from None
        if not others:
            return self._opening + entries
        out = bytearray(entries)
        for key, value in others.items():
            encode_value(key, out)
            encode_value(value, out)
        return self._section(out, len(values) + len(others))

    @staticmethod
    def _section(entries: bytes | bytearray, count: int) -> bytes:
        out = bytearray(b"\x00\x53\x72")
        write_map(2 * count, entries, out)
        return bytes(out)
