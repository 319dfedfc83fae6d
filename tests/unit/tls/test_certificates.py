"""Which certificate is served, what is wrong with one that is not, and what a change does."""

from __future__ import annotations

import shutil
import ssl
from base64 import b64decode, encodebytes
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
)
from structlog.testing import capture_logs

from postbus.settings import Settings
from postbus.tls import local_ca
from postbus.tls.certificates import (
    Certificate,
    CertificateError,
    CertificateFiles,
    Certificates,
    certificate_files,
)
from postbus.tls.local_ca import make_certificate
from postbus.tls.pem import load_certificate


@pytest.fixture
def files(tls_folder: Path, tmp_path: Path) -> CertificateFiles:
    """Copies that a test may spoil."""
    for name in ("server.pem", "server.key"):
        shutil.copy2(tls_folder / name, tmp_path / name)
    return CertificateFiles(tmp_path / "server.pem", tmp_path / "server.key")


class Watched:
    """Certificates with a clock of the test's own."""

    def __init__(self, files: CertificateFiles | None) -> None:
        self.now = 100.0
        self.taken: list[Certificate] = []
        self.certificates = Certificates(files, self.taken.append, lambda: self.now)

    def later(self, seconds: float = 1.0) -> ssl.SSLContext | None:
        self.now += seconds
        return self.certificates.context()


# Where it is looked for


def test_the_setting_wins_over_what_was_made_in_the_data_folder(tmp_path: Path) -> None:
    made = certificate_files(Settings(data=tmp_path))
    assert made == (tmp_path / "tls/server.pem", tmp_path / "tls/server.key", False)
    mine = Settings(data=tmp_path, tls_certificate=Path("a.pem"), tls_key=Path("b.pem"))
    assert certificate_files(mine) == (Path("a.pem"), Path("b.pem"), True)


def test_a_namespace_in_memory_has_no_data_folder_to_look_in(tmp_path: Path) -> None:
    assert certificate_files(Settings(data=tmp_path, ephemeral=True)) is None
    Certificates(None).start()
    assert Certificates(None).context() is None


# What can be served


def test_a_certificate_says_whom_it_is_for_and_until_when(files: CertificateFiles) -> None:
    found = load_certificate(files)
    assert found.names == ("localhost", "127.0.0.1", "::1")
    assert found.until > datetime.now(UTC) + timedelta(days=800)
    assert found.days_left() in (823, 824)
    assert found.context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert not found.key_exposed


@pytest.mark.parametrize("which", ["certificate", "key"])
def test_a_file_that_is_missing_or_holds_something_else_is_named(
    files: CertificateFiles, which: str
) -> None:
    path: Path = getattr(files, which)
    for content in (b"", b"not PEM", b"-----BEGIN NOTHING-----\n-----END NOTHING-----\n"):
        path.write_bytes(content)
        with pytest.raises(CertificateError, match="PEM form") as caught:
            load_certificate(files)
        assert str(path) in str(caught.value)
    path.unlink()
    with pytest.raises(CertificateError, match="No such file") as caught:
        load_certificate(files)
    assert str(path) in str(caught.value)


_CURVE_KEY = bytes.fromhex("2a8648ce3d0201")
_NAMES, _CONSTRAINTS = bytes.fromhex("551d11"), bytes.fromhex("551d13")


def _spoil(path: Path, old: bytes, new: bytes) -> None:
    """Change the first thing in a PEM file, whatever that does to its signature."""
    first, *lines = path.read_text().splitlines()
    end = next(n for n, line in enumerate(lines) if line.startswith("-----END"))
    content = b64decode("".join(lines[:end]))
    assert old in content
    path.write_text(f"{first}\n{encodebytes(content.replace(old, new)).decode()}{lines[end]}\n")


def test_a_key_of_a_kind_that_nobody_knows_is_named(files: CertificateFiles) -> None:
    _spoil(files.key, _CURVE_KEY, _CURVE_KEY[:-1] + b"\x7f")
    with pytest.raises(CertificateError, match=r"server\.key holds a private key of a kind that"):
        load_certificate(files)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(_CURVE_KEY, _CURVE_KEY[:-1] + b"\x7f", id="a key of no known kind"),
        pytest.param(_CONSTRAINTS, _NAMES, id="an extension twice"),
        pytest.param(b"\x82\x09localhost", b"\x83\x09localhost", id="a name of no known kind"),
    ],
)
def test_a_certificate_that_cannot_be_read_to_its_end_is_named(
    files: CertificateFiles, old: bytes, new: bytes
) -> None:
    _spoil(files.certificate, old, new)
    with pytest.raises(CertificateError, match=r"server\.pem holds a certificate that cannot be"):
        load_certificate(files)


@pytest.mark.parametrize("fails", [True, False])
def test_a_file_that_vanishes_while_it_is_read_is_named(
    files: CertificateFiles, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Handshakes begin while somebody renews it: the old certificate must serve on."""

    def vanish(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
        key.unlink()
        if fails:
            raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", vanish)
    with pytest.raises(CertificateError, match=r"server\.key: No such file"):
        load_certificate(files)


def test_the_key_of_another_certificate_is_refused(files: CertificateFiles, tmp_path: Path) -> None:
    make_certificate(tmp_path / "other", [])
    other = files._replace(key=tmp_path / "other" / "server.key")
    with pytest.raises(CertificateError, match="is not the key of"):
        load_certificate(other)


def test_a_key_with_a_password_is_refused_instead_of_asked_for(files: CertificateFiles) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    files.key.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    )
    with pytest.raises(CertificateError, match="protected by a password"):
        load_certificate(files)


def test_a_key_that_everybody_can_read_is_warned_of(files: CertificateFiles) -> None:
    files.key.chmod(0o644)
    with capture_logs() as lines:
        Certificates(files).start()
    assert "key can be read by others" in [line["event"] for line in lines]


def test_a_certificate_that_expires_soon_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_ca, "_CERTIFICATE_DAYS", 10)
    make_certificate(tmp_path, [])
    with capture_logs() as lines:
        Certificates(CertificateFiles(tmp_path / "server.pem", tmp_path / "server.key")).start()
    assert [line["event"] for line in lines] == ["certificate in use", "certificate expires soon"]


# Starting, and changes while it runs


def test_a_start_fails_without_a_certificate_that_was_asked_for(tmp_path: Path) -> None:
    files = CertificateFiles(tmp_path / "none.pem", tmp_path / "none.key")
    with pytest.raises(CertificateError, match=r"none\.pem: No such file"):
        Certificates(files).start()
    Certificates(files._replace(required=False)).start()


def test_one_in_the_data_folder_that_cannot_be_used_is_no_reason_to_go_on_without(
    files: CertificateFiles,
) -> None:
    files.key.write_bytes(b"spoilt")
    with pytest.raises(CertificateError, match="PEM form"):
        Certificates(files._replace(required=False)).start()


def test_a_renewed_certificate_is_used_from_the_next_handshake_on(tmp_path: Path) -> None:
    make_certificate(tmp_path, [])
    watched = Watched(CertificateFiles(tmp_path / "server.pem", tmp_path / "server.key"))
    watched.certificates.start()
    first = watched.later()
    assert first is not None and watched.later() is first
    make_certificate(tmp_path, ["bus.example"])
    assert watched.later(0.5) is first, "the files are looked at once a second"
    assert watched.later(0.5) is not first
    assert [one.names[3:] for one in watched.taken] == [(), ("bus.example",)]


def test_the_first_certificate_may_come_while_the_server_runs(tmp_path: Path) -> None:
    files = CertificateFiles(tmp_path / "server.pem", tmp_path / "server.key", required=False)
    watched = Watched(files)
    watched.certificates.start()
    assert watched.later() is None
    make_certificate(tmp_path, [])
    assert watched.later() is not None


def test_a_certificate_that_became_unusable_is_reported_once_and_the_old_one_kept(
    files: CertificateFiles,
) -> None:
    watched = Watched(files)
    watched.certificates.start()
    first = watched.later()
    files.certificate.write_text("spoilt by an editor")
    with capture_logs() as lines:
        assert watched.later() is first
        assert watched.later() is first
    assert [(line["event"], line["kept"]) for line in lines] == [("certificate not taken", True)]
    files.certificate.unlink()
    with capture_logs() as lines:
        assert watched.later() is first
    assert "No such file" in lines[0]["error"]
