"""A private certificate authority, for machines that no public authority would vouch for.

Clients trust the authority once; its certificates come and go. A second run changes nothing while
the certificate still covers the names and has time left.
"""

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from socket import gethostname
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from postbus.settings import MADE_CERTIFICATE
from postbus.tls.certificates import EXPIRES_SOON_DAYS, CertificateError
from postbus.tls.pem import names_in, read_certificate, read_key

CA_CERTIFICATE: Final = "ca.pem"
CA_KEY: Final = "ca.key"
CERTIFICATE: Final = MADE_CERTIFICATE.name
KEY: Final = MADE_CERTIFICATE.with_suffix(".key").name
ALWAYS_NAMED: Final = ("localhost", "127.0.0.1", "::1")

_CA_DAYS: Final = 3_650
# The longest that Apple's systems accept from an authority that their owner has added.
_CERTIFICATE_DAYS: Final = 825
# Clocks differ: for the first client the certificate must not start in the future.
_BACKDATED: Final = timedelta(hours=1)
_NAME_LENGTH_MAX: Final = 253

_Key = ec.EllipticCurvePrivateKey


class NewCertificate(NamedTuple):
    """The files, and which of them are new."""

    folder: Path
    names: tuple[str, ...]
    ca_until: datetime
    until: datetime
    new_ca: bool
    new_certificate: bool
    ca_replaced: bool
    """There was an older CA, which clients still trust."""


def make_certificate(folder: Path, names: list[str], *, renew: bool = False) -> NewCertificate:
    """Make a CA and a certificate for these names in the folder; raises CertificateError.

    An existing certificate keeps its names. `renew` always makes a new certificate, but never a new
    CA. A new CA is made only when the old one expires soon, because every client must be told.
    """
    given = [str(_general_name(name).value) for name in names]
    had_ca = (folder / CA_CERTIFICATE).exists()
    try:
        for place in (folder.parent, folder):
            if not place.is_dir():
                place.mkdir(mode=0o700, parents=True)
        authority, secret, new_ca = _authority(folder)
        old = _certificate_there(folder, authority if not new_ca else None)
        had = () if old is None else names_in(old)
        wanted = dict.fromkeys((*ALWAYS_NAMED, *had, *given))
        enough = set(had) >= set(wanted) and not (renew or new_ca)
        if old is not None and enough and _lasts(old):
            leaf = old
        else:
            leaf = _issue(folder, authority, secret, tuple(wanted))
    except OSError as error:
        raise CertificateError(f"{error.filename or folder}: {error.strerror}") from error
    return NewCertificate(
        folder,
        names_in(leaf),
        authority.not_valid_after_utc,
        leaf.not_valid_after_utc,
        new_ca,
        leaf is not old,
        ca_replaced=had_ca and new_ca,
    )


def _authority(folder: Path) -> tuple[x509.Certificate, _Key, bool]:
    """The CA, its key, and whether it is new."""
    certificate_path, key_path = folder / CA_CERTIFICATE, folder / CA_KEY
    if certificate_path.exists() != key_path.exists():
        here, gone = sorted((certificate_path, key_path), key=Path.exists, reverse=True)
        raise CertificateError(
            f"{gone} is missing, but {here} is there: restore it, or remove both"
        )
    if certificate_path.exists():
        authority = read_certificate(certificate_path)
        secret = read_key(key_path)
        if not isinstance(secret, _Key) or secret.public_key() != authority.public_key():
            raise CertificateError(f"{key_path} is not the key of {certificate_path}")
        if _lasts(authority):
            return authority, secret, False
    secret = ec.generate_private_key(ec.SECP256R1())
    authority = _sign_authority(secret)
    _write(key_path, _secret_bytes(secret), 0o600)
    _write(certificate_path, authority.public_bytes(serialization.Encoding.PEM), 0o644)
    return authority, secret, True


def _sign_authority(secret: _Key) -> x509.Certificate:
    name = _distinguished(f"Postbus local CA of {gethostname()}")
    public = secret.public_key()
    usage = dict.fromkeys(_KEY_USAGES, False) | {"key_cert_sign": True, "crl_sign": True}
    return (
        _builder(name, name, public, _CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(secret, hashes.SHA256())
    )


def _certificate_there(folder: Path, authority: x509.Certificate | None) -> x509.Certificate | None:
    """The certificate in the folder, which must come from this CA."""
    path = folder / CERTIFICATE
    if not path.exists():
        return None
    old = read_certificate(path)
    if authority is not None:
        try:
            old.verify_directly_issued_by(authority)
        except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError):
            raise CertificateError(
                f"{path} is not signed by {folder / CA_CERTIFICATE}: move it away, or use it by "
                "--tls-certificate"
            ) from None
    return old


def _issue(
    folder: Path, authority: x509.Certificate, secret: _Key, names: tuple[str, ...]
) -> x509.Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    public, issuer = key.public_key(), secret.public_key()
    usage = dict.fromkeys(_KEY_USAGES, False) | {"digital_signature": True}
    leaf = (
        _builder(_distinguished(names[0]), authority.subject, public, _CERTIFICATE_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False)
        .sign(secret, hashes.SHA256())
    )
    _write(folder / KEY, _secret_bytes(key), 0o600)
    _write(folder / CERTIFICATE, leaf.public_bytes(serialization.Encoding.PEM), 0o644)
    return leaf


_KEY_USAGES: Final = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=public,
        serial_number=x509.random_serial_number(),
        not_valid_before=now - _BACKDATED,
        not_valid_after=now - _BACKDATED + timedelta(days=days),
    )


def _distinguished(name: str) -> x509.Name:
    # X.520 gives a common name 64 characters; clients check the alternative names.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        pass
    labels = name.removeprefix("*.").split(".")
    plain = all(label and label.replace("-", "").isalnum() for label in labels)
    if not (plain and name.isascii() and len(name) <= _NAME_LENGTH_MAX):
        raise CertificateError(f"{name!r} is neither a host name nor an address")
    return x509.DNSName(name.lower())


def _lasts(certificate: x509.Certificate) -> bool:
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    return left > timedelta(days=EXPIRES_SOON_DAYS)


def _secret_bytes(secret: _Key) -> bytes:
    return secret.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write aside and move into place, so that a server never reads half a file."""
    draft = path.with_name(path.name + ".draft")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def told(made: NewCertificate, data: Path | None) -> str:
    """The report of `postbus cert`: the files, and the settings that make clients trust the CA.

    `data` is the data folder, if the files are in one. docs/transports.md says the same at length;
    tests/e2e/test_transports.py follows it.
    """
    return "\n".join((*_files(made), "", *_serving(made, data), "", *_clients(made)))


def _files(made: NewCertificate) -> Iterator[str]:
    folder = made.folder.absolute()
    yield f"CA           {folder / CA_CERTIFICATE}"
    yield f"             {_state(made.new_ca)}, valid until {made.ca_until:%Y-%m-%d}"
    yield f"certificate  {folder / CERTIFICATE}"
    yield f"             {_state(made.new_certificate)}, valid until {made.until:%Y-%m-%d}"
    yield f"             for {', '.join(made.names)}"
    if made.ca_replaced:
        yield "The CA before it had too little time left: every client has to be given this one."


def _state(new: bool) -> str:
    return "made just now" if new else "kept"


def _serving(made: NewCertificate, data: Path | None) -> Iterator[str]:
    folder = made.folder.absolute()
    if data is not None:
        yield f"`postbus serve --data {data}` uses it; a server that is running does so by itself."
    else:
        yield "Serve with it:"
        yield (f"  postbus serve --tls-certificate {folder / CERTIFICATE} --tls-key {folder / KEY}")


def _clients(made: NewCertificate) -> Iterator[str]:
    authority = made.folder.absolute() / CA_CERTIFICATE
    yield "Clients have to trust the CA. Python, messages: an argument of ServiceBusClient"
    yield f'  connection_verify="{authority}"'
    yield "Python, administration (the first for the sync client, the second for the async one):"
    yield f"  export REQUESTS_CA_BUNDLE={authority}"
    yield f"  export SSL_CERT_FILE={authority}"
    yield "Node:"
    yield f"  export NODE_EXTRA_CA_CERTS={authority}"
    yield "Go, and .NET on Linux:"
    yield f"  export SSL_CERT_FILE={authority}"
    yield "Java:"
    yield f"  keytool -importcert -noprompt -alias postbus -file {authority} \\"
    yield "    -keystore postbus-trust.p12 -storepass changeit"
    yield (
        "  java -Djavax.net.ssl.trustStore=postbus-trust.p12 "
        "-Djavax.net.ssl.trustStorePassword=changeit …"
    )
