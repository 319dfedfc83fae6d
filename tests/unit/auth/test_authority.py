"""Who may do what: claims, what they cover, and the words of a refusal (wire §2.2, §2.3, §2.4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.auth.authority import (
    PROVEN_MAX,
    Authority,
    Claims,
    Reach,
    missing_claim,
    resource_path,
)
from postbus.auth.keyring import AccessKey
from postbus.auth.refusals import ExpiredToken, InvalidSignature
from postbus.auth.sas import create_sas
from postbus.errors import Unauthorized
from postbus.model.authorization import ALL_RIGHTS, Right
from postbus.model.times import NEVER

T0 = 1_700_000_000_000
HOUR = 3_600_000
ROOT = AccessKey("root key", ("primary", "secondary"))
LISTENER = AccessKey("listener", ("listen",), Right.LISTEN)
AUTHORITY = Authority([ROOT, LISTENER])
for _name in ("orders", "a", "a/b"):
    AUTHORITY.learn(_name, [])


def token(uri: str, name: str = "root key", key: str = "primary", until: int = T0 + HOUR) -> str:
    return create_sas(name, key, uri, until)


def test_a_good_token_gives_the_claims_of_its_key() -> None:
    claims = AUTHORITY.verify(token("sb://localhost:5672/Orders"), "orders", T0)
    assert (claims.resource, claims.reach) == ("orders", Reach.ENTITY)
    assert (claims.rights, claims.expires_at) == (ALL_RIGHTS, T0 + HOUR)
    listening = AUTHORITY.verify(token("sb://localhost", "listener", "listen"), "orders", T0)
    assert (listening.resource, listening.rights) == ("", Right.LISTEN)


def test_the_secondary_key_is_as_good_as_the_first() -> None:
    assert AUTHORITY.verify(token("sb://h", key="secondary"), "", T0).rights == ALL_RIGHTS
    [claims] = AUTHORITY.verify_plain("root key", "secondary")
    assert claims.rights == ALL_RIGHTS


def test_the_name_of_a_key_may_be_written_in_other_letters() -> None:
    assert AUTHORITY.verify(token("sb://h", "ROOT Key"), "", T0).rights == ALL_RIGHTS
    assert AUTHORITY.verify_plain("Listener", "listen")[0].rights == Right.LISTEN


def test_manage_includes_send_and_listen() -> None:
    authority = Authority([AccessKey("m", ("k",), Right.MANAGE)])
    [claims] = authority.verify_plain("m", "k")
    assert claims.rights == ALL_RIGHTS


@pytest.mark.parametrize(("name", "key"), [("root key", "wrong"), ("nobody", "primary"), ("", "")])
def test_a_wrong_key_and_a_wrong_name_are_told_the_same(name: str, key: str) -> None:
    if name:
        with pytest.raises(InvalidSignature) as refused:
            AUTHORITY.verify(token("sb://h", name, key), "", T0)
        assert str(refused.value) == "InvalidSignature: The token has an invalid signature."
    with pytest.raises(Unauthorized, match="The key name or the key is wrong"):
        AUTHORITY.verify_plain(name, key)


def test_a_token_ends_when_it_says() -> None:
    AUTHORITY.verify(token("sb://h", until=T0 + 1_000), "", T0 + 999)
    with pytest.raises(ExpiredToken) as refused:
        AUTHORITY.verify(token("sb://h", until=T0 + 1_000), "", T0 + 1_000)
    assert str(refused.value) == (
        "ExpiredToken: The token is expired. Expiration time: '2023-11-14T22:13:21Z'."
    )


def test_an_expired_token_with_a_wrong_signature_is_not_told_that_it_expired() -> None:
    with pytest.raises(InvalidSignature):
        AUTHORITY.verify(token("sb://h", key="wrong", until=T0 - 1), "", T0)


@pytest.mark.parametrize("text", ["eyJhbGciOi.eyJhdWQi.sig", "Bearer eyJhbGciOi.x.y", "", "\ud800"])
def test_other_tokens_are_refused_by_name(text: str) -> None:
    with pytest.raises(Unauthorized, match="no issuer of other tokens"):
        AUTHORITY.verify(text, "", T0)


@given(st.text() | st.text("sr=&sigekn%+1").map("SharedAccessSignature ".__add__))
def test_any_text_that_nobody_signed_is_unauthorized(text: str) -> None:
    with pytest.raises(Unauthorized):
        AUTHORITY.verify(text, "", T0)


@given(st.text(), st.text())
def test_any_name_and_password_that_are_not_a_key_are_unauthorized(name: str, word: str) -> None:
    with pytest.raises(Unauthorized):
        AUTHORITY.verify_plain(name, word)


def test_a_name_and_a_key_open_the_whole_namespace_for_good() -> None:
    [claims] = AUTHORITY.verify_plain("root key", "primary")
    assert (claims.resource, claims.rights, claims.expires_at) == ("", ALL_RIGHTS, NEVER)


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("sb://localhost:5672/Orders/", "orders"),
        ("amqps://ns.example.net/a%2Fb%20c", "a/b c"),
        ("https://localhost:5300/q?api-version=2021-05", "q"),
        (
            "http://localhost:5300/$resources/queues?$skip=0&api-version=2021-05",
            "$resources/queues",
        ),
        ("https://localhost:5300", ""),
        ("sb://localhost", ""),
        ("amqp://[::1]:5672/q", "q"),
        ("/orders", "orders"),
        ("localhost:5300/orders", "orders"),
        ("localhost:5300", ""),
        # without scheme and port it could be an entity's own name
        ("ns.example.net", "ns.example.net"),
        ("my.queue", "my.queue"),
    ],
)
def test_the_resource_that_a_uri_names(uri: str, path: str) -> None:
    assert resource_path(uri) == path


@pytest.mark.parametrize(
    ("resource", "path", "covered"),
    [
        ("sb://h", "orders", True),
        ("sb://h/", "orders/$DeadLetterQueue/$management", True),
        ("sb://h/orders", "Orders", True),
        ("sb://h/ORDERS", "orders/$management", True),
        ("sb://h/orders", "orders/$DeadLetterQueue", True),
        ("sb://h/orders", "amqps://other:5671/orders/$management", True),
        ("sb://h/news", "news/Subscriptions/all", True),
        ("sb://h/a%2Fb", "a/b/$management", True),
        ("sb://h/orders/$DeadLetterQueue", "orders/$DeadLetterQueue/$management", True),
        # the beginning of some names, says the slash
        ("sb://h/eu/", "eu/returns", True),
        ("sb://h/eu%2F?x=/y", "eu/returns/$management", True),
        ("sb://h/eu/", "europe", False),
        ("sb://h/eu/", "eu", True),
        ("sb://h/a/", "a/b", False),
        # an entity that does not exist is not the beginning of others
        ("sb://h/eu", "eu", True),
        ("sb://h/eu", "eu/$management", True),
        ("sb://h/eu", "eu/Subscriptions/all/$DeadLetterQueue", True),
        ("sb://h/eu", "eu/returns", False),
        ("sb://h/eu?x=/", "eu/returns", False),
        ("sb://h/a/c", "a/c", True),
        ("sb://h/a/c", "a/c/d", False),
        ("sb://h/eu/Subscriptions/all", "eu/Subscriptions/all/Rules/one", True),
        # other queues, whose names go on where this one ends
        ("sb://h/a", "a/b", False),
        ("sb://h/a", "a/b/$management", False),
        ("sb://h/a", "a/c", False),
        ("sb://h/a", "ab", False),
        ("sb://h/a/b", "a/b/c", False),
        ("sb://h/orders/$management", "orders", False),
        ("sb://h/orders", "orders2", False),
        ("sb://h/orders", "order", False),
        ("sb://h/orders", "", False),
        ("sb://h/a/b", "a", False),
    ],
)
def test_a_resource_covers_itself_and_what_is_below(
    resource: str, path: str, covered: bool
) -> None:
    claims = AUTHORITY.verify(token(resource), "", T0)
    assert claims.covers(path) is covered


def test_a_token_does_not_grow_when_its_entity_is_deleted() -> None:
    made = Authority([ROOT])
    made.learn("orders", [])
    made.learn("orders/secret", [])
    signed = token("sb://h/orders")
    before = made.verify(signed, "orders", T0)
    made.forget("orders")
    for claims in (before, made.verify(signed, "orders", T0), made.review(before)):
        assert claims is not None
        assert claims.covers("orders") and not claims.covers("orders/secret")


def test_a_folder_that_becomes_an_entity_is_reviewed_and_opens_no_more_than_that() -> None:
    made = Authority([ROOT])
    assert not made.learn("eu/returns", [])
    claims = made.verify(token("sb://h/eu/"), "eu/returns", T0)
    assert claims.reach is Reach.FOLDER and claims.covers("eu/returns")
    assert made.learn("EU", [])
    assert not made.learn("EU", [])
    reviewed = made.review(claims)
    assert reviewed is not None
    assert reviewed.covers("eu") and not reviewed.covers("eu/returns")
    whole = made.verify(token("sb://h"), "eu", T0)
    assert made.review(whole) == whole


def test_a_token_for_an_entity_opens_no_folder_when_that_is_deleted_slash_or_not() -> None:
    made = Authority([ROOT])
    for name in ("eu", "eu/returns"):
        made.learn(name, [])
    signed = token("sb://h/EU/")
    assert made.verify(signed, "eu", T0).covers("eu")
    made.remember(["EU"])
    made.forget("EU")
    claims = made.verify(signed, "eu/returns", T0)
    assert claims.covers("eu") and not claims.covers("eu/returns")
    made.remember([])
    assert made.verify(signed, "eu/returns", T0).covers("eu/returns")


def test_a_token_for_the_messages_of_a_queue_that_does_not_exist_is_for_them() -> None:
    """Whoever holds it is told that there is no such queue, and not that the token is wrong."""
    made = Authority([ROOT])
    claims = made.verify(token("https://h/eu/new/messages"), "eu/new/messages", T0)
    assert claims.allows_request(Right.SEND, "eu/new", "eu/new/messages")
    assert not claims.covers("eu/new") and not claims.covers("eu/new/messages/x")
    named = made.verify(token("https://h/new/subscriptions/messages"), "new", T0)
    assert named.covers("new/Subscriptions/messages")


def test_a_token_that_was_good_is_looked_at_again_when_keys_change() -> None:
    authority = Authority([ROOT])
    authority.learn("orders", [LISTENER])
    shown = token("sb://h/orders", "listener", "listen")
    assert authority.verify(shown, "orders", T0).rights == Right.LISTEN
    assert authority.verify(shown, "orders", T0).rights == Right.LISTEN
    authority.learn("orders", [AccessKey("listener", ("listen",), Right.SEND)])
    assert authority.verify(shown, "orders", T0).rights == Right.SEND
    authority.forget("orders")
    with pytest.raises(InvalidSignature):
        authority.verify(shown, "orders", T0)


def test_a_token_that_was_good_ends_when_it_says_and_opens_nothing_else() -> None:
    authority = Authority([ROOT])
    authority.learn("orders", [LISTENER])
    authority.learn("bills", [])
    shown = token("sb://h/orders", "listener", "listen")
    authority.verify(shown, "orders", T0)
    with pytest.raises(InvalidSignature):
        authority.verify(shown, "bills", T0)
    with pytest.raises(ExpiredToken):
        authority.verify(shown, "orders", T0 + HOUR)


def test_no_more_than_so_many_good_tokens_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority([ROOT])
    tried: list[str] = []
    verify = Authority._verify_sas

    def verify_noting(self: Authority, text: str, path: str, now: int) -> Claims:
        tried.append(text)
        return verify(self, text, path, now)

    monkeypatch.setattr(Authority, "_verify_sas", verify_noting)
    shown = [token(f"sb://h/{number}") for number in range(PROVEN_MAX + 1)]
    first, second, *others = shown
    for each in [first, second, first, *others, first, second]:
        authority.verify(each, "", T0)
    # The second was not shown for longest, and had to make room.
    assert tried == [*shown, second]


def test_a_right_counts_only_where_it_was_given() -> None:
    claims = Claims("orders", Right.LISTEN | Right.SEND, NEVER)
    assert claims.allows(Right.LISTEN, "orders")
    assert claims.allows(Right.LISTEN | Right.SEND, "orders")
    assert not claims.allows(Right.MANAGE, "orders")
    assert not claims.allows(Right.LISTEN | Right.MANAGE, "orders")
    assert not claims.allows(Right.LISTEN, "others")


def test_a_missing_right_is_named_with_the_resource() -> None:
    refusal = missing_claim(Right.LISTEN, "sb://localhost/orders")
    assert str(refusal) == (
        "Unauthorized access. 'Listen' claim(s) are required to perform this operation. "
        "Resource: 'sb://localhost/orders'."
    )
    assert refusal.condition == "amqp:unauthorized-access"
