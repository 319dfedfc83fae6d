"""Certificate and key as files: read, matched and made ready to serve.

On its own because the library behind it takes a fifth of a second to import, which a server
without TLS need not wait for.
"""

import ssl
import stat
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from postbus.server.certificates import Certificate, CertificateError, CertificateFiles

_FILE_BYTES_MAX: Final = 1_048_576


def load_certificate(files: CertificateFiles) -> Certificate:
    """Read both files and see that they fit together; raises CertificateError."""
    leaf = read_certificate(files.certificate)
    try:
        key = load_pem_private_key(read_file(files.key), None)
    except TypeError:
        raise CertificateError(
            f"{files.key} is protected by a password, which nobody could type at a start"
        ) from None
    except ValueError:
        raise CertificateError(f"{files.key} holds no private key in PEM form") from None
    if key.public_key() != leaf.public_key():
        raise CertificateError(f"{files.key} is not the key of {files.certificate}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A peer that asks for handshake after handshake would have us do all the work.
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        context.load_cert_chain(files.certificate, files.key)
    except ssl.SSLError as error:
        raise CertificateError(f"{files.certificate} cannot be served: {error.reason}") from None
    except OSError as error:
        # It was there a moment ago: both files are being replaced right now.
        raise CertificateError(f"{files.certificate}, {files.key}: {error.strerror}") from error
    return Certificate(
        context, names_in(leaf), leaf.not_valid_after_utc, key_exposed=_is_exposed(files.key)
    )


def read_certificate(path: Path) -> x509.Certificate:
    """The first certificate in a file, which is the one it is about."""
    try:
        return x509.load_pem_x509_certificates(read_file(path))[0]
    except ValueError:
        raise CertificateError(f"{path} holds no certificate in PEM form") from None


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
