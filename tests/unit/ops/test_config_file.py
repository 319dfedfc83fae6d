"""The file of --config: found, read, recognised, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.config.mistakes import ConfigError
from postbus.ops import config_file
from postbus.ops.config_file import NamespaceConfig, load_config
from tests.unit.config.files import emulator, load


def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="line 2: not UTF-8"):
        load(tmp_path, b"# first\n\xff", "latin.toml")
    monkeypatch.setattr(config_file, "FILE_MAX_BYTES", 1_000)
    assert load(tmp_path, b" " * 1_000, "large.toml") == NamespaceConfig()
    with pytest.raises(ConfigError, match="larger than the 1000 bytes allowed"):
        load(tmp_path, b" " * 1_001, "huge.toml")


def test_json_is_recognised_without_its_suffix(tmp_path: Path) -> None:
    assert load(tmp_path, "\ufeff" + emulator({"Name": "q"}), "settings.conf").content.queues


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("UserConfig", "Namespaces", "Name", "Queues", "Topics", "Properties"),
                    *("Subscriptions", "Rules", "FilterType", "CorrelationFilter", "Logging"),
                ]
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
