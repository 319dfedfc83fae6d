"""What `postbus doctor` sees, and what it complains about."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import postbus.broker.queue
from postbus.ops import doctor
from postbus.ops.doctor import Finding, examine
from postbus.settings import Settings
from postbus.tls import local_ca
from postbus.tls.local_ca import make_certificate


def found(settings: Settings) -> dict[str, Finding]:
    return {finding.name: finding for finding in examine(settings)}


def test_it_says_which_code_runs(tmp_path: Path) -> None:
    compiled = not str(postbus.broker.queue.__file__).endswith(".py")
    fact = found(Settings(data=tmp_path))["hot modules"].fact
    assert fact.startswith("compiled, ") if compiled else fact == "interpreted"
    assert ("postbus.broker.queue" in doctor.compiled_modules()) is compiled


def test_a_sound_machine_gives_no_trouble(tmp_path: Path) -> None:
    findings = found(Settings(data=tmp_path / "new", connections_max=10))
    troubles = {name: one.trouble for name, one in findings.items() if one.trouble}
    assert set(troubles) <= {"free space", "sync"}, "which are the machine's own"
    assert "not made yet" in findings["data"].fact
    assert "ms for 4096 bytes" in findings["sync"].fact
    assert not (tmp_path / "new").exists(), "it only looks"


def test_too_few_open_files_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, 4_096))
    finding = found(Settings(data=tmp_path, connections_max=5_000))["open files"]
    assert finding.fact.startswith("4096 allowed, 5256 wanted")
    assert "ulimit -n" in finding.trouble


def test_a_folder_that_cannot_be_written_to_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    findings = found(Settings(data=tmp_path / "file" / "data"))
    assert "is not a folder that can be written to" in findings["data"].trouble
    assert "sync" not in findings


def test_a_slow_disk_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "SYNC_SLOW_MS", 0.0)
    assert "faster disk" in found(Settings(data=tmp_path))["sync"].trouble


def test_nothing_is_said_of_a_disk_that_is_not_used() -> None:
    assert "data" not in found(Settings(ephemeral=True))


def test_it_says_whether_tls_is_on_by_which_certificate_and_until_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(data=tmp_path)
    off = found(settings)["tls"]
    assert off.fact.startswith("off") and not off.trouble
    make_certificate(tmp_path / "tls", [])
    on = found(settings)["tls"]
    assert str(tmp_path / "tls" / "server.pem") in on.fact
    assert "valid until 20" in on.fact and "for localhost, 127.0.0.1, ::1" in on.fact
    assert not on.trouble
    (tmp_path / "tls" / "server.key").chmod(0o644)
    assert "chmod 600" in found(settings)["tls"].trouble
    monkeypatch.setattr(local_ca, "_CERTIFICATE_DAYS", 20)
    make_certificate(tmp_path / "tls", [], renew=True)
    assert "expires in 19 days" in found(settings)["tls"].trouble
    monkeypatch.setattr(local_ca, "_CERTIFICATE_DAYS", 0.01)
    make_certificate(tmp_path / "tls", [], renew=True)
    assert "has expired" in found(settings)["tls"].trouble


def test_a_certificate_that_cannot_be_served_is_reported(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path, tls_certificate=tmp_path / "no.pem", tls_key=tmp_path / "no")
    assert "no.pem: No such file" in found(settings)["tls"].trouble


def test_the_command_prints_each_finding_and_fails_on_trouble(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("postbus")), "doctor", "--data"]
    (tmp_path / "file").touch()
    bad = subprocess.run(
        [*command, str(tmp_path / "file" / "data")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert bad.returncode == 1
    assert "hot modules" in bad.stdout and "cannot" not in bad.stderr
    assert "is not a folder that can be written to" in bad.stdout
