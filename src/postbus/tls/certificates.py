"""The certificate that TLS serves, and the context of the next handshake.

The server checks the files while it runs. A renewed or new certificate serves the next handshake.
An unusable certificate is reported, and the one before it stays in use.
"""

import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from postbus.observe.logs import get_logger
from postbus.settings import MADE_CERTIFICATE, Settings

LOOK_AGAIN_S: Final = 1.0
EXPIRES_SOON_DAYS: Final = 30

_log = get_logger("tls")


class CertificateError(Exception):
    """Certificate and key cannot be used; the text names the file."""


class CertificateFiles(NamedTuple):
    certificate: Path
    key: Path
    required: bool = True
    """Named by a setting, so the server must not go on without them."""


class Certificate(NamedTuple):
    """A certificate that TLS can serve."""

    context: ssl.SSLContext
    names: tuple[str, ...]
    until: datetime
    key_exposed: bool
    """Everybody on the machine can read its key."""

    def days_left(self) -> int:
        return (self.until - datetime.now(UTC)).days


def certificate_files(settings: Settings) -> CertificateFiles | None:
    """The paths of certificate and key."""
    if settings.tls_certificate is not None and settings.tls_key is not None:
        return CertificateFiles(settings.tls_certificate, settings.tls_key)
    if settings.ephemeral:
        return None
    made = settings.data / MADE_CERTIFICATE
    return CertificateFiles(made, made.with_suffix(".key"), required=False)


class Certificates:
    """The certificate in use."""

    def __init__(
        self,
        files: CertificateFiles | None,
        changed: Callable[[Certificate], None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`changed` is called with each certificate that comes into use."""
        self._files = files
        self._changed = changed
        self._monotonic = monotonic
        self._current: Certificate | None = None
        self._seen: tuple[object, ...] | None = None
        self._looked_at = float("-inf")

    def start(self) -> None:
        """Load the files; raises CertificateError where they cannot be used."""
        if self._files is not None:
            self._looked_at = self._monotonic()
            self._seen = _marks(self._files)
            if self._seen is not None or self._files.required:
                self._take(self._files)

    def names(self) -> tuple[str, ...]:
        """The names of this machine in the current certificate, in lower case."""
        if self._current is None:
            return ()
        return tuple(name.lower() for name in self._current.names)

    def context(self) -> ssl.SSLContext | None:
        """The context for a new handshake; None without a certificate."""
        now = self._monotonic()
        if self._files is not None and now - self._looked_at >= LOOK_AGAIN_S:
            self._looked_at = now
            marks = _marks(self._files)
            if marks != self._seen:
                self._seen = marks
                self._renew(self._files)
        return None if self._current is None else self._current.context

    def _renew(self, files: CertificateFiles) -> None:
        try:
            self._take(files)
        except CertificateError as error:
            # Also between the writing of one file and of the other.
            _log.error("certificate not taken", error=str(error), kept=self._current is not None)

    def _take(self, files: CertificateFiles) -> None:
        from postbus.tls.pem import load_certificate  # noqa: PLC0415 - only with TLS, see there

        certificate = load_certificate(files)
        self._current = certificate
        if self._changed is not None:
            self._changed(certificate)
        facts = {
            "certificate": str(files.certificate),
            "names": ", ".join(certificate.names),
            "until": certificate.until.isoformat(),
        }
        _log.info("certificate in use", **facts)
        if certificate.days_left() < EXPIRES_SOON_DAYS:
            _log.warning("certificate expires soon", **facts)
        if certificate.key_exposed:
            _log.warning("key can be read by others", key=str(files.key))


def _marks(files: CertificateFiles) -> tuple[object, ...] | None:
    """The marks that change when a file changes; None where a file is missing."""
    try:
        found = [path.stat() for path in (files.certificate, files.key)]
    except OSError:
        return None
    return tuple((one.st_mtime_ns, one.st_size, one.st_ino) for one in found)
