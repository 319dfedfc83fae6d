"""Certificate and key as files: read, matched and made ready to serve.

A module of its own, because its library takes a fifth of a second to import. A server without TLS
need not wait for it.
"""

import ssl
import stat
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from postbus.tls.certificates import Certificate, CertificateError, CertificateFiles

_FILE_BYTES_MAX: Final = 1_048_576
_UNREADABLE: Final = (
    ValueError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)


def load_certificate(files: CertificateFiles) -> Certificate:
    """Read both files and check that they fit together; raises CertificateError."""
    leaf = read_certificate(files.certificate)
    key = read_key(files.key)
    if key.public_key() != leaf.public_key():
        raise CertificateError(f"{files.key} is not the key of {files.certificate}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Otherwise a peer could ask for handshake after handshake, and we would do all the work.
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        context.load_cert_chain(files.certificate, files.key)
    except ssl.SSLError as error:
        raise CertificateError(f"{files.certificate} cannot be served: {error.reason}") from None
    except OSError as error:
        # The files existed a moment ago: both are being replaced right now.
        raise CertificateError(f"{files.certificate}, {files.key}: {error.strerror}") from error
    return Certificate(
        context, names_in(leaf), leaf.not_valid_after_utc, key_exposed=_is_exposed(files.key)
    )


def read_certificate(path: Path) -> x509.Certificate:
    """The first certificate in a file, which is the server's own."""
    try:
        leaf = x509.load_pem_x509_certificates(read_file(path))[0]
    except (ValueError, x509.InvalidVersion):
        raise CertificateError(f"{path} holds no certificate in PEM form") from None
    try:
        # The library decodes each part on demand. Decoding now refuses a bad part here, and not
        # later.
        _ = leaf.public_key(), leaf.not_valid_after_utc, leaf.subject, names_in(leaf)
    except _UNREADABLE as error:
        raise CertificateError(f"{path} holds a certificate that cannot be read: {error}") from None
    return leaf


def read_key(path: Path) -> PrivateKeyTypes:
    try:
        return load_pem_private_key(read_file(path), None)
    except TypeError:
        raise CertificateError(
            f"{path} is protected by a password, which nobody could type at a start"
        ) from None
    except UnsupportedAlgorithm as error:
        raise CertificateError(
            f"{path} holds a private key of a kind that is not supported: {error}"
        ) from None
    except ValueError:
        raise CertificateError(f"{path} holds no private key in PEM form") from None


def _is_exposed(key: Path) -> bool:
    try:
        return bool(key.stat().st_mode & stat.S_IROTH)
    except OSError as error:
        raise CertificateError(f"{key}: {error.strerror}") from error


def names_in(leaf: x509.Certificate) -> tuple[str, ...]:
    """The names and addresses that a certificate is for."""
    try:
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(one.value) for one in found if isinstance(one, (x509.DNSName, x509.IPAddress)))


def read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_FILE_BYTES_MAX)
    except OSError as error:
        raise CertificateError(f"{path}: {error.strerror}") from error
