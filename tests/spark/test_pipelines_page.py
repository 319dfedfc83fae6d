"""What docs/pipelines.md and examples/ tell a newcomer to run works as it stands there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from postbus.cli.main import app
from pyspark_postbus.pipelines.prices import load_prices
from tests.support.administration import Administration, administration_client
from tests.support.server import Server
from tests.support.spark import ROOT

PAGE = (ROOT / "docs" / "pipelines.md").read_text()
EXAMPLE = ROOT / "examples" / "pipelines.py"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    """The `postbus` lines of the page, as a shell would pass them."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("postbus ")]


@pytest.fixture
def orders(
    make_server: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Server:
    """A broker with a queue `orders` that has a history, and dead letters of two reasons."""
    server = make_server().start()
    for name in ("orders", "orders-again"):
        administration_client(server.connection_string).create_queue(name)
    with ServiceBusClient.from_connection_string(server.connection_string) as bus:
        with bus.get_queue_sender("orders") as sender:
            for number in range(30):
                body = f'{{"order": {number}, "of": "teh tea", "customer": " c{number} "}}'
                sender.send_messages(ServiceBusMessage(body, subject="tea"))
        with bus.get_queue_receiver("orders") as receiver:
            for place, message in enumerate(receiver.receive_messages(30, max_wait_time=5)):
                if place < 9:
                    reason = ("BadOrder", "Unpaid", "Other")[place % 3]
                    receiver.dead_letter_message(message, reason=reason)
                elif place < 20:
                    receiver.complete_message(message)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POSTBUS_CONNECTION_STRING", server.connection_string)
    return server


@pytest.mark.timeout(1_200)
@pytest.mark.usefixtures("spark", "orders")
def test_the_commands_of_the_page_do_what_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for block in blocks("python"):
        if block.startswith("# mending.py"):
            (tmp_path / "mending.py").write_text(block)
    said = []
    for arguments in commands():
        outcome = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert outcome.exit_code == 0, (arguments, outcome.output)
        said.append(outcome.output)
    told = iter(said)
    assert "50 events were added" in next(told)
    triaged = next(told)
    assert all(reason in triaged for reason in ("BadOrder", "Unpaid", "Other"))
    assert "3 dead letters would be sent again" in (dry := next(told))
    assert "the tea" in dry
    assert "Nothing was changed" in dry
    assert "3 moved" in next(told)
    assert "6 moved" in next(told), "the function takes all that are left"
    assert "Nothing was to be done" in next(told), "so nothing is left to be discarded"
    assert "report.html" in next(told)
    assert "30 messages would be sent" in next(told)
    assert "30 messages were sent" in next(told)
    assert (tmp_path / "report" / "report.html").exists()
    # The table that was made is read as the page says.
    [reading] = [block for block in blocks("python") if "Lake(" in block]
    exec(compile(reading, "docs/pipelines.md", "exec"), {"__name__": "page"})
    assert "enqueued" in capsys.readouterr().out


def test_the_price_table_of_the_page_can_be_read(tmp_path: Path) -> None:
    [text] = blocks("toml")
    (tmp_path / "prices.toml").write_text(text)
    assert load_prices(tmp_path / "prices.toml").currency == "EUR"


def test_what_is_refused_is_told_in_a_line(spark: SparkSession, broker: Server, queue: str) -> None:
    given = ["--connection-string", broker.connection_string]
    for arguments, why in (
        (["pipeline", "report", "nowhere", *given], "nowhere"),
        (["pipeline", "archive", "nowhere", "--table", "/dev/null/x", *given], "nowhere"),
        (["pipeline", "deadletters", "repair", queue, "--set", "offset=1", *given], "'offset'"),
        (["pipeline", "deadletters", "triage", queue, "--where", "nothing > 1", *given], "nothing"),
        (["pipeline", "replay", queue, "--to", queue, "--offsets", "x", *given], "0:120-500"),
        (["pipeline", "replay", "news/subscriptions/all", "--to", queue, *given], "subscription"),
        (["pipeline", "replay", "nowhere", "--to", queue, *given], "nowhere"),
        (["pipeline", "replay", queue, "--to", "nowhere", *given], "nowhere"),
        (["pipeline", "deadletters", "repair", queue, "--to", "nowhere", *given], "nowhere"),
        (["pipeline", "deadletters", "triage", "nowhere", *given], "nowhere"),
        (["pipeline", "deadletters", "discard", f"{queue}/subscriptions/x", *given], "topic"),
        (["pipeline", "archive", "news/subscriptions/all", "--table", "x", *given], "news"),
        (["pipeline", "report", queue, "--connection-string", "x"], "connection string"),
        (["pipeline", "report", queue, "--prices", "/no/file", *given], "/no/file"),
    ):
        outcome = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert outcome.exit_code == 1, (arguments, outcome.output)
        assert "Traceback" not in outcome.output
        [line] = [each for each in outcome.output.splitlines() if "Starting Spark" not in each]
        assert line.startswith("postbus: ")
        assert why in line


def test_the_example_runs_from_top_to_bottom(
    spark: SparkSession,
    broker: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = Administration(broker.connection_string).make_queue()
    monkeypatch.setenv("POSTBUS_CONNECTION_STRING", broker.connection_string)
    monkeypatch.setenv("QUEUE", name)
    monkeypatch.setenv("FOLDER", str(tmp_path))
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(EXAMPLE.read_text(), str(EXAMPLE), "exec"), names)
    assert names["written"].events == 200 + 111
    assert names["written"].page.exists()
    assert "111 could be sent again" in capsys.readouterr().out
