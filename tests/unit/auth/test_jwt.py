"""Tokens of an issuer: which are taken, what they allow, and the words for those that are not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.auth.authority import Authority, verify_waiting
from postbus.auth.jwks import SigningKeys
from postbus.auth.jwt import TOKEN_LENGTH_MAX, Grant, Issuer
from postbus.auth.refusals import (
    ExpiredToken,
    InvalidAudience,
    InvalidSignature,
    KeyUnknown,
    MalformedToken,
    NoKeysYet,
)
from postbus.errors import ServerBusy, Unauthorized
from postbus.model.authorization import ALL_RIGHTS, Right
from postbus.model.times import NEVER
from tests.support.jwt_tokens import (
    AUDIENCE,
    EC,
    ISSUER,
    RSA,
    STRANGER,
    claims,
    confused,
    key_set,
    sign,
    unsigned,
)

NOW_S = 1_700_000_000
T0 = NOW_S * 1_000


def issuer(*keys: Any, roles_claim: str = "roles") -> Issuer:
    found = SigningKeys("file", lambda: T0, lambda source: b"")
    if keys:
        found.take(key_set(*keys))
    return Issuer(ISSUER, AUDIENCE, roles_claim, found)


TRUSTED = issuer(RSA, EC)


@pytest.mark.parametrize(("key", "alg"), [(RSA, "RS256"), (RSA, "PS256"), (EC, "ES256")])
def test_a_good_token_allows_what_its_roles_say(key: Any, alg: str) -> None:
    grant = TRUSTED.verify(sign(claims(NOW_S), key, alg), T0)
    assert grant == Grant(Right.LISTEN, T0 + 3_600_000)


@pytest.mark.parametrize(
    ("roles", "rights"),
    [
        (["Azure Service Bus Data Owner"], ALL_RIGHTS),
        (["Azure Service Bus Data Sender"], Right.SEND),
        (["azure service bus data receiver", "Send"], Right.SEND | Right.LISTEN),
        (["Manage"], ALL_RIGHTS),
        (["something else", "Listen", 7, None], Right.LISTEN),
        ("send listen", Right.SEND | Right.LISTEN),
        ("Azure Service Bus Data Sender", Right.SEND),
    ],
)
def test_roles_and_rights(roles: Any, rights: Right) -> None:
    assert TRUSTED.verify(sign(claims(NOW_S, roles=roles)), T0).rights == rights


def test_the_claim_that_holds_the_roles_is_the_operators_choice() -> None:
    scoped = issuer(RSA, roles_claim="scp")
    said = claims(NOW_S, scp="openid send", roles=["Manage"])
    assert scoped.verify(sign(said), T0).rights == Right.SEND


@pytest.mark.parametrize("roles", [None, [], "", "admin", ["Reader"], {"Send": True}, 3])
def test_a_token_without_a_role_that_allows_anything_is_refused(roles: Any) -> None:
    with pytest.raises(Unauthorized, match="The claim 'roles' of the token names no role"):
        TRUSTED.verify(sign(claims(NOW_S, roles=roles)), T0)


@pytest.mark.parametrize("aud", [AUDIENCE, [AUDIENCE], ["other", AUDIENCE]])
def test_the_audience_may_be_one_of_several(aud: Any) -> None:
    TRUSTED.verify(sign(claims(NOW_S, aud=aud)), T0)


@pytest.mark.parametrize(
    ("changes", "refusal", "text"),
    [
        ({"aud": "https://elsewhere"}, InvalidAudience, f"not for the audience '{AUDIENCE}'"),
        ({"aud": []}, InvalidAudience, "InvalidAudience"),
        ({"aud": 3}, InvalidAudience, "InvalidAudience"),
        ({"aud": None}, MalformedToken, "The token has no 'aud'"),
        ({"iss": "https://login.example.net/other"}, Unauthorized, "InvalidIssuer"),
        ({"iss": ISSUER + "/"}, Unauthorized, "InvalidIssuer"),
        ({"iss": None}, MalformedToken, "The token has no 'iss'"),
        ({"exp": None}, MalformedToken, "The token has no 'exp'"),
        ({"exp": "tomorrow"}, MalformedToken, "The claim 'exp' of the token is wrong"),
        ({"exp": True}, MalformedToken, "The claim 'exp' of the token is wrong"),
        ({"exp": NOW_S}, ExpiredToken, "Expiration time: '2023-11-14T22:13:20Z'"),
        ({"exp": NOW_S - 86_400}, ExpiredToken, "Expiration time: '2023-11-13T22:13:20Z'"),
        ({"exp": -1e300}, ExpiredToken, "Expiration time: '1970-01-01T00:00:00Z'"),
        ({"nbf": NOW_S + 61}, Unauthorized, "not valid yet"),
        ({"iat": NOW_S + 3_600}, Unauthorized, "not valid yet"),
    ],
)
def test_a_token_that_says_the_wrong_thing_is_told_what(
    changes: dict[str, Any], refusal: type[Unauthorized], text: str
) -> None:
    with pytest.raises(refusal, match=text):
        TRUSTED.verify(sign(claims(NOW_S, **changes)), T0)


def test_a_clock_of_the_issuer_that_is_a_little_ahead_is_forgiven() -> None:
    TRUSTED.verify(sign(claims(NOW_S, nbf=NOW_S + 59, iat=NOW_S + 59)), T0)


def test_a_token_ends_to_the_millisecond() -> None:
    token = sign(claims(NOW_S, exp=NOW_S + 1.5))
    assert TRUSTED.verify(token, T0 + 1_499).expires_at == T0 + 1_500
    with pytest.raises(ExpiredToken):
        TRUSTED.verify(token, T0 + 1_500)
    assert TRUSTED.verify(sign(claims(NOW_S, exp=10**30)), T0).expires_at == NEVER


@pytest.mark.parametrize(
    "token",
    [
        unsigned(claims(NOW_S)),
        confused(claims(NOW_S)),
        sign(claims(NOW_S), RSA, "RS512"),
    ],
    ids=["none", "HMAC with the public key", "RS512"],
)
def test_only_the_three_algorithms_are_taken(token: str) -> None:
    with pytest.raises(Unauthorized, match="must be signed by one of RS256, PS256, ES256"):
        TRUSTED.verify(token, T0)


def test_a_signature_of_somebody_else_is_refused() -> None:
    with pytest.raises(InvalidSignature):
        TRUSTED.verify(sign(claims(NOW_S), STRANGER), T0)
    head, payload, signature = sign(claims(NOW_S)).split(".")
    _, other, _ = sign(claims(NOW_S, roles=["Manage"])).split(".")
    with pytest.raises(InvalidSignature):
        TRUSTED.verify(f"{head}.{other}.{signature}", T0)
    with pytest.raises((InvalidSignature, MalformedToken)):
        TRUSTED.verify(f"{head}.{payload}.", T0)
    # signed by the one key, said to be by the other
    with pytest.raises(Unauthorized):
        TRUSTED.verify(sign(claims(NOW_S), RSA, kid="ec-1"), T0)


def test_an_expired_token_with_a_wrong_signature_is_not_told_that_it_expired() -> None:
    with pytest.raises(InvalidSignature):
        TRUSTED.verify(sign(claims(NOW_S, exp=1), STRANGER), T0)


def test_a_key_that_the_issuer_does_not_show_is_told_from_a_wrong_signature() -> None:
    with pytest.raises(KeyUnknown) as refused:
        TRUSTED.verify(sign(claims(NOW_S), RSA, kid="rsa-2"), T0)
    assert (refused.value.sub_code, refused.value.http_status) == (40103, 401)
    with pytest.raises(KeyUnknown):
        TRUSTED.verify(sign(claims(NOW_S), RSA, kid=None), T0)


def test_a_token_need_not_name_the_only_key() -> None:
    issuer(RSA).verify(sign(claims(NOW_S), RSA, kid=None), T0)


def test_no_token_can_be_judged_before_the_keys_were_there_once() -> None:
    with pytest.raises(NoKeysYet) as busy:
        issuer().verify(sign(claims(NOW_S)), T0)
    assert isinstance(busy.value, ServerBusy) and busy.value.transient


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "a.b",
        "a.b.c",
        "\u00e9.b.c",
        "W10.e30.AA",  # a header that is a list
        "eyJhbGciOltdfQ.e30.AA",  # an algorithm that is one
        sign(claims(NOW_S)) + ".more",
        "x" * (TOKEN_LENGTH_MAX + 1),
    ],
)
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(MalformedToken):
        TRUSTED.verify(text, T0)


def test_a_header_nested_beyond_reason_is_refused() -> None:
    from joserfc.util import urlsafe_b64encode

    deep = urlsafe_b64encode(b'{"alg":"RS256","x":' + b"[" * 9_000).decode()
    with pytest.raises(MalformedToken):
        TRUSTED.verify(f"{deep}.e30.AA", T0)


@given(st.text() | st.text("eyJhbGciOiRS256.-_"))
def test_any_other_text_is_unauthorized(text: str) -> None:
    with pytest.raises(Unauthorized):
        TRUSTED.verify(text, T0)


def test_a_header_may_carry_what_issuers_put_there() -> None:
    TRUSTED.verify(sign(claims(NOW_S), x5t="thumb", nonce="n", typ="at+jwt"), T0)


# -- beside shared access signatures ---------------------------------------------------------


def test_a_token_is_known_by_its_text_and_good_for_the_whole_namespace() -> None:
    authority = Authority([], TRUSTED)
    token = sign(claims(NOW_S))
    for given_as in (token, f"Bearer {token}", f"bearer  {token}"):
        found = authority.verify(given_as, "orders", T0)
        assert (found.resource, found.rights) == ("", Right.LISTEN)
        assert found.expires_at == T0 + 3_600_000
        assert authority.review(found) == found


async def test_a_request_waits_once_for_keys_that_were_not_there() -> None:
    documents = [key_set(RSA), key_set(RSA, EC)]
    keys = SigningKeys("https://keys", lambda: T0, lambda source: documents.pop(0))
    keys.take(documents.pop(0))
    authority = Authority([], Issuer(ISSUER, AUDIENCE, "roles", keys))
    rotated = sign(claims(NOW_S), EC, "ES256")
    found = await verify_waiting(authority, rotated, "orders", lambda: T0)
    assert found.rights == Right.LISTEN
    # an invented name does not make it ask again at once
    with pytest.raises(KeyUnknown):
        await verify_waiting(
            authority, sign(claims(NOW_S), kid="invented"), "orders", lambda: T0 + 1_000
        )
