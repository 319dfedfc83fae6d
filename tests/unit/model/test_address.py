"""What the SDKs' addresses name (wire §3.1), and which names an entity may have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.errors import InvalidArgument
from postbus.model.address import (
    ADDRESS_LENGTH_MAX,
    Address,
    SubQueue,
    check_entity_name,
    check_subscription_name,
    resolve_address,
    resolve_path,
)

DEAD = SubQueue.DEAD_LETTER
TRANSFER = SubQueue.TRANSFER_DEAD_LETTER


@pytest.mark.parametrize(
    ("text", "address"),
    [
        # JS, Go
        ("orders", Address("orders")),
        ("orders/$DeadLetterQueue", Address("orders", subqueue=DEAD)),
        ("orders/$Transfer/$DeadLetterQueue", Address("orders", subqueue=TRANSFER)),
        ("orders/$management", Address("orders", management=True)),
        ("news/Subscriptions/all", Address("news", "all")),
        # Java
        ("news/subscriptions/all/$deadletterqueue", Address("news", "all", DEAD)),
        ("orders/$Transfer/$deadletterqueue", Address("orders", subqueue=TRANSFER)),
        # .NET
        ("/orders", Address("orders")),
        ("/a%2Fb%20c", Address("a/b c")),
        # Python
        ("amqps://localhost:5672/orders", Address("orders")),
        ("amqp://[::1]:5672/a/b/$DeadLetterQueue/$management", Address("a/b", None, DEAD, True)),
        ("sb://ns.example.net/news/Subscriptions/all/", Address("news", "all")),
        # names with slashes, and names that only look like something else
        ("a/b/c", Address("a/b/c")),
        ("subscriptions/x", Address("subscriptions/x")),
        ("a/subscriptions/b/c", Address("a/subscriptions/b/c")),
        ("$management", Address("$management")),
        (
            "orders/$deadletterqueue/$deadletterqueue",
            Address("orders/$deadletterqueue", None, DEAD),
        ),
    ],
)
def test_an_address_is_taken_apart_from_its_right_end(text: str, address: Address) -> None:
    assert resolve_address(text) == address


def test_the_token_node_is_recognised_bare_and_in_a_uri() -> None:
    assert resolve_address("$cbs").is_cbs
    assert resolve_address("amqp://localhost/$CBS").is_cbs
    assert not resolve_address("$cbs/$management").is_cbs
    assert not resolve_address("orders/$cbs").is_cbs


@pytest.mark.parametrize("text", ["", "/", "amqps://localhost:5672", "amqp://localhost/", "%2F"])
def test_an_address_without_an_entity_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="names no entity"):
        resolve_address(text)


def test_an_address_without_end_is_refused_unread() -> None:
    with pytest.raises(InvalidArgument, match="4097 characters"):
        resolve_address("a" * (ADDRESS_LENGTH_MAX + 1))


def test_the_path_of_an_address_has_azures_spelling() -> None:
    address = resolve_address("amqps://h/News/SUBSCRIPTIONS/all/$DEADLETTERQUEUE/$MANAGEMENT")
    assert address.path == "News/Subscriptions/all/$DeadLetterQueue/$management"


@given(
    st.text(alphabet=st.characters(), max_size=200)
    | st.text("/$%abAB.:?#subscription", max_size=80)
)
def test_any_text_is_an_address_or_an_invalid_argument(text: str) -> None:
    try:
        address = resolve_address(text)
    except InvalidArgument:
        return
    assert address.entity
    # what we write ourselves is read back the same
    assert resolve_path(address.path).path == address.path


@pytest.mark.parametrize(
    "name",
    [
        "q", "txt/.-_123", "Ns/x-servicebus-transfer/0", "a" * 260,
        "eu/messages", "eu/messages/today", "messages/head",
    ],
)  # fmt: skip
def test_names_an_entity_may_have(name: str) -> None:
    check_entity_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "", "/a", "a/", "a//b", "a b", "a?b", "a#b", "a@b", "a*b", "$cbs", "a/$management", "ä",
        "a\n", "a%2Fb", "a\\b", "../a", "a/./b", "news/Subscriptions/all", "news/subscriptions",
        "a" * 261, "a/messages/head", "a/Messages/1/33221100-5544-7766-8899-AABBccddeeff",
    ],
)  # fmt: skip
def test_names_an_entity_may_not_have(name: str) -> None:
    with pytest.raises(InvalidArgument):
        check_entity_name(name)


def test_a_bad_name_is_refused_in_azures_words() -> None:
    with pytest.raises(InvalidArgument, match="'URI_PATH' contains disallowed characters"):
        check_entity_name("a b")


@pytest.mark.parametrize("name", ["all", "a.b-c_D9", "subscriptions", "rules", "x" * 50])
def test_names_a_subscription_may_have(name: str) -> None:
    check_subscription_name(name)


@pytest.mark.parametrize("name", ["", "a/b", "a b", "$Default", ".", "..", "ä", "a?b", "x" * 51])
def test_names_a_subscription_may_not_have(name: str) -> None:
    with pytest.raises(InvalidArgument, match="'URI_PATH'"):
        check_subscription_name(name)
