"""The well-known key on loopback, a secret one anywhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from postbus.auth.namespace_key import (
    KEY_FILE,
    KEY_NAME,
    KeyFileError,
    choose_key,
    connection_string,
    new_access_key,
)
from postbus.auth.opening import namespace_keys
from postbus.model.authorization import AuthorizationRule, Right
from postbus.settings import Settings


def public(data: Path, **more: object) -> Settings:
    return Settings.load({"host": "0.0.0.0", "allow_plaintext": True, "data": data, **more})


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.0.0.9"])
def test_on_loopback_the_emulators_key_works_and_nothing_is_written(
    host: str, tmp_path: Path
) -> None:
    key = choose_key(Settings.load({"host": host, "data": tmp_path}))
    assert key == (KEY_NAME, "SAS_KEY_VALUE", False, "")
    assert list(tmp_path.iterdir()) == []


def test_off_loopback_a_random_key_is_made_once_and_kept_for_its_owner(tmp_path: Path) -> None:
    first = choose_key(public(tmp_path))
    assert first.fresh
    assert first.value != "SAS_KEY_VALUE"
    assert len(first.value) > 40
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [KEY_FILE]

    again = choose_key(public(tmp_path))
    assert again == (KEY_NAME, first.value, False, "")


def test_two_folders_have_two_keys(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert choose_key(public(tmp_path / "a")).value != choose_key(public(tmp_path / "b")).value


def test_what_a_crash_left_behind_while_making_the_key_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).with_suffix(".draft").write_text("half")
    key = choose_key(public(tmp_path))
    assert key.fresh
    assert [path.name for path in tmp_path.iterdir()] == [KEY_FILE]


def test_a_key_of_ones_own_is_taken_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / KEY_FILE
    path.write_text("my own key\n")
    path.chmod(0o600)
    assert choose_key(public(tmp_path)).value == "my own key"


def test_a_second_line_of_the_file_is_a_second_key(tmp_path: Path) -> None:
    path = tmp_path / KEY_FILE
    path.write_text("new key\nold key\n")
    path.chmod(0o600)
    key = choose_key(public(tmp_path))
    assert (key.value, key.secondary) == ("new key", "old key")
    [root] = namespace_keys(key, ())
    assert root.keys == ("new key", "old key")


def test_a_key_for_a_rule_is_what_a_rule_takes() -> None:
    first, second = new_access_key(), new_access_key()
    assert first != second
    AuthorizationRule("k", (Right.SEND,), first, second).validate()


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    choose_key(public(tmp_path))
    (tmp_path / KEY_FILE).chmod(0o640)
    with pytest.raises(KeyFileError, match="chmod 600"):
        choose_key(public(tmp_path))


@pytest.mark.parametrize("content", ["", "\n", "x" * 513, "more\nthan\ntwo", "one\n\ntwo", "\x00"])
def test_a_file_that_holds_no_key_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / KEY_FILE
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match="does not hold a key"):
        choose_key(public(tmp_path))


def test_an_ephemeral_namespace_off_loopback_has_a_new_key_at_each_start(tmp_path: Path) -> None:
    settings = public(tmp_path, ephemeral=True)
    first, second = choose_key(settings), choose_key(settings)
    assert first.fresh and second.fresh
    assert first.value != second.value
    assert list(tmp_path.iterdir()) == []


def test_the_connection_string_is_what_every_sdk_takes(tmp_path: Path) -> None:
    key = choose_key(Settings.load({"data": tmp_path}))
    assert connection_string("127.0.0.1", 5672, key) == (
        "Endpoint=sb://localhost:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
        "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true"
    )
    assert "sb://[fd00::1]:6000;" in connection_string("fd00::1", 6000, key)
    assert "sb://bus.example:6000;" in connection_string("bus.example", 6000, key)
    assert "0.0.0.0" not in connection_string("0.0.0.0", 6000, key)


def test_with_tls_only_the_connection_string_has_no_emulators_switch(tmp_path: Path) -> None:
    key = choose_key(public(tmp_path))
    text = connection_string("bus.example", 5671, key, encrypted=True)
    assert text.endswith(f"SharedAccessKey={key.value}")
    assert "Emulator" not in text


def test_a_key_that_was_shown_before_is_not_shown_again(tmp_path: Path) -> None:
    key = choose_key(public(tmp_path))
    assert key.value not in connection_string("0.0.0.0", 5672, key, hidden=True)
