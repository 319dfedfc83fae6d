"""What the SASL mechanism PLAIN carries."""

from __future__ import annotations

import pytest

from postbus.amqp.faults import DecodeError
from postbus.amqp.sasl_plain import PlainCredentials, encode_plain, parse_plain


def test_plain_carries_a_key_name_and_a_key() -> None:
    response = encode_plain("RootManageSharedAccessKey", "kéy=")
    assert response == b"\x00RootManageSharedAccessKey\x00k\xc3\xa9y="
    assert parse_plain(response) == PlainCredentials("", "RootManageSharedAccessKey", "kéy=")
    assert parse_plain(b"as\x00user\x00pass") == PlainCredentials("as", "user", "pass")


@pytest.mark.parametrize(
    "response",
    [
        None,
        b"",
        b"user",
        b"user\x00pass",
        b"\x00a\x00b\x00c",
        b"\x00\x00p",
        b"\x00u\x00",
        b"\x00\xff\x00p",
    ],
)
def test_a_plain_response_that_is_none_is_refused(response: bytes | None) -> None:
    with pytest.raises(DecodeError):
        parse_plain(response)


def test_a_zero_byte_cannot_be_part_of_a_key() -> None:
    with pytest.raises(ValueError, match="zero byte"):
        encode_plain("user", "pass\x00word")


def test_a_password_does_not_show_in_a_log() -> None:
    credentials = parse_plain(b"\x00user\x00secret")
    assert "secret" not in repr(credentials)
    assert "user" in repr(credentials)
