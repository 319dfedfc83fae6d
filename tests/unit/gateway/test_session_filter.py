"""How receivers ask for a session, and how they are answered (wire §3.3)."""

from __future__ import annotations

from typing import Any

import pytest

from postbus.amqp.codec.types import Described, Symbol, ULong
from postbus.amqp.frames.terminus import Source
from postbus.errors import InvalidArgument
from postbus.gateway.session_link import read_session_filter

KEY = Symbol("com.microsoft:session-filter")
CODE = ULong(0x137000000C)


@pytest.mark.parametrize("wanted", ["mine", "", None])
def test_a_bare_value_is_answered_bare(wanted: str | None) -> None:
    found = read_session_filter(Source("q", filter={KEY: wanted}))
    assert found is not None
    assert found.session_id == wanted
    assert found.naming("given") == {KEY: "given"}


@pytest.mark.parametrize("descriptor", [CODE, KEY])
@pytest.mark.parametrize("wanted", ["mine", "", None])
def test_a_described_value_is_answered_with_its_descriptor(
    descriptor: Any, wanted: str | None
) -> None:
    found = read_session_filter(Source("q", filter={KEY: Described(descriptor, wanted)}))
    assert found is not None
    assert found.session_id == wanted
    assert found.naming("given") == {KEY: Described(descriptor, "given")}


def test_the_descriptor_is_enough() -> None:
    asked = {Symbol("any"): Described(CODE, "mine")}
    found = read_session_filter(Source("q", filter=asked))
    assert found is not None
    assert found.naming("mine") == asked


@pytest.mark.parametrize("asked", [None, {}, {Symbol("other"): "mine"}])
def test_other_filters_ask_for_no_session(asked: dict[Any, Any] | None) -> None:
    assert read_session_filter(Source("q", filter=asked)) is None


@pytest.mark.parametrize("value", [7, b"mine", Described(CODE, 7)])
def test_what_is_no_session_id_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument):
        read_session_filter(Source("q", filter={KEY: value}))
