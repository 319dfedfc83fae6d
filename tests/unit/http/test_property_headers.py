"""Application properties as headers (semantics A §7)."""

from __future__ import annotations

import pytest

from postbus.errors import InvalidArgument
from postbus.http.property_headers import (
    NOT_PROPERTIES,
    read_headers,
    read_value,
    write_headers,
    write_value,
)
from postbus.model.plain_message import Moment, PropertyValue

DATE = Moment(1_435_697_582_000)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # as Azure's own tests have it
        ('"world"', "world"),
        ('"say \\"hi\\""', 'say "hi"'),
        ("42", 42),
        ("8555111000", 8_555_111_000),
        ("3.14", 3.14),
        ("true", True),
        ("false", False),
        ('"Tue, 30 Jun 2015 20:53:02 GMT"', DATE),
        # and what is written the same way
        ("null", None),
        ("-7", -7),
        ('""', ""),
        ('"\\u00e9\\n\\\\"', "é\n\\"),
        ('"42"', "42"),
        ('"true"', "true"),
    ],
)
def test_a_value_is_what_it_is_written_as(text: str, value: PropertyValue) -> None:
    assert read_value(text) == value
    assert type(read_value(text)) is type(value)
    assert write_value(value) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("world", "world"),
        ("00-4bf92f3577b34da6-01", "00-4bf92f3577b34da6-01"),
        ("007", "007"),
        ("+1", "+1"),
        ("True", "True"),
        ("NaN", "NaN"),
        ("", ""),
        ("'x'", "'x'"),
        ('"open', '"open'),
        ('"a" and "b"', '"a" and "b"'),
        ('"\\ud800"', '"\\ud800"'),
        ('"C:\\dir"', '"C:\\dir"'),
        ("9223372036854775808", "9223372036854775808"),
        ("1e999", "1e999"),
        ("Tue, 31 Jun 2015 20:53:02 GMT", "Tue, 31 Jun 2015 20:53:02 GMT"),
        ("{}", "{}"),
        ("1 2", "1 2"),
    ],
)
def test_any_other_text_is_a_string_as_it_stands(text: str, value: str) -> None:
    assert read_value(text) == value


def test_a_date_is_one_without_its_quotes_too() -> None:
    assert read_value("Tue, 30 Jun 2015 20:53:02 GMT") == DATE
    assert type(read_value("Tue, 30 Jun 2015 20:53:02 GMT")) is Moment


@pytest.mark.parametrize(
    ("text", "value"),
    [(" 42\t", 42), ("1e3", 1_000.0), ("-0.5E-2", -0.005), ("9223372036854775807", 2**63 - 1)],
)
def test_numbers_come_in_more_than_one_form(text: str, value: float) -> None:
    assert read_value(text) == value
    assert type(read_value(text)) is type(value)


@pytest.mark.parametrize(("value", "text"), [(float("inf"), '"inf"'), (float("nan"), '"nan"')])
def test_a_number_that_json_does_not_have_is_quoted(value: float, text: str) -> None:
    assert write_value(value) == text


def test_headers_that_mean_something_to_http_are_no_properties() -> None:
    headers = [(name.title().encode(), b"x") for name in sorted(NOT_PROPERTIES)]
    assert read_headers(headers) == {}
    named = {b"Content-Type", b"Authorization", b"Host", b"X-Ms-Retrypolicy", b"User-Agent"}
    assert named <= {name for name, _ in headers}


def test_the_name_of_a_property_has_its_case() -> None:
    headers = [(b"OrderId", b"1"), (b"x-ms-client-tracking-id", b"abc"), (b"traceparent", b"00-1")]
    assert read_headers(headers) == {
        "OrderId": 1,
        "x-ms-client-tracking-id": "abc",
        "traceparent": "00-1",
    }


def test_a_value_may_be_utf_8_or_latin_1() -> None:
    assert read_headers([(b"a", '"é"'.encode()), (b"b", '"é"'.encode("latin-1"))]) == {
        "a": "é",
        "b": "é",
    }


def test_a_property_twice_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="'colour' is there twice"):
        read_headers([(b"Colour", b"1"), (b"colour", b"2")])


def test_a_property_that_cannot_be_a_header_travels_with_its_like() -> None:
    headers = write_headers(
        {
            "Plain": 1,
            "an odd name": "x",
            "ünicode": DATE,
            "": True,
            "evil\r\nname": 2,
            "Transfer-Encoding": "chunked",
            "set-cookie": "a=b",
            "Age": 5,
            "plain": 3,
        }
    )
    names = [name for name, _ in headers]
    assert names == [b"Plain", b"UserProperties"]
    assert headers[1][1] == (
        b'{"an odd name":"x","\\u00fcnicode":"Tue, 30 Jun 2015 20:53:02 GMT","":true,'
        b'"evil\\r\\nname":2,"Transfer-Encoding":"chunked","set-cookie":"a=b","Age":5,"plain":3}'
    )


def test_a_name_is_written_as_it_is() -> None:
    [(name, _)] = write_headers({"OrderId": 1})
    assert name.lower() == b"OrderId", "uvicorn would write it in small letters"
