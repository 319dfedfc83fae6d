"""Strategies for performatives and message sections, drawn from their own field tables."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from postbus.amqp.codec import encode
from postbus.amqp.codec.types import Symbol, Timestamp, UByte, UInt, ULong, UShort
from postbus.amqp.frames.composites import Composite, Field
from postbus.amqp.frames.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Coordinator,
    Declared,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Open,
    Received,
    Rejected,
    Released,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Source,
    Target,
    TransactionalState,
    Transfer,
)
from tests.property.amqp.values import compound, maps, spellings, symbols, texts, uints, values

PERFORMATIVES: list[type[Composite]] = [
    Open,
    Begin,
    Attach,
    Flow,
    Transfer,
    Disposition,
    Detach,
    End,
    Close,
    SaslMechanisms,
    SaslInit,
    SaslChallenge,
    SaslResponse,
    SaslOutcome,
]


def instances(cls: type[Composite]) -> SearchStrategy[Any]:
    """Instances of a composite class, its fields filled as its table allows."""
    return st.deferred(lambda: st.builds(cls, *map(_field_values, cls.FIELDS)))


def _field_values(field: Field) -> SearchStrategy[Any]:
    filled = _KINDS[field.kind.name]
    if field.required or field.default is not None:
        return filled
    return st.none() | filled


_outcomes = st.one_of(*(instances(each) for each in (Accepted, Rejected, Released, Modified)))

_KINDS: dict[str, SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "ubyte": st.integers(0, 0xFF),
    "ushort": st.integers(0, 0xFFFF),
    "uint": uints,
    "ulong": st.integers(0, (1 << 64) - 1),
    "timestamp": st.integers(-(1 << 63), (1 << 63) - 1),
    "string": texts,
    "binary": st.binary(max_size=300),
    "symbol": symbols,
    "symbols": st.lists(symbols, max_size=3),
    "map": maps,
    "*": values,
    "message-id": texts | st.uuids() | st.binary(max_size=40) | uints.map(ULong),
    "error": instances(Error),
    "source": instances(Source),
    "target": instances(Target) | instances(Coordinator),
    "outcome": _outcomes,
    "delivery-state": st.one_of(
        _outcomes, *(instances(each) for each in (Received, Declared, TransactionalState))
    ),
}

_TYPED = {
    "ubyte": UByte,
    "ushort": UShort,
    "uint": UInt,
    "ulong": ULong,
    "timestamp": Timestamp,
    "symbol": Symbol,
}


@st.composite
def spelled(draw: st.DrawFn, composite: Composite, short_descriptor: bool = False) -> bytes:
    """Any encoding of a composite: descriptor, list form, nulls and trimming are drawn."""
    items = [draw(_spelled_field(composite, field)) for field in composite.FIELDS]
    if draw(st.booleans()):
        while items and items[-1] == b"\x40":
            items.pop()
    descriptor = b"\x53" + bytes((composite.CODE,))
    if not short_descriptor:
        whole = encode(Symbol(composite.NAME))
        descriptor = draw(
            st.sampled_from((descriptor, b"\x80" + composite.CODE.to_bytes(8, "big"), whole))
        )
    wide = draw(st.booleans())
    body = b"\x45" if not items and wide else compound(0xC0, items, wide)
    return b"\x00" + descriptor + body


@st.composite
def _spelled_field(draw: st.DrawFn, composite: Composite, field: Field) -> bytes:
    value = getattr(composite, field.name)
    if value is None or (value == field.default and not field.required and draw(st.booleans())):
        return b"\x40"
    if isinstance(value, Composite):
        return draw(spelled(value))
    kind = field.kind.name
    if kind == "symbols":
        if len(value) == 1 and draw(st.booleans()):
            return draw(spellings(value[0]))
        out = bytearray()
        field.kind.write(value, out)
        return bytes(out)
    return draw(spellings(_TYPED[kind](value) if kind in _TYPED else value))
