"""`postbus cert`: a CA once, certificates when they are needed, nothing when they are not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from postbus.tls import local_ca
from postbus.tls.certificates import CertificateError
from postbus.tls.local_ca import make_certificate, told
from postbus.tls.pem import read_certificate

NAMES = ("localhost", "127.0.0.1", "::1")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_first_run_makes_everything_and_the_second_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "tls"
    first = make_certificate(folder, [])
    assert (first.new_ca, first.new_certificate, first.ca_replaced) == (True, True, False)
    assert first.names == NAMES
    before = contents(folder)
    assert set(before) == {"ca.pem", "ca.key", "server.pem", "server.key"}
    second = make_certificate(folder, [])
    assert (second.new_ca, second.new_certificate) == (False, False)
    assert contents(folder) == before


def test_keys_are_their_owners_and_so_is_a_data_folder_made_on_the_way(tmp_path: Path) -> None:
    make_certificate(tmp_path / "data" / "tls", [])
    for name, mode in {
        "data": 0o700,
        "data/tls": 0o700,
        "data/tls/ca.key": 0o600,
        "data/tls/server.key": 0o600,
    }.items():
        assert (tmp_path / name).stat().st_mode & 0o777 == mode, name


def test_the_certificate_is_what_strict_clients_want(tmp_path: Path) -> None:
    make_certificate(tmp_path, [])
    ca, leaf = (read_certificate(tmp_path / name) for name in ("ca.pem", "server.pem"))
    leaf.verify_directly_issued_by(ca)
    constraints = ca.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical and constraints.value.ca and constraints.value.path_length == 0
    usage = ca.extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical and usage.value.key_cert_sign and not usage.value.digital_signature
    purposes = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(purposes) == [ExtendedKeyUsageOID.SERVER_AUTH]
    issued_by = leaf.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    own = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    assert issued_by.key_identifier == own.digest
    now = datetime.now(UTC)
    assert leaf.not_valid_before_utc < now < leaf.not_valid_after_utc < ca.not_valid_after_utc
    assert leaf.not_valid_after_utc - leaf.not_valid_before_utc <= timedelta(days=825)


def test_a_new_name_makes_a_new_certificate_with_the_names_before_it(tmp_path: Path) -> None:
    make_certificate(tmp_path, ["bus.example"])
    authority = (tmp_path / "ca.pem").read_bytes()
    more = make_certificate(tmp_path, ["10.0.0.7", "*.Bus.example"])
    assert more.new_certificate and not more.new_ca
    assert more.names == (*NAMES, "bus.example", "10.0.0.7", "*.bus.example")
    assert (tmp_path / "ca.pem").read_bytes() == authority
    again = make_certificate(tmp_path, ["BUS.EXAMPLE", "*.bus.example"])
    assert not again.new_certificate


def test_renewing_makes_a_new_certificate_under_the_same_ca(tmp_path: Path) -> None:
    first = make_certificate(tmp_path, ["bus.example"])
    before = contents(tmp_path)
    second = make_certificate(tmp_path, [], renew=True)
    after = contents(tmp_path)
    assert second.names == first.names
    assert {name for name in before if before[name] != after[name]} == {"server.pem", "server.key"}


def test_a_certificate_with_little_time_left_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_ca, "_CERTIFICATE_DAYS", 29)
    make_certificate(tmp_path, [])
    monkeypatch.undo()
    made = make_certificate(tmp_path, [])
    assert made.new_certificate and not made.new_ca


def test_a_ca_with_little_time_left_is_replaced_and_the_user_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_ca, "_CA_DAYS", 29)
    make_certificate(tmp_path, ["bus.example"])
    monkeypatch.undo()
    made = make_certificate(tmp_path, [])
    assert made.ca_replaced and made.new_certificate
    assert made.names == (*NAMES, "bus.example")
    assert "every client has to be given this one" in told(made, None)
    read_certificate(tmp_path / "server.pem").verify_directly_issued_by(
        read_certificate(tmp_path / "ca.pem")
    )


@pytest.mark.parametrize(
    "name", ["", "a b", "-x-.", "http://bus", "bus:5672", "ü.example", "a..b", "x" * 254, "*"]
)
def test_what_is_no_name_is_refused_and_nothing_made(tmp_path: Path, name: str) -> None:
    with pytest.raises(CertificateError, match="neither a host name nor an address"):
        make_certificate(tmp_path / "tls", [name])
    assert not (tmp_path / "tls").exists()


def test_half_a_ca_is_refused_and_the_missing_half_named(tmp_path: Path) -> None:
    make_certificate(tmp_path, [])
    (tmp_path / "ca.key").unlink()
    with pytest.raises(CertificateError, match=r"ca\.key is missing, but .*ca\.pem is there"):
        make_certificate(tmp_path, [])


def test_a_ca_whose_key_is_not_its_own_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_certificate(tmp_path / name, [])
    (tmp_path / "one" / "ca.key").write_bytes((tmp_path / "two" / "ca.key").read_bytes())
    with pytest.raises(CertificateError, match="is not the key of"):
        make_certificate(tmp_path / "one", [])
    (tmp_path / "one" / "ca.key").write_text("nonsense")
    with pytest.raises(CertificateError, match="PEM form"):
        make_certificate(tmp_path / "one", [])


def test_a_certificate_from_elsewhere_is_not_overwritten(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_certificate(tmp_path / name, [])
    foreign = (tmp_path / "two" / "server.pem").read_bytes()
    (tmp_path / "one" / "server.pem").write_bytes(foreign)
    with pytest.raises(CertificateError, match="is not signed by"):
        make_certificate(tmp_path / "one", [], renew=True)
    assert (tmp_path / "one" / "server.pem").read_bytes() == foreign


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CertificateError, match="file"):
        make_certificate(tmp_path / "file" / "tls", [])
