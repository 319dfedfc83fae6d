"""R-PIPE-01: a connection string is all that a Spark task needs."""

from __future__ import annotations

import pytest

from postbus.auth.sas import parse_sas
from postbus.client.connection_string import BadConnectionString, parse

KEY = "SharedAccessKeyName=Root;SharedAccessKey=s3cret="


def test_the_string_that_serve_prints_means_plain_text() -> None:
    found = parse(f"Endpoint=sb://localhost:6000;{KEY};UseDevelopmentEmulator=true")
    assert (found.host, found.port, found.tls) == ("localhost", 6000, False)
    assert (found.key_name, found.key, found.scheme) == ("Root", "s3cret=", "http")
    assert found.tls_context() is None


def test_without_the_emulators_switch_it_means_tls() -> None:
    found = parse(f"Endpoint=sb://bus.example/;{KEY};EntityPath=orders")
    assert (found.host, found.port, found.tls) == ("bus.example", 5671, True)
    assert (found.entity_path, found.netloc) == ("orders", "bus.example:5671")
    assert found.tls_context() is not None


def test_a_key_is_never_shown() -> None:
    assert "s3cret" not in repr(parse(f"Endpoint=sb://localhost;{KEY}"))


def test_a_token_is_for_the_entity_and_signed_by_the_key() -> None:
    namespace = parse(f"Endpoint=sb://localhost:6000;{KEY};UseDevelopmentEmulator=true")
    token = parse_sas(namespace.token("parts/a b", 1_000.5))
    assert token.resource == "http://localhost:6000/parts/a%20b"
    assert token.is_signed_by("s3cret=")
    assert token.expires_at == (1_000 + 3_600) * 1_000
    assert next(token.key_names()) == "Root"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no 'Endpoint'"),
        (f"Endpoint=sb://localhost;{KEY};Colour=red", "unknown part 'Colour'"),
        ("Endpoint=sb://localhost;SharedAccessKeyName=a", "no 'SharedAccessKey'"),
        (f"Endpoint=http://localhost;{KEY}", "not of the form"),
        (f"Endpoint=sb://localhost:x;{KEY}", "no valid port"),
        (f"Endpoint=sb://a;{KEY};Endpoint=sb://b", "'Endpoint' twice"),
        (f"Endpoint=sb://a;{KEY};UseDevelopmentEmulator=yes", "neither true nor false"),
        ("s3cret", "unknown part"),
    ],
)
def test_what_is_no_connection_string_is_refused(text: str, said: str) -> None:
    with pytest.raises(BadConnectionString, match=said):
        parse(text)
