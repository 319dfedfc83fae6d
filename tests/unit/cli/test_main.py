"""The command line, up to where the server takes over."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner, Result

from postbus.cli.main import app
from postbus.config.steps import Outcome, StepReport, Verb
from postbus.settings import MADE_CERTIFICATE, Settings, declared, flag_of


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("POSTBUS_"):
            monkeypatch.delenv(name)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Settings the server was started with, in place of a server."""
    calls: list[Settings] = []

    def run(settings: Settings) -> int:
        calls.append(settings)
        return 0

    stand_in = ModuleType("postbus.server")
    stand_in.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "postbus.server", stand_in)
    return calls


def postbus(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_serve_without_flags_starts_with_the_defaults(started: list[Settings]) -> None:
    assert postbus("serve").exit_code == 0
    assert started == [Settings.load()]
    assert started[0].model_fields_set == set()


def test_every_setting_has_a_flag_that_serve_understands(started: list[Settings]) -> None:
    given = {
        "allow_plaintext": True,
        "ephemeral": True,
        "data": Path("elsewhere"),
        "host": "::1",
        "namespace_name": "mine",
        "jwt_issuer": "https://login.example",
        "jwt_audience": "https://bus.example",
        "jwt_jwks": "keys.json",
        "jwt_roles_claim": "scp",
        "tls_certificate": Path("a.pem"),
        "tls_key": Path("a.key"),
        "log_level": "debug",
        "log_format": "json",
        "queue": ("orders", "bills"),
        "topic": ("news/audit",),
    }
    skipped = {"config"}
    arguments = ["serve"]
    for name, field in declared().items():
        if field.annotation is int:
            given[name] = 2_000 if name == "outgoing_unsettled_max" else field.get_default() + 1
        if name in skipped:
            continue
        if field.annotation is bool:
            arguments.append(flag_of(name))
        else:
            values = given[name] if isinstance(given[name], tuple) else (given[name],)
            for value in values:  # type: ignore[attr-defined]
                arguments += [flag_of(name), str(value)]

    result = postbus(*arguments)

    assert result.exit_code == 0, result.output
    for name, value in given.items():
        assert getattr(started[0], name) == value, name


def test_a_switch_can_be_turned_off_again(
    started: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTBUS_EPHEMERAL", "true")
    postbus("serve")
    postbus("serve", "--no-ephemeral")
    assert [settings.ephemeral for settings in started] == [True, False]


def test_a_wrong_setting_ends_with_status_2_and_names_it(started: list[Settings]) -> None:
    result = postbus("serve", "--port", "70000")
    assert result.exit_code == 2
    assert "postbus: --port: " in result.stderr
    assert started == []


def test_an_unknown_flag_is_an_error(started: list[Settings]) -> None:
    assert postbus("serve", "--prot", "1").exit_code == 2
    assert started == []


def test_a_variable_that_is_no_setting_is_warned_of(
    started: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTBUS_PROT", "1")
    result = postbus("serve")
    assert result.exit_code == 0
    assert "POSTBUS_PROT is set, but there is no such setting" in result.stderr
    assert len(started) == 1


def test_help_shows_each_flag_with_meaning_and_default() -> None:
    output = " ".join(postbus("serve", "--help").output.split())
    for name, field in declared().items():
        assert flag_of(name) in output
        assert f"{field.description}." in output
    assert "picks a free one. [5672]" in output


def test_settings_shows_the_values_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    output = postbus("settings", "--port", "6001").output
    assert len([line for line in output.splitlines() if line.startswith("--")]) == len(declared())
    assert "6001" in output
    assert "POSTBUS_WRITE_BUFFER_MAX_BYTES" in output


def test_a_reload_that_fails_half_way_shows_both_halves_and_ends_with_status_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps = tuple(StepReport(Verb.CREATE, "queue", name) for name in ("a", "b", "c"))
    outcome = Outcome(steps, done=1, error="No room for it.")
    asked: list[object] = []

    def ask_reload(folder: Path, **options: bool) -> Outcome:
        asked.append((folder, options))
        return outcome

    monkeypatch.setattr("postbus.ops.reload_request.ask_reload", ask_reload)
    result = postbus("reload", "--data", str(tmp_path), "--prune")
    assert asked == [(tmp_path, {"dry_run": False, "prune": True})]
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "+ create queue a",
        "not done: + create queue b",
        "not done: + create queue c",
        "1 of 3 steps are done.",
    ]
    assert result.stderr == "postbus: not carried out to the end: No room for it.\n"


def test_a_folder_that_is_none_cannot_be_exported(tmp_path: Path) -> None:
    result = postbus("export", "--data", str(tmp_path))
    assert result.exit_code == 1
    assert result.stderr == f"postbus: {tmp_path} is not a data folder\n"
    assert list(tmp_path.iterdir()) == []


def test_cert_makes_what_serve_looks_for_and_names_the_variables(tmp_path: Path) -> None:
    data = tmp_path / "data"
    result = postbus("cert", "--data", str(data), "--name", "bus.example", "--name", "10.0.0.7")
    assert result.exit_code == 0, result.output
    assert (data / MADE_CERTIFICATE).exists()
    assert "for localhost, 127.0.0.1, ::1, bus.example, 10.0.0.7" in result.output
    authority = data / "tls" / "ca.pem"
    for variable in ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"):
        assert f"export {variable}={authority}\n" in result.output
    assert f'connection_verify="{authority}"' in result.output
    assert f"postbus serve --data {data}" in result.output
    again = postbus("cert", "--data", str(data))
    assert again.output.count("kept, valid until") == 2


def test_cert_for_another_folder_says_how_to_serve_with_it(tmp_path: Path) -> None:
    result = postbus("cert", "--folder", str(tmp_path))
    assert f"--tls-certificate {tmp_path / 'server.pem'} --tls-key {tmp_path / 'server.key'}" in (
        result.output
    )


def test_cert_that_cannot_be_made_ends_with_status_1(tmp_path: Path) -> None:
    result = postbus("cert", "--folder", str(tmp_path), "--name", "not a name")
    assert result.exit_code == 1
    assert "postbus: 'not a name' is neither" in result.stderr


def test_version_is_the_packages() -> None:
    assert postbus("version").output == f"postbus {version('postbus')}\n"
