"""The public keys that a token issuer signs with: fetched ahead, kept, and renewed regularly.

Verifying a token never waits for the network by itself. A token that names an unknown key may cause
one fetch for all waiting tokens. The next such fetch comes only after a pause. Otherwise a client
that invents key names could make this server call the issuer at will.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from joserfc.errors import JoseError
from joserfc.jwk import ECKey, JWKRegistry, RSAKey

from postbus.auth.namespace_key import KeyFileError
from postbus.model.times import Instant
from postbus.observe.logs import get_logger

SigningKey = RSAKey | ECKey

DOCUMENT_MAX_BYTES: Final = 256 * 1024
KEYS_MAX: Final = 100
RSA_BITS_MIN: Final = 2_048
FETCH_TIMEOUT_S: Final = 10.0
RENEW_AFTER_S: Final = 3_600.0
RETRY_AFTER_S: Final = 30.0
PAUSE_MS: Final = 30_000
"""The pause between two fetches that tokens caused."""
WAITING_MAX: Final = 100
"""Tokens that may wait for one fetch; each can be as large as a request."""

_log = get_logger("jwks")


class KeysUnreadable(KeyFileError):
    """The document cannot be read, or holds no usable key."""


class SigningKeys:
    """The keys of one issuer, from a file or a URL."""

    def __init__(
        self,
        source: str,
        clock: Callable[[], Instant],
        read: Callable[[str], bytes] | None = None,
    ) -> None:
        self._source = source
        self._clock = clock
        self._read = read_document if read is None else read
        self._keys: dict[str | None, SigningKey] = {}
        self._fetching: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._waiting = 0
        self._pause_until: Instant = 0
        self._closed = False
        self.loaded = False
        """A document has been read; before that no token can be judged."""

    def find(self, kid: str | None) -> SigningKey | None:
        """The key of this name, or the key without a name.

        A token may leave the name out where there is only one key.
        """
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid) or self._keys.get(None)

    def open(self) -> None:
        """Begin to keep the keys up to date. Raises KeysUnreadable for an unusable file."""
        if not is_url(self._source):
            self.take(self._read(self._source))
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    def close(self) -> None:
        self._closed = True
        for task in (self._keeping, self._fetching):
            if task is not None:
                task.cancel()

    def want(self, then: Callable[[], None]) -> bool:
        """Fetch the keys once more, then call `then`; False: not now."""
        now = self._clock()
        pausing = self._fetching is None and now < self._pause_until
        if self._closed or pausing or self._waiting >= WAITING_MAX:
            return False
        if self._fetching is None:
            self._pause_until = now + PAUSE_MS
        self._waiting += 1
        self._start().add_done_callback(partial(self._tell, then))
        return True

    def _tell(self, then: Callable[[], None], fetching: asyncio.Task[None]) -> None:
        self._waiting -= 1
        then()

    async def _keep(self) -> None:
        pause_s = 0.0 if is_url(self._source) else RENEW_AFTER_S
        while True:
            await asyncio.sleep(pause_s)
            await asyncio.shield(self._start())
            pause_s = RENEW_AFTER_S if self.loaded else RETRY_AFTER_S

    def _start(self) -> asyncio.Task[None]:
        if self._fetching is None:
            self._fetching = asyncio.get_running_loop().create_task(self._fetch())
            self._fetching.add_done_callback(self._fetched)
        return self._fetching

    def _fetched(self, fetching: asyncio.Task[None]) -> None:
        self._fetching = None

    async def _fetch(self) -> None:
        try:
            # The call's own time-out does not include the look-up of the host name.
            async with asyncio.timeout(2 * FETCH_TIMEOUT_S):
                self.take(await _in_thread(partial(self._read, self._source)))
            _log.info("signing keys fetched", source=self._source, keys=len(self._keys))
        except (KeysUnreadable, TimeoutError) as error:
            # The earlier keys stay in use.
            _log.warning("signing keys not fetched", error=str(error))
        except Exception as error:
            # An unforeseen fault must not end the renewal: one day every token would be refused.
            _log.error("signing keys not fetched", source=self._source, exc_info=error)

    def take(self, document: bytes) -> None:
        """Replace the keys. Raises KeysUnreadable, and keeps the earlier keys then."""
        try:
            self._keys = read_keys(document)
        except KeysUnreadable as error:
            raise KeysUnreadable(f"{self._source}: {error}") from None
        self.loaded = True


def is_url(source: str) -> bool:
    return source.lower().startswith(("https://", "http://"))


def read_document(source: str) -> bytes:
    """The document at a path or a URL; this call blocks. Raises KeysUnreadable."""
    try:
        if not is_url(source):
            with Path(source).open("rb") as file:
                return _bounded(file.read)
        return _download(source)
    except (OSError, ValueError, HTTPException) as error:
        reason = error.reason if type(error) is URLError else error
        raise KeysUnreadable(f"{source}: {reason}") from error


def read_keys(document: bytes) -> dict[str | None, SigningKey]:
    """The usable keys of a JWK Set (RFC 7517 §5), by name.

    An unusable key is left out, as the RFC asks. Raises KeysUnreadable when no key is left.
    """
    try:
        content = json.loads(document)
        listed = content["keys"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise KeysUnreadable("the document is not a JWK Set") from None
    if not isinstance(listed, list):
        raise KeysUnreadable("the document is not a JWK Set")
    found: dict[str | None, SigningKey] = {}
    for each in listed[:KEYS_MAX]:
        key = _usable(each) if isinstance(each, dict) else None
        if key is not None:
            found[key.kid] = key
    if not found:
        raise KeysUnreadable("the document has no RSA or EC key to verify signatures with")
    return found


def _usable(jwk: Mapping[str, Any]) -> SigningKey | None:
    if jwk.get("use", "sig") != "sig" or not isinstance(jwk.get("kid"), str | None):
        return None
    # Its text is checked first: the library warns of a short key on standard error.
    if jwk.get("kty") == "RSA" and len(str(jwk.get("n"))) * 6 < RSA_BITS_MIN:
        return None
    try:
        key = JWKRegistry.import_key(dict(jwk))
        if isinstance(key, RSAKey):
            return key if key.raw_value.key_size >= RSA_BITS_MIN else None
        # Loaded here, so that a point off the curve is found now.
        return key if isinstance(key, ECKey) and key.curve_name == "P-256" else None
    except (JoseError, ValueError, TypeError, KeyError, AttributeError):
        return None


class _NoRedirect(HTTPRedirectHandler):
    """The operator trusts one site, and that site cannot redirect to another."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> Request | None:
        return None


def _download(url: str) -> bytes:
    deadline = time.monotonic() + FETCH_TIMEOUT_S
    request = Request(url, headers={"Accept": "application/json", "User-Agent": "postbus"})
    with build_opener(_NoRedirect).open(request, timeout=FETCH_TIMEOUT_S) as reply:

        def read(count: int) -> bytes:
            pieces = b""
            while len(pieces) < count and (piece := reply.read1(count - len(pieces))):
                pieces += piece
                if time.monotonic() > deadline:
                    raise TimeoutError(f"took longer than {FETCH_TIMEOUT_S:.0f} s")
            return pieces

        return _bounded(read)


def _bounded(read: Callable[[int], bytes]) -> bytes:
    document = read(DOCUMENT_MAX_BYTES + 1)
    if len(document) > DOCUMENT_MAX_BYTES:
        raise ValueError(f"larger than the {DOCUMENT_MAX_BYTES} bytes allowed")
    return document


async def _in_thread(call: Callable[[], bytes]) -> bytes:
    """Run a blocking call in a thread that does not hold up the stop of the process."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bytes] = loop.create_future()

    def settle(result: bytes | None, error: Exception | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        elif result is not None:
            done.set_result(result)

    def run() -> None:
        result, fault = None, None
        try:
            result = call()
        except Exception as error:  # any fault must reach the waiting caller
            fault = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, fault)

    threading.Thread(target=run, name="jwks", daemon=True).start()
    return await done
