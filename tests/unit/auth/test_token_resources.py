"""What a token is for, in each spelling that an SDK or a sample of Azure's makes (wire §2.3)."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest

from postbus.auth.authority import Authority, Claims
from postbus.auth.keyring import AccessKey
from postbus.auth.opening import HostNames
from postbus.model.authorization import Right

T0 = 1_700_000_000_000
EXPIRY = "1700003600"
KEY = "SAS_KEY_VALUE"
CERTIFIED = ("bus.example.net", "*.wild.example.net")
HOSTS = HostNames(("Broker-1",), lambda: CERTIFIED)

ENCODINGS: dict[str, Callable[[str], str]] = {
    "Python": quote_plus,
    "JavaScript": lambda uri: quote(uri, safe="!'()*~"),
    "JavaScript over HTTP": lambda uri: quote(uri.lower(), safe="!'()*~").lower(),
    ".NET": quote_plus,
    "Java": lambda uri: quote_plus(uri, safe="*"),
    "Go": lambda uri: quote_plus(uri).lower(),
    "Rust": lambda uri: quote(uri, safe="-._~"),
    "PHP and REST samples": lambda uri: quote(uri.lower(), safe="-._~").lower(),
}

NAMESPACE = [
    "sb://localhost/",
    "sb://localhost:5672",
    "https://localhost:5300/",
    "http://ns.servicebus.windows.net",
    "amqps://NS.servicebus.windows.net/",
    "localhost",
    "LocalHost/",
    "localhost:5671",
    "127.0.0.1",
    "[::1]",
    "ns.servicebus.windows.net",
    "NS.ServiceBus.Windows.Net/",
    "bus.example.net",
    "one.wild.example.net",
    "broker-1",
]
ORDERS = [
    "sb://localhost:5672/Orders",
    "amqp://localhost/orders/",
    "https://localhost:5300/orders?api-version=2021-05",
    "http://ns.servicebus.windows.net/ORDERS",
    "localhost/orders",
    "localhost:5300/orders",
    "ns.servicebus.windows.net/orders",
    "bus.example.net/orders",
    "127.0.0.1/orders",
    "orders",
    "/orders",
]
NEITHER = [
    "sb://localhost/other",
    "other",
    "orders.other",
    "stranger.example.net",
    "wild.example.net",
    "two.one.wild.example.net",
    "servicebus.windows.net",
    "orders.localhost",
    "sb",
]

encoded = pytest.mark.parametrize("sdk", ENCODINGS)


@pytest.fixture
def authority() -> Authority:
    made = Authority([AccessKey("root", (KEY,))], None, HOSTS)
    for name in ("orders", "other"):
        made.learn(name, [])
    return made


def token(uri: str, sdk: str, key: str = KEY, name: str = "root") -> str:
    resource = ENCODINGS[sdk](uri)
    digest = hmac.new(key.encode(), f"{resource}\n{EXPIRY}".encode(), hashlib.sha256).digest()
    # Go and Rust put the signature in as it is.
    signature = base64.b64encode(digest).decode()
    if sdk not in ("Go", "Rust"):
        signature = quote_plus(signature)
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={EXPIRY}&skn={name}"


def opened(claims: Claims) -> list[str]:
    paths = ("orders", "other", "orders/$management", "new", "")
    return [path for path in paths if claims.allows(Right.MANAGE, path)]


@encoded
@pytest.mark.parametrize("uri", NAMESPACE)
def test_a_host_is_the_whole_namespace(authority: Authority, uri: str, sdk: str) -> None:
    claims = authority.verify(token(uri, sdk), "orders", T0)
    assert opened(claims) == ["orders", "other", "orders/$management", "new", ""]


@encoded
@pytest.mark.parametrize("uri", ORDERS)
def test_an_entity_behind_a_host_is_that_entity(authority: Authority, uri: str, sdk: str) -> None:
    claims = authority.verify(token(uri, sdk), "orders", T0)
    assert opened(claims) == ["orders", "orders/$management"]


@encoded
@pytest.mark.parametrize("uri", NEITHER)
def test_no_other_name_opens_the_namespace_or_the_entity(
    authority: Authority, uri: str, sdk: str
) -> None:
    claims = authority.verify(token(uri, sdk), "orders", T0)
    assert opened(claims) in ([], ["other"])


@pytest.mark.parametrize("uri", ["sb://localhost", "localhost", "bus.example.net"])
def test_the_key_of_an_entity_opens_no_more_than_that(authority: Authority, uri: str) -> None:
    authority.learn("orders", [AccessKey("own", ("its key",))])
    claims = authority.verify(token(uri, "Go", "its key", "own"), "orders", T0)
    assert opened(claims) == ["orders", "orders/$management"]


def test_a_name_that_a_host_and_an_entity_have_is_the_entity(authority: Authority) -> None:
    shown = token("broker-1", "Go")
    assert "orders" in opened(authority.verify(shown, "orders", T0))
    authority.learn("broker-1", [])
    claims = authority.verify(shown, "broker-1", T0)
    assert opened(claims) == []
    assert claims.allows(Right.MANAGE, "broker-1")
    below = authority.verify(token("broker-1/orders", "Go"), "orders", T0)
    assert opened(below) == []


@pytest.mark.parametrize(
    ("audience", "path"),
    [
        ("amqps://ns.example.net/Orders/$management", "Orders/$management"),
        ("bus.example.net/orders", "orders"),
        ("localhost", ""),
        ("orders", "orders"),
        ("sb://localhost/localhost", "localhost"),
    ],
)
def test_an_audience_is_read_as_a_resource_is(
    authority: Authority, audience: str, path: str
) -> None:
    assert authority.path_of(audience) == path


def test_another_certificate_gives_other_names() -> None:
    names = ["old.example.net"]
    authority = Authority([AccessKey("root", (KEY,))], None, HostNames((), lambda: names))
    shown = token("new.example.net", "Go")
    assert opened(authority.verify(shown, "orders", T0)) == []
    names[:] = ["new.example.net"]
    authority.hosts_changed()
    assert "orders" in opened(authority.verify(shown, "orders", T0))
