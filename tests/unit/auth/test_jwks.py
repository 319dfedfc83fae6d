"""The keys of an issuer: bounded, fetched in the background, and never at a stranger's will."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from joserfc.errors import SecurityWarning
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from postbus.auth import jwks
from postbus.auth.jwks import (
    DOCUMENT_MAX_BYTES,
    PAUSE_MS,
    WAITING_MAX,
    KeysUnreadable,
    SigningKeys,
    read_document,
    read_keys,
)
from tests.support.jwt_tokens import EC, RSA, key_set

T0 = 1_700_000_000_000


def test_rsa_and_ec_keys_are_taken_by_name_and_others_left_out() -> None:
    others = [
        RSAKey.generate_key(2_048, {"kid": "enc", "use": "enc"}),
        ECKey.generate_key("P-384", {"kid": "p384"}),
        OKPKey.generate_key("Ed25519", {"kid": "ed"}),
    ]
    document = json.loads(key_set(RSA, EC, *others))
    document["keys"] += [
        OctKey.generate_key(256, {"kid": "secret"}).as_dict(),
        {"kty": "RSA", "kid": "broken", "n": "AQAB"},
        {"kty": "EC", "crv": "P-256", "kid": "off the curve", "x": "AQ", "y": "AQ"},
        {"kty": "ML-DSA", "kid": "from the future"},
        {"kty": "RSA", "kid": 7, **{k: v for k, v in RSA.as_dict().items() if k in "ne"}},
        "no key",
    ]
    assert set(read_keys(json.dumps(document).encode())) == {"rsa-1", "ec-1"}


def test_an_rsa_key_that_is_too_short_is_left_out() -> None:
    with pytest.warns(SecurityWarning):
        short = RSAKey.generate_key(1_024, {"kid": "short"})
    assert set(read_keys(key_set(short, RSA))) == {"rsa-1"}


@pytest.mark.parametrize(
    "document",
    [b"", b"\xff", b"[]", b"{}", b'{"keys": 3}', b'{"keys": []}', b'{"keys": [{}]}', b"[" * 99_999],
)
def test_a_document_without_a_usable_key_is_refused(document: bytes) -> None:
    with pytest.raises(KeysUnreadable):
        read_keys(document)


def test_keys_may_be_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    with pytest.raises(KeysUnreadable, match=r"keys\.json: .*No such file"):
        read_document(str(path))
    path.write_bytes(key_set(RSA))
    assert set(read_keys(read_document(str(path)))) == {"rsa-1"}
    path.write_bytes(b" " * (DOCUMENT_MAX_BYTES + 1))
    with pytest.raises(KeysUnreadable, match="larger than the 262144 bytes allowed"):
        read_document(str(path))


class _Pages(BaseHTTPRequestHandler):
    pages: ClassVar[dict[str, tuple[int, bytes]]] = {}

    def do_GET(self) -> None:
        status, body = self.pages.get(self.path, (404, b""))
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/keys")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def site() -> Iterator[str]:
    _Pages.pages = {
        "/keys": (200, key_set(RSA)),
        "/moved": (302, b""),
        "/huge": (200, b" " * (DOCUMENT_MAX_BYTES + 1)),
        "/cut": (200, key_set(RSA)[:-1]),
    }
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Pages)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_keys_may_be_at_a_url(site: str) -> None:
    assert set(read_keys(read_document(f"{site}/keys"))) == {"rsa-1"}


@pytest.mark.parametrize(
    ("path", "text"),
    [("/none", "404"), ("/moved", "302"), ("/huge", "larger than"), ("/cut", "not a JWK Set")],
)
def test_a_reply_that_is_not_the_document_is_refused(site: str, path: str, text: str) -> None:
    """A place that sends elsewhere too: the operator named one to trust."""
    with pytest.raises(KeysUnreadable, match=text):
        read_keys(read_document(site + path))


def test_a_site_that_is_not_there_is_named() -> None:
    with pytest.raises(KeysUnreadable, match=r"http://127\.0\.0\.1:9/keys: .*refused"):
        read_document("http://127.0.0.1:9/keys")


# -- in the background -----------------------------------------------------------------------


class Source:
    """Where keys come from: answers when it is told to."""

    def __init__(self, *answers: bytes | Exception) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.go = threading.Event()
        self.go.set()

    def __call__(self, source: str) -> bytes:
        self.asked += 1
        assert self.go.wait(10)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.001)


async def test_the_keys_are_fetched_when_it_starts_and_kept() -> None:
    source = Source(key_set(RSA))
    keys = SigningKeys("https://keys", lambda: T0, source)
    assert not keys.loaded and keys.find("rsa-1") is None
    keys.open()
    await until(lambda: keys.loaded)
    assert keys.find("rsa-1") is not None and keys.find("x") is None
    keys.close()
    assert source.asked == 1


async def test_a_source_that_fails_is_asked_again_and_the_old_keys_serve_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jwks, "RETRY_AFTER_S", 0.0)
    monkeypatch.setattr(jwks, "RENEW_AFTER_S", 0.0)
    gone = KeysUnreadable("unreachable")
    # The first stays: nobody can say when a look comes between two fetches.
    both = key_set(RSA, EC)
    source = Source(gone, b"nonsense", key_set(RSA), gone, both, *[gone] * 100_000)
    keys = SigningKeys("https://keys", lambda: T0, source)
    keys.open()
    await until(lambda: keys.find("rsa-1") is not None)
    await until(lambda: keys.find("ec-1") is not None)
    keys.close()


async def test_whatever_goes_wrong_with_a_fetch_the_next_one_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jwks, "RETRY_AFTER_S", 0.0)
    keys = SigningKeys("https://keys", lambda: T0, Source(RuntimeError("no"), key_set(RSA)))
    keys.open()
    await until(lambda: keys.loaded)
    keys.close()


async def test_a_file_that_cannot_be_used_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text("{}")
    with pytest.raises(KeysUnreadable, match=r"keys\.json: the document is not a JWK Set"):
        SigningKeys(str(path), lambda: T0).open()
    path.write_bytes(key_set(RSA))
    keys = SigningKeys(str(path), lambda: T0)
    keys.open()
    assert keys.loaded
    keys.close()


async def test_tokens_with_unknown_keys_cause_one_fetch_and_then_a_pause() -> None:
    now = T0
    source = Source(key_set(RSA), key_set(RSA, EC), key_set(RSA))
    keys = SigningKeys("https://keys", lambda: now, source)
    source.go.clear()
    told: list[int] = []
    for number in range(WAITING_MAX):
        assert keys.want(lambda number=number: told.append(number))  # type: ignore[misc]
    # no more wait than may
    assert not keys.want(lambda: told.append(-1))
    source.go.set()
    await until(lambda: len(told) == WAITING_MAX)
    assert source.asked == 1 and keys.find("rsa-1") is not None

    now = T0 + PAUSE_MS - 1
    assert not keys.want(lambda: told.append(-2))
    now = T0 + PAUSE_MS
    assert keys.want(lambda: told.append(0))
    await until(lambda: keys.find("ec-1") is not None)
    assert source.asked == 2 and -1 not in told and -2 not in told
    keys.close()


async def test_who_waits_is_told_also_when_the_fetch_fails_and_when_the_server_stops() -> None:
    source = Source(KeysUnreadable("unreachable"), key_set(RSA))
    now = T0
    keys = SigningKeys("https://keys", lambda: now, source)
    told: list[str] = []
    assert keys.want(lambda: told.append("failed"))
    await until(lambda: told == ["failed"])
    now = T0 + PAUSE_MS
    source.go.clear()
    assert keys.want(lambda: told.append("closed"))
    await asyncio.sleep(0)
    keys.close()
    await until(lambda: told == ["failed", "closed"])
    assert not keys.want(lambda: told.append("too late"))
    source.go.set()
