"""The key that opens the namespace, and the connection string that carries it.

On loopback it is the well-known key of Microsoft's emulator, so that a connection string copied
from anywhere works. On any other address that key is not valid, because everybody knows it. There a
random key is made, kept in a file that only its owner can read, and shown once. A second line of
that file is a second key, for clients that still use an older one.
"""

import base64
import os
import secrets
import socket
from pathlib import Path
from typing import Final, NamedTuple

from postbus.settings import Settings

KEY_NAME: Final = "RootManageSharedAccessKey"
WELL_KNOWN_KEY: Final = "SAS_KEY_VALUE"
KEY_FILE: Final = "namespace.key"

_RANDOM_BYTES = 32
_KEY_LENGTH_MAX = 512
_KEYS_MAX = 2
_OTHERS = 0o077


class KeyFileError(Exception):
    """The key file cannot be used; the text says what to do."""


class NamespaceKey(NamedTuple):
    name: str
    value: str
    fresh: bool
    """Made just now: only this start shows it."""
    secondary: str = ""
    """As good as the first; empty where there is no second key."""


def choose_key(settings: Settings) -> NamespaceKey:
    """The key that opens this process's namespace. Call it while the data folder is locked."""
    if settings.on_loopback:
        return NamespaceKey(KEY_NAME, WELL_KNOWN_KEY, fresh=False)
    if settings.ephemeral:
        return NamespaceKey(KEY_NAME, _random_key(), fresh=True)
    return _kept_key(settings.data / KEY_FILE)


def connection_string(
    host: str, port: int, key: NamespaceKey, *, hidden: bool = False, encrypted: bool = False
) -> str:
    """The connection string for clients; with `hidden`, without the key.

    With `encrypted` the SDKs use TLS: without it, the emulator's switch tells them not to.
    """
    value = "<see the key file>" if hidden else key.value
    switch = "" if encrypted else ";UseDevelopmentEmulator=true"
    return (
        f"Endpoint=sb://{_reachable(host)}:{port};SharedAccessKeyName={key.name};"
        f"SharedAccessKey={value}{switch}"
    )


def _reachable(host: str) -> str:
    """The name that clients use for an address we listen on."""
    if host in ("127.0.0.1", "::1", "localhost"):
        return "localhost"
    if host in ("0.0.0.0", "::", ""):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _kept_key(path: Path) -> NamespaceKey:
    if path.exists():
        value, secondary = _read_keys(path)
        return NamespaceKey(KEY_NAME, value, fresh=False, secondary=secondary)
    value = _random_key()
    # Written aside and moved into place: a crash leaves no key or a whole key.
    draft = path.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(value + "\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    return NamespaceKey(KEY_NAME, value, fresh=True)


def _read_keys(path: Path) -> tuple[str, str]:
    with path.open() as file:
        if os.fstat(file.fileno()).st_mode & _OTHERS:
            raise KeyFileError(f"{path} can be read by others: chmod 600 {path}")
        lines = file.read(2 * _KEY_LENGTH_MAX + 3).strip().splitlines()
    keys = [line.strip() for line in lines]
    if not 1 <= len(keys) <= _KEYS_MAX or not all(map(_is_key, keys)):
        raise KeyFileError(
            f"{path} does not hold a key (one line, or two for two keys, of at most "
            f"{_KEY_LENGTH_MAX} characters): delete it and a new one is made"
        )
    return keys[0], keys[1] if len(keys) > 1 else ""


def _is_key(text: str) -> bool:
    return 0 < len(text) <= _KEY_LENGTH_MAX and text.isprintable()


def new_access_key() -> str:
    """A key for an authorization rule, as Azure makes them: 44 characters of base64."""
    return base64.b64encode(secrets.token_bytes(_RANDOM_BYTES)).decode()


def _random_key() -> str:
    return secrets.token_urlsafe(_RANDOM_BYTES)
