"""Keys of entities: what each opens, however wide a token claims to be, and when that ends."""

from __future__ import annotations

from random import Random

import pytest

from postbus.auth.authority import Authority, Claims, Reach
from postbus.auth.connection_claims import CLAIMS_MAX, Credentials
from postbus.auth.keyring import NAMESPACE, AccessKey, KeyRing
from postbus.auth.refusals import InvalidAudience, InvalidSignature
from postbus.auth.sas import create_sas
from postbus.errors import Unauthorized
from postbus.model.authorization import ALL_RIGHTS, AuthorizationRule, Right
from postbus.model.times import NEVER

T0 = 1_700_000_000_000
HOUR = 3_600_000
ROOT = AccessKey("root", ("root 1", "root 2"))


def authority(**entities: list[AccessKey]) -> Authority:
    made = Authority([ROOT])
    for name in ("a", "a/b", "ab", "topic"):
        made.learn(name, [])
    for name, keys in entities.items():
        made.learn(name, keys)
    return made


SENDER = AccessKey("send", ("first", "second"), Right.SEND)
OWNER = AccessKey("own", ("owner",), ALL_RIGHTS)


def token(uri: str, name: str = "send", key: str = "first", until: int = T0 + HOUR) -> str:
    return create_sas(name, key, uri, until)


@pytest.mark.parametrize(
    ("signed_for", "asked", "resource"),
    [
        ("sb://h/a", "sb://h/a", "a"),
        ("sb://h", "sb://h/A", "a"),
        ("https://h:5300/", "a", "a"),
        ("sb://h", "a/$management", "a"),
        ("sb://h/a", "a/$DeadLetterQueue", "a"),
        ("sb://h/a/$management", "a/$management", "a/$management"),
        ("sb://h/a/$DeadLetterQueue", "a/$DeadLetterQueue", "a/$deadletterqueue"),
    ],
)
def test_an_entitys_key_is_good_for_the_entity_however_wide_its_token(
    signed_for: str, asked: str, resource: str
) -> None:
    claims = authority(a=[SENDER]).verify(token(signed_for), asked, T0)
    assert (claims.resource, claims.rights) == (resource, Right.SEND)
    assert claims.covers(asked)
    for other in ("ab", "a/b", "a/b/$management", "a/c", "topic", ""):
        assert not claims.covers(other)


@pytest.mark.parametrize(
    ("signed_for", "asked"),
    [
        ("sb://h", "a/b"),
        ("sb://h", "ab"),
        ("sb://h", ""),
        ("sb://h", "$Resources/queues"),
        ("sb://h/a", "ab"),
        ("sb://h/a", "a/b"),
        ("sb://h/a", "a/b/$management"),
        ("sb://h/ab", "ab"),
    ],
)
def test_an_entitys_key_is_no_key_of_others(signed_for: str, asked: str) -> None:
    with pytest.raises(InvalidSignature):
        authority(a=[SENDER]).verify(token(signed_for), asked, T0)


@pytest.mark.parametrize(
    ("signed_for", "asked"),
    [("sb://h/ab", "a"), ("sb://h/a/b", "a"), ("sb://h/a/c", "a/c"), ("sb://h/other", "a")],
)
def test_a_token_that_an_entitys_key_signed_for_something_else_is_refused(
    signed_for: str, asked: str
) -> None:
    with pytest.raises(InvalidAudience):
        authority(a=[SENDER]).verify(token(signed_for), asked, T0)


def test_a_topics_key_opens_its_subscriptions() -> None:
    made = authority(topic=[SENDER, OWNER])
    claims = made.verify(token("sb://h", "own", "owner"), "topic/Subscriptions/s", T0)
    for path in (
        "topic",
        "topic/Subscriptions",
        "topic/Subscriptions/s",
        "topic/subscriptions/s/$DeadLetterQueue/$management",
        "topic/Subscriptions/s/Rules/r",
    ):
        assert claims.allows(Right.MANAGE, path), path
    one = made.verify(token("sb://h/topic/Subscriptions/s", "own", "owner"), "topic", T0)
    assert one.covers("topic/subscriptions/s/rules/r")
    assert one.covers("topic/Subscriptions/s/$management")
    assert not one.covers("topic") and not one.covers("topic/Subscriptions/s2")


def test_the_namespaces_key_is_found_behind_the_entitys_of_the_same_name() -> None:
    made = authority(a=[AccessKey("root", ("mine",), Right.LISTEN)])
    assert made.verify(token("sb://h", "root", "root 2"), "a", T0).rights == ALL_RIGHTS
    assert made.verify(token("sb://h", "root", "mine"), "a", T0).rights == Right.LISTEN
    with pytest.raises(InvalidSignature):
        made.verify(token("sb://h", "root", "mine"), "ab", T0)


def test_as_many_signatures_are_made_for_a_name_that_nobody_has() -> None:
    """Or the time of an answer would tell which names there are."""
    ring = KeyRing()
    ring.learn(NAMESPACE, [AccessKey("one", ("k",)), ROOT])
    ring.learn("a", [SENDER])

    def tried(owner: str, name: str) -> int:
        values: list[str] = []
        ring.signer(owner, [name], lambda value: bool(values.append(value)))
        return len(values)

    assert {tried(owner, name) for owner in ("a", "") for name in ("send", "one", "root", "x")} == {
        4
    }


# -- messages over HTTP ------------------------------------------------------------------------


@pytest.mark.parametrize("key", [("send", "first"), ("root", "root 1")])
def test_a_token_for_the_messages_of_a_queue_is_for_them_only(key: tuple[str, str]) -> None:
    made = authority(a=[SENDER])
    claims = made.verify(token("https://h/a/messages", *key), "a/messages", T0)
    assert claims.reach is Reach.MESSAGES
    assert claims.allows_request(Right.SEND, "a", "a/messages")
    assert claims.allows_request(Right.SEND, "A", "A/messages/head")
    assert not claims.allows(Right.SEND, "a") and not claims.covers("a/messages")
    assert not claims.allows_request(Right.SEND, "ab", "ab/messages")
    assert not claims.allows_request(Right.SEND, "a/b", "a/b/messages")
    assert not claims.allows_request(
        Right.SEND, "a/$DeadLetterQueue", "a/$DeadLetterQueue/messages"
    )
    head = made.verify(token("https://h/a/messages/head", *key), "a/messages/head", T0)
    assert head.allows_request(Right.SEND, "a", "a/messages/head")
    assert not head.allows_request(Right.SEND, "a", "a/messages")


def test_a_token_for_a_queue_is_for_its_messages_too() -> None:
    claims = authority(a=[SENDER]).verify(token("https://h/a"), "a/messages", T0)
    assert claims.allows_request(Right.SEND, "a", "a/messages")
    assert not claims.allows_request(Right.LISTEN, "a", "a/messages/head")
    assert not claims.allows_request(Right.SEND, "a/b", "a/b/messages")


def test_the_messages_of_one_queue_are_not_another_queue_of_that_name() -> None:
    made = authority(a=[SENDER])
    made.learn("a/messages", [])
    claims = made.verify(token("sb://h/a/messages", "root", "root 1"), "a/messages", T0)
    assert claims.covers("a/messages")
    assert not claims.allows_request(Right.SEND, "a", "a/messages")


def test_the_messages_of_a_subqueue_and_of_a_subscription_named_like_them() -> None:
    made = authority(a=[SENDER], topic=[SENDER])
    dead = made.verify(token("https://h/a/$DeadLetterQueue/messages"), "a", T0)
    assert dead.allows_request(Right.SEND, "a/$DeadLetterQueue", "a/$deadletterqueue/messages/head")
    assert not dead.allows_request(Right.SEND, "a", "a/messages")
    named = made.verify(token("https://h/topic/subscriptions/messages"), "topic", T0)
    assert named.covers("topic/Subscriptions/messages")


# -- SASL PLAIN --------------------------------------------------------------------------------


def test_a_login_with_an_entitys_key_opens_that_entity() -> None:
    [claims] = authority(a=[SENDER]).verify_plain("SEND", "second")
    assert (claims.resource, claims.reach, claims.expires_at) == ("a", Reach.ENTITY, NEVER)
    assert claims.covers("a/$management") and not claims.covers("a/b")


def test_a_login_with_a_key_that_several_entities_have_opens_each_of_them() -> None:
    made = authority(a=[SENDER], ab=[AccessKey("send", ("first",), Right.LISTEN)], topic=[SENDER])
    opened = {claims.resource: claims.rights for claims in made.verify_plain("send", "first")}
    assert opened == {"a": Right.SEND, "ab": Right.LISTEN, "topic": Right.SEND}
    assert len(made.verify_plain("send", "second")) == 2
    with pytest.raises(Unauthorized):
        made.verify_plain("send", "third")


def test_a_key_whose_two_values_are_the_same_is_one_key() -> None:
    made = authority(a=[AccessKey("k", ("same", "same"), Right.SEND)])
    assert len(made.verify_plain("k", "same")) == 1
    made.learn("a", [])
    with pytest.raises(Unauthorized):
        made.verify_plain("k", "same")


# -- revocation --------------------------------------------------------------------------------


def test_claims_end_with_the_key_that_made_them() -> None:
    made = authority(a=[SENDER])
    by_first = made.verify(token("sb://h/a"), "a", T0)
    by_second = made.verify(token("sb://h/a", key="second"), "a", T0)
    [login] = made.verify_plain("send", "first")

    # the first value moves to second place, and a new one takes its own
    assert made.learn("a", [AccessKey("Send", ("new", "first"), Right.SEND)])
    assert made.review(by_first) == by_first
    assert made.review(login) == login
    assert made.review(by_second) is None

    assert made.learn("a", [])
    assert made.review(by_first) is None
    assert made.review(login) is None


def test_claims_lose_the_right_that_their_key_lost_and_gain_none() -> None:
    made = authority(a=[AccessKey("k", ("v",), Right.SEND | Right.LISTEN)])
    claims = made.verify(token("sb://h/a", "k", "v"), "a", T0)
    assert made.learn("a", [AccessKey("k", ("v",), Right.LISTEN)])
    reviewed = made.review(claims)
    assert reviewed is not None and reviewed.rights == Right.LISTEN
    assert not made.learn("a", [AccessKey("k", ("v",), ALL_RIGHTS)])
    assert made.review(claims) == claims


def test_an_entity_that_is_made_anew_does_not_know_the_old_keys() -> None:
    made = authority(a=[SENDER])
    claims = made.verify(token("sb://h"), "a", T0)
    assert made.forget("A")
    assert made.review(claims) is None
    made.learn("a", [AccessKey("send", ("another",), Right.SEND)])
    assert made.review(claims) is None
    assert not authority().forget("a")  # there were none to lose


def test_the_namespaces_keys_can_be_replaced_as_well() -> None:
    made = authority()
    claims = made.verify(token("sb://h", "root", "root 1"), "a", T0)
    assert made.learn(NAMESPACE, [AccessKey("root", ("root 2",))])
    assert made.review(claims) is None


def test_what_takes_nothing_away_needs_no_review() -> None:
    made = authority(a=[SENDER])
    assert not made.learn("a", [SENDER, OWNER])
    assert not made.learn("a", [AccessKey("SEND", ("second", "first"), ALL_RIGHTS), OWNER])


# -- what one connection holds -----------------------------------------------------------------


def claims(resource: str = "a", rights: Right = Right.SEND, until: int = T0 + HOUR) -> Claims:
    return Claims(resource, rights, until, Reach.ENTITY)


def test_tokens_for_two_audiences_stand_beside_each_other() -> None:
    held = Credentials()
    assert not held
    held.put("a", Claims("", Right.LISTEN, T0 + HOUR))
    held.put("b", Claims("", Right.SEND, T0 + HOUR))
    assert held.allows(Right.LISTEN, "a", T0) and held.allows(Right.SEND, "b", T0)


def test_a_renewal_that_proves_the_same_disturbs_nothing() -> None:
    held = Credentials()
    assert not held.put("a", claims())
    assert not held.put("a", claims(until=T0 + 2 * HOUR))
    assert held.next_expiry() == T0 + 2 * HOUR
    assert not held.expire(T0 + HOUR)
    assert held.put("a", claims(rights=Right.LISTEN))
    assert not held.allows(Right.SEND, "a", T0)


def test_the_claims_on_other_entities_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Credentials()
    for number in range(500):
        held.put(f"q{number}", claims(f"eu/q{number}"))
    held.put("folder", Claims("eu", Right.LISTEN, T0 + HOUR))
    asked: list[str] = []
    allows = Claims.allows

    def counted(self: Claims, right: Right, path: str) -> bool:
        asked.append(self.resource)
        return allows(self, right, path)

    monkeypatch.setattr(Claims, "allows", counted)
    assert held.allows(Right.SEND, "sb://h/EU/q7/$DeadLetterQueue", T0)
    assert held.allows(Right.LISTEN, "eu/other", T0)
    assert not held.allows(Right.SEND, "us/q7", T0)
    assert asked == ["eu/q7", "eu"]


def test_credentials_say_what_asking_every_claim_would_say() -> None:
    chance = Random(3)
    places = ["", "a", "a/b", "a/b/c", "b", "a/subscriptions/s"]
    paths = [*places[1:], "a/$deadletterqueue", "A/B/$management", "sb://h:1/b", "ab"]
    held, now = Credentials(), T0
    plain: dict[str, Claims] = {}
    login: tuple[Claims, ...] = ()
    made = authority()
    for _ in range(3_000):
        one = Claims(
            chance.choice(places),
            chance.choice([Right.SEND, Right.LISTEN]),
            now + chance.randrange(1, 50),
            chance.choice([Reach.FOLDER, Reach.ENTITY]),
        )
        match chance.randrange(9):
            case 0:
                now += chance.randrange(20)
                held.expire(now)
                plain = {name: each for name, each in plain.items() if each.expires_at > now}
            case 1:
                login = (one, one)[: chance.randrange(3)]
                held.log_in(login)
            case 2:
                held.review(made)
            case _:
                audience = chance.choice("xyz")
                held.put(audience, one)
                plain[audience] = one
        for path in paths:
            valid = [each for each in (*login, *plain.values()) if each.expires_at > now]
            assert held.covers(path, now) == any(each.covers(path) for each in valid)
            for right in (Right.SEND, Right.LISTEN):
                allowed = any(each.allows(right, path) for each in valid)
                assert held.allows(right, path, now) == allowed


def test_what_has_run_out_counts_no_more_even_before_it_is_dropped() -> None:
    held = Credentials()
    held.put("a", claims())
    assert held.covers("a", T0) and not held.covers("a", T0 + HOUR)
    assert held.expire(T0 + HOUR)
    assert not held and held.next_expiry() is None


def test_a_login_and_tokens_are_reviewed_alike() -> None:
    made = authority(a=[SENDER], ab=[SENDER])
    held = Credentials()
    held.log_in(made.verify_plain("send", "first"))
    held.put("a", made.verify(token("sb://h/a"), "a", T0))
    made.learn("a", [])
    assert held.review(made)
    assert not held.allows(Right.SEND, "a", T0) and held.allows(Right.SEND, "ab", T0)
    assert not held.review(made)
    made.forget("ab")
    assert held.review(made)
    assert not held


def test_a_connection_holds_only_so_many_claims() -> None:
    held = Credentials()
    for number in range(CLAIMS_MAX):
        held.put(str(number), claims())
    held.put("0", claims())
    with pytest.raises(Unauthorized, match="as many tokens as it may hold"):
        held.put("more", claims())
    with pytest.raises(Unauthorized, match="opens 1001 entities"):
        held.log_in((claims(),) * (CLAIMS_MAX + 1))


def test_a_rule_becomes_a_key() -> None:
    rule = AuthorizationRule("k", (Right.SEND, Right.LISTEN), "1", "2")
    assert AccessKey.of(rule) == AccessKey("k", ("1", "2"), Right.SEND | Right.LISTEN)
