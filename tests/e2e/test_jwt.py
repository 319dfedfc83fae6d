"""Tokens of an issuer that the operator trusts, over AMQP and HTTP, and the keys behind them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthorizationError
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.support.access import Answer, Caller, Refused, ask, sas
from tests.support.carriers import local_ca, make_local_ca
from tests.support.jwt_tokens import AUDIENCE, EC, ISSUER, RSA, STRANGER, claims, key_set, sign
from tests.support.server import Server, ServerDied
from tests.support.waiting import until_blocking

ENTRY = (
    b'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
    b'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"/></content></entry>'
)
OWNER = ["Azure Service Bus Data Owner"]


def token(key: Any = RSA, alg: str = "RS256", lasts_s: int = 3_600, **changes: Any) -> str:
    now = int(time.time())
    return sign(claims(now, **{"exp": now + lasts_s, **changes}), key, alg)


class KeySite:
    """Where an issuer shows its keys."""

    def __init__(self) -> None:
        site = self
        self.document = key_set(RSA)
        self.asked = 0

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked += 1
                self.send_response(200 if site.document else 503)
                self.send_header("Content-Length", str(len(site.document)))
                self.end_headers()
                self.wfile.write(site.document)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/keys"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def site() -> Iterator[KeySite]:
    site = KeySite()
    yield site
    site.close()


def trusting(source: str) -> tuple[str, ...]:
    return ("--jwt-issuer", ISSUER, "--jwt-audience", AUDIENCE, "--jwt-jwks", source)


def make(server: Server, queue: str) -> None:
    root = sas("RootManageSharedAccessKey", "SAS_KEY_VALUE")
    assert ask(server, "PUT", queue, root, ENTRY).status == 201


def get(server: Server, path: str, bearer: str) -> Answer:
    return ask(server, "GET", path, f"Bearer {bearer}")


def test_the_roles_of_a_token_are_its_rights(
    make_server: Callable[..., Server], site: KeySite
) -> None:
    server = make_server(*trusting(site.url)).start()
    make(server, "a")
    with Caller(server) as caller:
        # RSA by default; the audience is the entity, and the claims hold for all of them
        assert caller.put_token("sb://localhost/a", token()) == (202, "Accepted")
        assert not isinstance(caller.attach("receive", "a"), Refused)
        refused = caller.attach("send", "a")
        assert isinstance(refused, Refused) and "'Send' claim(s)" in refused.text
        sender = token(roles=["Azure Service Bus Data Sender", "Listen"])
        assert caller.put_token("sb://localhost/a", sender).status == 202
        assert not isinstance(caller.attach("send", "a"), Refused)
        missing = caller.put_token("sb://localhost/none", token())
        assert missing.status == 404 and "could not be found" in missing.text
    assert get(server, "a", token(roles=OWNER)).status == 200
    assert get(server, "$Resources/queues", token(roles="manage")).status == 200
    listener = get(server, "a", token())
    assert listener.status == 401
    assert "Manage,EntityRead claims required for this operation" in listener.text


@pytest.mark.parametrize(
    ("wrong", "code", "text"),
    [
        (lambda: token(lasts_s=-1), 40106, "ExpiredToken: The token is expired."),
        (lambda: token(aud="https://elsewhere"), 40104, "InvalidAudience"),
        (lambda: token(iss="https://elsewhere"), 40100, "InvalidIssuer"),
        (lambda: token(STRANGER), 40103, "InvalidSignature: The token has an invalid signature."),
        (lambda: token(EC, "ES256"), 40103, "signed by a key its issuer does not show"),
        (lambda: token(roles=["Reader"]), 40100, "names no role that allows anything"),
        (lambda: "eyJhbGciOiJub25lIn0.e30.", 40100, "must be signed by one of RS256"),
        (lambda: "nonsense", 40105, "MalformedToken"),
    ],
)
def test_a_token_that_is_not_good_is_told_why(
    trusting_server: Server, wrong: Callable[[], str], code: int, text: str
) -> None:
    with Caller(trusting_server) as caller:
        answer = caller.put_token("sb://localhost/a", wrong())
        assert answer.status == 401 and text in answer.text
        assert isinstance(caller.attach("receive", "a"), Refused)
    answer = get(trusting_server, "a", wrong())
    assert answer.status == 401
    assert f"SubCode={code}. claim is empty or token is invalid. " in answer.text
    assert text in answer.text


@pytest.fixture(scope="module")
def trusting_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Its issuer's keys are in a file."""
    folder = tmp_path_factory.mktemp("jwt")
    keys = folder / "keys.json"
    keys.write_bytes(key_set(RSA))
    server = Server(folder / "data", *trusting(str(keys))).start()
    make(server, "a")
    yield server
    server.discard()


def test_links_end_with_the_token(trusting_server: Server) -> None:
    with Caller(trusting_server) as caller:
        assert caller.put_token("sb://localhost/a", token(lasts_s=2)).status == 202
        link = caller.attach("receive", "a")
        assert not isinstance(link, Refused)
        assert caller.detached(link).condition == "amqp:unauthorized-access"


def test_a_new_key_of_the_issuer_is_found_and_an_invented_one_is_not_looked_for_again(
    make_server: Callable[..., Server], site: KeySite
) -> None:
    server = make_server(*trusting(site.url)).start()
    make(server, "a")
    assert get(server, "a", token(roles=OWNER)).status == 200
    assert site.asked == 1
    site.document = key_set(RSA, EC)
    with Caller(server) as caller:
        # the answer waits for the keys
        assert caller.put_token("sb://localhost/a", token(EC, "ES256")).status == 202
        assert site.asked == 2
        for _ in range(20):
            invented = sign(claims(int(time.time())), RSA, kid="invented")
            answer = caller.put_token("sb://localhost/a", invented)
            assert answer.status == 401 and "its issuer does not show" in answer.text
            assert get(server, "a", invented).status == 401
    assert site.asked == 2


def test_an_issuer_that_is_not_there_when_the_server_starts_is_waited_for(
    make_server: Callable[..., Server], site: KeySite
) -> None:
    site.document = b""
    server = make_server(*trusting(site.url)).start()
    make(server, "a")  # keys of the namespace work meanwhile
    until_blocking("the keys were asked for", lambda: site.asked)
    answer = get(server, "a", token(roles=OWNER))
    assert answer.status == 503
    assert "The keys of the token issuer could not be fetched yet" in answer.text
    with Caller(server) as caller:
        assert caller.put_token("sb://localhost/a", token()).status == 503


def test_a_file_without_keys_keeps_the_server_from_starting(
    make_server: Callable[..., Server], tmp_path: Path
) -> None:
    with pytest.raises(ServerDied, match="No such file"):
        make_server(*trusting(str(tmp_path / "none.json"))).start()
    with pytest.raises(ServerDied, match="jwt_issuer, jwt_audience and jwt_jwks"):
        make_server("--jwt-issuer", ISSUER).start()


# -- the official client, which sends such tokens over TLS only --------------------------------


class Credential:
    """What the SDK takes for a credential of Azure."""

    def __init__(self, *roles: str) -> None:
        self._roles = list(roles)
        self.scopes: list[str] = []

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        self.scopes += scopes
        return AccessToken(token(roles=self._roles), int(time.time()) + 3_600)


def test_the_official_clients_work_with_a_credential(make_server: Callable[..., Server]) -> None:
    keys = make_server().data.with_name("keys.json")
    keys.write_bytes(key_set(RSA))
    server = make_server(*trusting(str(keys)))
    make_local_ca(server.data)
    server.start()
    trust = {"connection_verify": str(local_ca(server)), "retry_total": 0}
    host = f"localhost:{server.port}"
    owner = Credential("Azure Service Bus Data Owner")
    with ServiceBusAdministrationClient(host, owner, **trust) as admin:
        admin.create_queue("orders")
        assert owner.scopes[0].startswith(AUDIENCE)
    with (
        ServiceBusAdministrationClient(host, Credential("Send"), **trust) as admin,
        pytest.raises(ClientAuthenticationError, match="Manage,EntityRead"),
    ):
        admin.get_queue("orders")

    def client(*roles: str) -> ServiceBusClient:
        address = f"sb://{host}"
        return ServiceBusClient(
            "localhost", Credential(*roles), custom_endpoint_address=address, **trust
        )

    with client("Azure Service Bus Data Sender") as bus:
        with bus.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("by role"))
        with pytest.raises(ServiceBusAuthorizationError), bus.get_queue_receiver("orders") as one:
            one.receive_messages(max_wait_time=5)
    with (
        client("Azure Service Bus Data Receiver") as bus,
        bus.get_queue_receiver("orders") as receiver,
    ):
        [message] = receiver.receive_messages(max_wait_time=10)
        assert str(message) == "by role"
        receiver.complete_message(message)
