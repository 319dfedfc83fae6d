"""`postbus pipeline …` without Spark: what is refused, and how a command ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
from typer.testing import CliRunner, Result

from postbus.cli.pipeline import app
from pyspark_postbus.pipelines import archive as archiving
from pyspark_postbus.pipelines import console

CONNECTION = "Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey=s3cr3t"


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(console, "started", lambda *_: None)
    monkeypatch.setenv("POSTBUS_CONNECTION_STRING", CONNECTION)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def interrupted(*_: Any, **__: Any) -> NoReturn:
    raise KeyboardInterrupt


def test_an_archive_of_once_that_is_interrupted_does_not_end_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archiving, "archive", interrupted)
    ended = run("archive", "orders", "--table", "lake", "--once")
    assert ended.exit_code == 130
    assert "run it again" in ended.output
    # The one that goes on until it is interrupted ends as it should.
    assert run("archive", "orders", "--table", "lake").exit_code == 0


def test_a_storage_option_without_a_value_is_refused() -> None:
    ended = run("archive", "orders", "--table", "lake", "--storage-option", "region")
    assert ended.exit_code == 1
    assert "'region' is not of the form key=value" in ended.output
