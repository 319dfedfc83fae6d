"""Shared access signatures, as each SDK spells them (wire §2.3)."""

from __future__ import annotations

import base64
import hashlib
import hmac
from urllib.parse import quote, quote_plus, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.auth.refusals import InvalidSignature, MalformedToken
from postbus.auth.sas import TOKEN_LENGTH_MAX, create_sas, is_sas, parse_sas
from postbus.errors import Unauthorized
from postbus.model.times import NEVER

URI = "sb://Localhost:5672/Orders 1/$management"
EXPIRY = "1700003600"
KEY = "SAS_KEY_VALUE"


def signature(resource: str, expiry: str = EXPIRY, key: str = KEY) -> str:
    digest = hmac.new(key.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256).digest()
    return base64.b64encode(digest).decode()


def python_token(uri: str) -> str:
    resource = quote_plus(uri)
    # the key's name is encoded twice
    rest = {"sig": signature(resource), "se": EXPIRY, "skn": quote_plus("root key")}
    return f"SharedAccessSignature sr={resource}&{urlencode(rest)}"


def javascript_token(uri: str) -> str:
    resource = quote(uri, safe="!'()*~")
    sig = quote(signature(resource), safe="!'()*~")
    return f"SharedAccessSignature sr={resource}&sig={sig}&se={EXPIRY}&skn=root%20key"


def javascript_http_token(uri: str) -> str:
    # the whole url in lower case, the key's name as it is, another order of the parts
    resource = quote(uri.lower(), safe="!'()*~").lower()
    sig = quote(signature(resource), safe="!'()*~")
    return f"SharedAccessSignature sig={sig}&se={EXPIRY}&skn=root key&sr={resource}"


def lower_hex_token(uri: str) -> str:
    # signed with lower-case hex, sent with upper-case
    lower = quote_plus(uri).replace("%3A", "%3a").replace("%2F", "%2f")
    rest = {"sig": signature(lower), "se": EXPIRY, "skn": "root key"}
    return f"SharedAccessSignature sr={quote_plus(uri)}&{urlencode(rest)}"


def unencoded_token(uri: str) -> str:
    rest = {"sig": signature(quote_plus(uri)), "se": EXPIRY, "skn": "root key"}
    return f"SharedAccessSignature sr={uri}&{urlencode(rest)}"


@pytest.mark.parametrize(
    "make",
    [python_token, javascript_token, javascript_http_token, lower_hex_token, unencoded_token],
)
def test_the_token_of_each_sdk_is_verified(make: object) -> None:
    assert callable(make)
    sas = parse_sas(make(URI))
    assert sas.is_signed_by(KEY)
    assert not sas.is_signed_by(KEY + "x")
    assert sas.resource.lower() == URI.lower()
    assert "root key" in sas.key_names()
    assert sas.expires_at == 1_700_003_600_000


def test_a_token_we_make_is_one_we_take() -> None:
    sas = parse_sas(create_sas("root key", KEY, URI, 1_700_003_600_999))
    assert sas.is_signed_by(KEY)
    assert sas.resource == URI
    assert next(iter(sas.key_names())) == "root key"
    assert sas.expires_at == 1_700_003_600_000


def test_the_sdk_makes_the_same_token_as_we_do() -> None:
    from azure.servicebus._base_handler import _generate_sas_token

    theirs = _generate_sas_token(URI, "root", KEY).token
    ours = create_sas("root", KEY, URI, parse_sas(theirs).expires_at)
    assert parse_sas(ours) == parse_sas(theirs)


def test_changing_any_part_breaks_the_signature() -> None:
    good = python_token(URI)
    for bad in (
        good.replace("Orders", "Others"),
        good.replace(EXPIRY, "1800000000"),
        good.replace("sig=", "sig=A"),
    ):
        assert not parse_sas(bad).is_signed_by(KEY)


@pytest.mark.parametrize(
    ("token", "text"),
    [
        ("SharedAccessSignature ", "no 'sr'"),
        (f"SharedAccessSignature sig=x&se={EXPIRY}&skn=k", "no 'sr'"),
        (f"SharedAccessSignature sr=x&se={EXPIRY}&skn=k", "no 'sig'"),
        ("SharedAccessSignature sr=x&sig=x&skn=k", "no 'se'"),
        (f"SharedAccessSignature sr=x&sig=x&se={EXPIRY}", "no 'skn'"),
        (f"SharedAccessSignature sr=&sig=x&se={EXPIRY}&skn=k", "no 'sr'"),
        (f"SharedAccessSignature sr=x&sr=y&sig=x&se={EXPIRY}&skn=k", "'sr' twice"),
        ("SharedAccessSignature sr=x&sig=x&se=soon&skn=k", "'se'"),
        ("SharedAccessSignature sr=x&sig=x&se=-1&skn=k", "'se'"),
        ("SharedAccessSignature sr=x&sig=x&se=" + "9" * 5_000 + "&skn=k", "'se'"),
        ("SharedAccessSignature sr=x&sig=x&se=\u0661\u0662&skn=k", "'se'"),
        ("SharedAccessSignature sr=\ud800&sig=x&se=1&skn=k", "characters that no token has"),
        ("Bearer x", "does not start"),
        ("SharedAccessSignature " + "x" * TOKEN_LENGTH_MAX, "characters"),
    ],
)
def test_what_is_no_token_is_refused_with_the_reason(token: str, text: str) -> None:
    with pytest.raises(MalformedToken, match=text):
        parse_sas(token)


def test_an_expiry_beyond_the_calendar_is_never() -> None:
    token = f"SharedAccessSignature sr=x&sig=x&se={'9' * 15}&skn=k"
    assert parse_sas(token).expires_at == NEVER


def test_the_scheme_is_recognised_in_any_case() -> None:
    assert is_sas("sharedaccesssignature sr=x")
    assert not is_sas("SharedAccessSignature")
    assert not is_sas("eyJhbGciOi.eyJhdWQi.sig")


def test_each_refusal_has_azures_number() -> None:
    assert (MalformedToken.sub_code, InvalidSignature.sub_code) == (40105, 40103)


@given(st.text() | st.text("sr=&sigekn%+1").map("SharedAccessSignature ".__add__))
def test_any_text_is_a_token_or_refused_as_one(text: str) -> None:
    try:
        sas = parse_sas(text)
    except Unauthorized:
        return
    assert not sas.is_signed_by(KEY)
    list(sas.key_names())
