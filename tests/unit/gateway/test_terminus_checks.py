"""What a client asks of a source that is not there is refused by name, whatever it is."""

from typing import Any

import pytest

from postbus.amqp.codec import decode, encode
from postbus.amqp.codec.types import AmqpArray, Described, Symbol, ULong
from postbus.amqp.frames.terminus import Source
from postbus.errors import NotSupported
from postbus.gateway.terminus_checks import check_terminus


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("jms-selector", Described(ULong(0x468C_0000_0004), "a = 1"), "Selectors"),
        ("mine", Described(Symbol("apache.org:selector-filter:string"), "a = 1"), "Selectors"),
        ("mine", Described(ULong(0x468C_0000_0003), []), "their own messages"),
        ("no-local", True, "their own messages"),
        ("mine", Described(Symbol("other"), "a = 1"), "'mine'"),
        ("mine", Described([1, 2], "a = 1"), "'mine'"),
        ("mine", Described({"a": 1}, "a = 1"), "'mine'"),
        ("mine", Described(Described([1], "x"), "a = 1"), "'mine'"),
        ("mine", Described(AmqpArray(0x54, [1]), "a = 1"), "'mine'"),
        ("mine", None, "'mine'"),
    ],
)
def test_a_filter_is_refused_by_name_whatever_describes_it(key: str, value: Any, text: str) -> None:
    asked = encode({Symbol(key): value})
    given: Any = decode(asked)[0]
    with pytest.raises(NotSupported, match=text):
        check_terminus(Source("orders", filter=given))
