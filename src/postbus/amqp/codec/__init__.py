"""The AMQP type system both ways: see encoding.py, decoding.py and skipping.py."""

from postbus.amqp.codec.decoding import NESTING_MAX, decode
from postbus.amqp.codec.encoding import ZERO_WIDTH_ITEMS_MAX, encode, encode_value
from postbus.amqp.codec.skipping import has_more_values, skip

__all__ = [
    "NESTING_MAX",
    "ZERO_WIDTH_ITEMS_MAX",
    "decode",
    "encode",
    "encode_value",
    "has_more_values",
    "skip",
]
