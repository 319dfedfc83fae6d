"""Entities from files: the emulator's Config.json and our TOML, and errors that name the place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.model.authorization import AuthorizationRule, Right
from postbus.model.description import EntityStatus, QueueDescription
from postbus.server.configfile import (
    EMULATOR_LOCK_DURATION_MS,
    FILE_MAX_BYTES,
    ConfigError,
    NamespaceConfig,
    load_config,
)

PROPERTIES = {
    "DeadLetteringOnMessageExpiration": True,
    "DefaultMessageTimeToLive": "PT1H",
    "DuplicateDetectionHistoryTimeWindow": "PT20S",
    "ForwardDeadLetteredMessagesTo": "queue.2",
    "ForwardTo": "",
    "LockDuration": "PT1M",
    "MaxDeliveryCount": 3,
    "RequiresDuplicateDetection": False,
    "RequiresSession": False,
}


def emulator(*queues: Any, **namespace: Any) -> str:
    described = {"Name": "sbemulatorns", "Queues": list(queues), "Topics": [], **namespace}
    return json.dumps({"UserConfig": {"Namespaces": [described], "Logging": {"Type": "File"}}})


def load(folder: Path, text: str | bytes, name: str = "Config.json") -> NamespaceConfig:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_config(path)


def test_the_emulators_own_file(tmp_path: Path) -> None:
    text = emulator({"Name": "queue.1", "Properties": PROPERTIES}, {"Name": "queue.2"})
    config = load(tmp_path, text)
    assert config.name == "sbemulatorns"
    assert config.settings == {}
    assert config.queues == (
        (
            "queue.1",
            QueueDescription(
                dead_lettering_on_expiration=True,
                default_ttl_ms=3_600_000,
                duplicate_window_ms=20_000,
                lock_duration_ms=60_000,
                max_delivery_count=3,
                forward_dead_letters_to="queue.2",
            ),
        ),
        ("queue.2", QueueDescription(lock_duration_ms=60_000)),
    )


def test_locks_last_a_minute_under_the_emulators_file(tmp_path: Path) -> None:
    # R-SETTLE-06
    path = tmp_path / "Config.json"
    path.write_text(emulator({"Name": "q"}))
    config = load_config(path, QueueDescription(lock_duration_ms=10_000, max_message_size_kb=512))
    assert config.queues[0][1].lock_duration_ms == EMULATOR_LOCK_DURATION_MS == 60_000
    assert config.queues[0][1].max_message_size_kb == 512
    assert config.default_lock_duration_ms == 60_000


def test_time_spans_of_dotnet_are_read_too(tmp_path: Path) -> None:
    config = load(tmp_path, emulator({"Name": "q", "Properties": {"LockDuration": "00:00:45"}}))
    assert config.queues[0][1].lock_duration_ms == 45_000


TOML = """
[namespace]
name = "shop"

[settings]
port = 6000

[queues."orders"]
lock_duration = "PT2M"
max_size_in_megabytes = 2048
status = "SendDisabled"
user_metadata = "the shop's"

[queues."eu/returns"]
"""


def test_our_own_file(tmp_path: Path) -> None:
    path = tmp_path / "postbus.toml"
    path.write_text(TOML)
    defaults = QueueDescription(lock_duration_ms=15_000)
    assert load_config(path, defaults) == NamespaceConfig(
        name="shop",
        queues=(
            (
                "orders",
                QueueDescription(
                    lock_duration_ms=120_000,
                    max_size_mb=2_048,
                    status=EntityStatus.SEND_DISABLED,
                    user_metadata="the shop's",
                ),
            ),
            ("eu/returns", defaults),
        ),
        settings={"port": 6000},
    )


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    assert load(tmp_path, "", "empty.toml") == NamespaceConfig()


QUEUE_0 = "UserConfig.Namespaces[0].Queues[0]"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "line 1, column 2"),
        ("{\n 'UserConfig': {}}", "line 2, column 2"),
        ("[]", "must be a table"),
        ("{}", "UserConfig: is missing"),
        ('{"userConfig": {}}', "userConfig: there is no such key; did you mean 'UserConfig'?"),
        ('{"UserConfig": {}}', "UserConfig.Namespaces: is missing"),
        ('{"UserConfig": {"Namespaces": []}}', "must hold one namespace, not 0"),
        ('{"UserConfig": {"Namespaces": [{}]}}', "UserConfig.Namespaces[0].Name: is missing"),
        ('{"UserConfig": {}, "UserConfig": {}}', "the key 'UserConfig' is there twice"),
        ("[" * 100_000, "nested too deeply"),
        ("[" + "9" * 5_000 + "]", "not valid JSON"),
        (emulator(Topics=[{"Name": "t"}]), "Namespaces[0].Topics: Postbus does not support topics"),
        (emulator({"Nme": "q"}), f"{QUEUE_0}.Nme: there is no such key; did you mean 'Name'?"),
        (emulator({}), f"{QUEUE_0}.Name: is missing"),
        (emulator({"Name": 7}), f"{QUEUE_0}.Name: must be text, not 7"),
        (emulator({"Name": "a b"}), f"{QUEUE_0}.Name: 'URI_PATH' contains disallowed characters"),
        (emulator({"Name": "q"}, {"Name": "Q"}), "Queues[1]: the queue 'Q' is there already"),
        (emulator("q"), f"{QUEUE_0}: must be a table, not 'q'"),
        (
            emulator({"Name": "q", "Properties": {"LockDuratoin": "PT1M"}}),
            f"{QUEUE_0}.Properties.LockDuratoin: there is no such key; did you mean 'LockDurati",
        ),
        (
            emulator({"Name": "q", "Properties": {"LockDuration": "1 minute"}}),
            f"{QUEUE_0}.Properties.LockDuration: '1 minute' is not a time span",
        ),
        (
            emulator({"Name": "q", "Properties": {"MaxDeliveryCount": "3"}}),
            f"{QUEUE_0}.Properties.MaxDeliveryCount: must be a whole number, not '3'",
        ),
        (
            emulator({"Name": "q", "Properties": {"RequiresSession": True}}),
            f"{QUEUE_0}.Properties: The property 'RequiresSession' cannot be 'true'",
        ),
        (
            emulator({"Name": "q", "Properties": {"ForwardTo": "other/$management"}}),
            f"{QUEUE_0}.Properties: The property 'ForwardTo' must name a queue or a topic",
        ),
        (
            emulator({"Name": "q", "Properties": {"LockDuration": "PT6M"}}),
            "maximum of '5' minutes. Parameter name: LockDuration Actual value was 00:06:00.",
        ),
    ],
)
def test_what_is_wrong_in_an_emulators_file_is_named_with_its_place(
    tmp_path: Path, text: str, problem: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, text)
    assert problem in str(refused.value)
    assert str(refused.value).startswith(f"{tmp_path}/Config.json: ")


def test_keys_of_the_namespace_and_of_a_queue_in_our_own_file(tmp_path: Path) -> None:
    key = "A" * 43 + "="
    config = load(
        tmp_path,
        f"""
        [[namespace.authorization_rules]]
        key_name = "sender"
        rights = ["Send"]
        primary_key = "{key}"

        [[queues.orders.authorization_rules]]
        key_name = "worker"
        rights = ["Listen", "Send"]
        """,
        "postbus.toml",
    )
    assert config.authorization_rules == (AuthorizationRule("sender", (Right.SEND,), key),)
    [(_, orders)] = config.queues
    assert orders.authorization_rules == (AuthorizationRule("worker", (Right.LISTEN, Right.SEND)),)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[queues", "not valid TOML"),
        ("[namespace]\nname = " + "9" * 5_000, "not valid TOML"),
        ("[queue.orders]", "queue: there is no such key; did you mean 'queues'?"),
        ("[namespace]\nnme = 'x'", "[namespace] nme: there is no such key"),
        ("[namespace]\nname = 1", "[namespace] name: must be text, not 1"),
        ("settings = 1", "[settings]: must be a table"),
        ("queues = ['orders']", "[queues]: must be a table of tables"),
        ("[queues]\norders = 1", '[queues."orders"]: must be a table, not 1'),
        ("[topics.news]", "[topics]: Postbus does not support topics yet"),
        ("[queues.orders]\nlock = 1", '[queues."orders"] lock: there is no such key'),
        ("[queues.orders]\nlock_duration = 60", '[queues."orders"] lock_duration: must be a durat'),
        ("[queues.orders]\nrequires_session = true", "message sessions yet"),
        ("[queues.'a b']", "disallowed characters"),
        (
            "[[queues.orders.authorization_rules]]\nkey = 'x'",
            "[queues.\"orders\"] authorization_rules: number 1: there is no such key as 'key'",
        ),
        (
            "[[queues.orders.authorization_rules]]\nkey_name = 'x'\nrights = ['Manage']",
            '[queues."orders"]: Manage permission should also include Send and Listen',
        ),
        (
            "[queues.orders]\nauthorization_rules = 'x'",
            '[queues."orders"] authorization_rules: must be a list of authorization rules',
        ),
        (
            "[[namespace.authorization_rules]]\nkey_name = 'x'\nrights = ['Read']",
            "[[namespace.authorization_rules]]: number 1: a right must be one of",
        ),
        (
            "[[namespace.authorization_rules]]\nkey_name = 'x'\nrights = []",
            "[[namespace.authorization_rules]]: The authorization rule 'x' has no rights",
        ),
        (
            "[[namespace.authorization_rules]]\nkey_name = 'x'\nrights = ['Send']",
            "[[namespace.authorization_rules]]: 'x' has no primary_key",
        ),
        (
            "[[namespace.authorization_rules]]\nkey_name = 'rootManageSharedAccessKey'\n"
            "rights = ['Send']",
            "'RootManageSharedAccessKey' is there always, with the keys of namespace.key",
        ),
        ("[queues.A]\n[queues.a]", "[queues.\"a\"]: the queue 'a' is there already"),
    ],
)
def test_what_is_wrong_in_our_own_file_is_named_with_its_key(
    tmp_path: Path, text: str, problem: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, text, "postbus.toml")
    assert problem in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="line 2: not UTF-8"):
        load(tmp_path, b"# first\n\xff", "latin.toml")
    with pytest.raises(ConfigError, match="larger than"):
        load(tmp_path, b" " * (FILE_MAX_BYTES + 1), "huge.toml")


def test_json_is_recognised_without_its_suffix(tmp_path: Path) -> None:
    assert load(tmp_path, "\ufeff" + emulator({"Name": "q"}), "settings.conf").queues


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["UserConfig", "Namespaces", "Name", "Queues", "Topics", "Properties", "Logging"]
            )
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
)


@given(JSON)
def test_any_json_is_a_config_or_an_error_that_says_why(
    tmp_path_factory: pytest.TempPathFactory, document: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(document))
    try:
        load_config(path)
    except ConfigError as error:
        assert len(str(error)) > len(str(path)) + 2  # noqa: PT017
