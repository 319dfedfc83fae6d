"""A setting has one declaration and four ways in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from postbus.model.limits import LOCK_DURATION_MAX_MS, LOCK_DURATION_MIN_MS
from postbus.settings import (
    MADE_CERTIFICATE,
    Settings,
    SettingsError,
    declared,
    flag_of,
    is_loopback,
    unknown_variables,
    variable_of,
)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("POSTBUS_"):
            monkeypatch.delenv(name)


def toml(folder: Path, text: str) -> Path:
    path = folder / "postbus.toml"
    path.write_text(text)
    return path


def problems(**flags: object) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        Settings.load(flags)
    return caught.value.problems


def test_the_defaults_are_those_of_the_emulator_and_the_founding_documents() -> None:
    settings = Settings.load()
    assert (settings.host, settings.port, settings.admin_port) == ("127.0.0.1", 5672, 5300)
    assert settings.data == Path("postbus-data")
    assert settings.namespace_name == "sbemulatorns"
    assert settings.default_lock_duration_ms == 30_000
    assert settings.message_size_max_kb == 256
    assert (settings.retention_hours, settings.retention_mb) == (24, 1_024)


def test_the_flag_wins_over_the_variable_and_the_variable_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = toml(tmp_path, '[settings]\nport = 1001\nlog_level = "error"\nentities_max = 7\n')
    monkeypatch.setenv("POSTBUS_PORT", "1002")
    monkeypatch.setenv("POSTBUS_LOG_LEVEL", "debug")

    settings = Settings.load({"config": path, "port": 1003})

    assert settings.port == 1003
    assert settings.log_level == "debug"
    assert settings.entities_max == 7
    assert settings.connections_max == 5_000


def test_the_file_can_be_named_by_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTBUS_CONFIG", str(toml(tmp_path, "[settings]\nport = 1001\n")))
    assert Settings.load().port == 1001


def test_a_file_without_settings_and_the_emulators_config_set_nothing(tmp_path: Path) -> None:
    assert Settings.load({"config": toml(tmp_path, "[queues.orders]\n")}).port == 5672
    emulator = tmp_path / "Config.json"
    emulator.write_text('{"UserConfig": {}}')
    assert Settings.load({"config": emulator}).port == 5672


def test_an_unknown_key_in_the_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = toml(tmp_path, "[settings]\nprot = 1001\n")
    assert problems(config=path) == [
        f"{path}: [settings] prot: there is no such setting; did you mean port?"
    ]


def test_every_wrong_value_is_named_with_the_place_it_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = toml(tmp_path, '[settings]\nentities_max = "many"\n')
    monkeypatch.setenv("POSTBUS_LOG_FORMAT", "xml")
    found = problems(config=path, port=70_000)
    assert len(found) == 3
    assert any(line.startswith("--port: ") and "not 70000" in line for line in found)
    assert any(line.startswith("POSTBUS_LOG_FORMAT: ") and "'xml'" in line for line in found)
    assert any(line.startswith(f"{path}: [settings] entities_max: ") for line in found)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.toml"
    assert problems(config=missing) == [f"config: {missing}: No such file or directory"]
    (line,) = problems(config=toml(tmp_path, "[settings\n"))
    assert "is not TOML" in line and "line 1" in line
    (line,) = problems(config=toml(tmp_path, "settings = 3\n"))
    assert "must be a table" in line
    (line,) = problems(config=toml(tmp_path, '[settings]\nconfig = "other.toml"\n'))
    assert "cannot name the file it is in" in line


def test_off_loopback_plain_text_must_be_meant() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.7", "bus.example"):
        (line,) = problems(host=host)
        assert host in line and "--allow-plaintext" in line
        assert not Settings.load({"host": host, "allow_plaintext": True}).on_loopback


def test_a_certificate_is_as_good_off_loopback(tmp_path: Path) -> None:
    files = {"tls_certificate": Path("a.pem"), "tls_key": Path("a.key")}
    assert not Settings.load({"host": "0.0.0.0", **files}).allow_plaintext
    made = tmp_path / MADE_CERTIFICATE
    made.parent.mkdir()
    made.touch()
    assert Settings.load({"host": "0.0.0.0", "data": tmp_path}).host == "0.0.0.0"
    (line,) = problems(host="0.0.0.0", data=tmp_path, ephemeral=True)
    assert "postbus cert" in line


def test_a_certificate_and_its_key_go_together() -> None:
    for name in ("tls_certificate", "tls_key"):
        (line,) = problems(**{name: Path("a.pem")})
        assert "both or neither" in line


def test_loopback_is_told_by_the_address() -> None:
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost", "LOCALHOST"):
        assert is_loopback(host)
    for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.example", "", "127.0.0.1.example"):
        assert not is_loopback(host)
    assert Settings.load({"host": "[::1]"}).host == "::1"


def test_an_issuer_is_named_whole_or_not_at_all() -> None:
    whole = {"jwt_issuer": "i", "jwt_audience": "a", "jwt_jwks": "https://login.example/keys"}
    assert Settings.load(whole).jwt_roles_claim == "roles"
    for name in whole:
        (line,) = problems(**{other: value for other, value in whole.items() if other != name})
        assert f"{name} is missing" in line


def test_keys_of_an_issuer_come_from_where_they_can_be_trusted() -> None:
    others = {"jwt_issuer": "i", "jwt_audience": "a"}
    for source in ("https://login.example/keys", "http://127.0.0.1:8080/keys", "./keys.json"):
        assert Settings.load({**others, "jwt_jwks": source}).jwt_jwks == source
    for source in ("http://login.example/keys", "ftp://login.example/keys", "file:///etc/keys"):
        (line,) = problems(**others, jwt_jwks=source)
        assert line.startswith("--jwt-jwks: must be an https URL") and source in line


def test_one_port_cannot_be_opened_twice() -> None:
    (line,) = problems(port=6_000, admin_port=6_000)
    assert "both 6000" in line
    assert Settings.load({"port": 0, "admin_port": 0}).admin_port == 0


def test_names_of_entities_come_as_flags_a_variable_or_a_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Settings.load({"queue": ["a", "b"]}).queue == ("a", "b")
    path = toml(tmp_path, '[settings]\nqueue = ["a", "b"]\ntopic = "t/s"\n')
    settings = Settings.load({"config": path})
    assert (settings.queue, settings.topic) == (("a", "b"), ("t/s",))
    monkeypatch.setenv("POSTBUS_QUEUE", "c, d")
    assert Settings.load({"config": path}).queue == ("c", "d")
    monkeypatch.delenv("POSTBUS_QUEUE")
    (line,) = problems(config=toml(tmp_path, "[settings]\nqueue = [1]\n"))
    assert line.startswith(f"{path}: [settings] queue: ") and line.endswith("not 1")


def test_settings_do_not_change_under_a_running_server() -> None:
    settings = Settings.load()
    with pytest.raises(ValueError, match="frozen"):
        settings.port = 1  # type: ignore[misc]


def test_variables_that_are_no_setting_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTBUS_PROT", "1")
    monkeypatch.setenv("POSTBUS_PORT", "1")
    monkeypatch.setenv("POSTBUS_CONNECTION_STRING", "that of the commands that are clients")
    assert unknown_variables() == ["POSTBUS_PROT"]


def test_a_name_says_its_unit() -> None:
    units = ("_ms", "_hours", "_mb", "_kb", "_bytes", "_max", "port")
    for name, field in declared().items():
        assert field.description, name
        if field.annotation is int:
            assert name.endswith(units), name


def test_flag_and_variable_follow_from_the_name() -> None:
    assert flag_of("frame_size_max_bytes") == "--frame-size-max-bytes"
    assert variable_of("frame_size_max_bytes") == "POSTBUS_FRAME_SIZE_MAX_BYTES"


def test_the_default_lock_has_the_bounds_of_a_lock() -> None:
    """Settings import nothing of the model, so the two bounds are held together here."""
    for allowed in (LOCK_DURATION_MIN_MS, LOCK_DURATION_MAX_MS):
        assert Settings(default_lock_duration_ms=allowed).default_lock_duration_ms == allowed
    for refused in (LOCK_DURATION_MIN_MS - 1, LOCK_DURATION_MAX_MS + 1):
        with pytest.raises(ValueError, match="default_lock_duration_ms"):
            Settings(default_lock_duration_ms=refused)
