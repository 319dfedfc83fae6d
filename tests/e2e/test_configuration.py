"""Files of entities with a real process: start, reload by command and by signal, export."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from tests.support.administration import Administration
from tests.support.bus import Bus, texts
from tests.support.server import COMMAND, Server, ServerDied
from tests.support.waiting import until_blocking

TOML = """
[queues.orders]
max_delivery_count = 3

[topics.news]
[topics.news.subscriptions.all]
[topics.news.subscriptions.eu.rules]
region = { filter = { properties = { region = "eu" } }, action = "SET seen = TRUE" }
"""


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "postbus.toml"
    path.write_text(TOML)
    return path


async def test_messages_go_where_the_rules_of_the_file_say(
    make_server: Callable[..., Server], open_bus: Callable[..., Bus], file: Path
) -> None:
    server = make_server("--config", str(file)).start()
    bus = open_bus(server)
    sent = [
        ServiceBusMessage(region, application_properties={"region": region})
        for region in ("eu", "us")
    ]
    async with bus._client.get_topic_sender("news") as sender:
        await sender.send_messages(sent)
    found = {}
    for name in ("all", "eu"):
        async with bus._client.get_subscription_receiver("news", name) as receiver:
            found[name] = await receiver.receive_messages(max_message_count=5, max_wait_time=5)
    assert texts(found["all"]) == ["eu", "us"]
    [message] = found["eu"]
    assert message.application_properties[b"seen"] is True


def test_a_changed_file_is_shown_and_carried_out(
    make_server: Callable[..., Server], file: Path
) -> None:
    server = make_server("--config", str(file)).start()
    client = Administration(server.connection_string).client
    client.create_queue("theirs")
    assert "The entities are as the file has them." in run("reload", "--data", server.data).stdout

    file.write_text(TOML.replace("= 3", "= 5") + "[topics.more.subscriptions.s]\n")
    expected = [
        "+ create topic more",
        "+ create subscription more/Subscriptions/s",
        "~ change queue orders",
        "    max_delivery_count: 3 → 5",
        "= leave queue theirs (not in the file)",
    ]
    shown = run("reload", "--dry-run", "--data", server.data)
    assert shown.stdout.splitlines() == [*expected, "3 steps, none of them taken."]
    assert client.get_queue("orders").max_delivery_count == 3

    done = run("reload", "--data", server.data)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [*expected, "3 of 3 steps are done."]
    assert client.get_queue("orders").max_delivery_count == 5
    assert client.get_subscription("more", "s").name == "s"

    file.write_text("[queues.orders]\nmax_delivery_count = 5\n")
    pruned = run("reload", "--prune", "--data", server.data)
    assert pruned.stdout.splitlines() == [
        "- delete queue theirs",
        "- delete topic more",
        "- delete topic news",
        "3 of 3 steps are done.",
    ]
    assert [queue.name for queue in client.list_queues()] == ["orders"]
    assert list(client.list_topics()) == []


def test_a_wrong_file_is_named_and_changes_nothing(
    make_server: Callable[..., Server], file: Path
) -> None:
    server = make_server("--config", str(file)).start()
    file.write_text("[queues.first]\n[queues.orders]\nforward_to = 'nowhere'\n")
    refused = run("reload", "--data", server.data)
    assert refused.returncode == 1
    assert '[queues."orders"] forward_to: there is no queue or topic' in refused.stderr
    assert refused.stdout == ""
    names = [queue.name for queue in Administration(server.connection_string).client.list_queues()]
    assert names == ["orders"]


def test_nobody_to_ask_is_an_error_in_one_line(tmp_path: Path) -> None:
    for command in ("reload", "export"):
        answer = run(command, "--data", tmp_path / "absent")
        assert answer.returncode == 1
        assert len(answer.stderr.splitlines()) == 1
        assert "absent" in answer.stderr


async def test_a_hangup_reads_the_file_again(
    make_server: Callable[..., Server], open_bus: Callable[..., Bus], tmp_path: Path
) -> None:
    file = tmp_path / "postbus.toml"
    file.write_text("[queues.orders]\n")
    server = make_server("--config", str(file)).start()
    await open_bus(server).send("orders", ServiceBusMessage("kept"))
    client = Administration(server.connection_string).client

    file.write_text("[queues.orders\n")
    server.signal(signal.SIGHUP)
    until_blocking("refused", lambda: "file not carried out" in server.log.read_text())

    file.write_text("[queues.orders]\nmax_delivery_count = 4\n[queues.new]\n")
    server.signal(signal.SIGHUP)
    until_blocking("carried out", lambda: "file carried out" in server.log.read_text())
    assert client.get_queue("orders").max_delivery_count == 4
    assert [queue.name for queue in client.list_queues()] == ["new", "orders"]
    assert texts(await open_bus(server).receive("orders")) == ["kept"]


@pytest.mark.parametrize("form", ["toml", "emulator"])
def test_an_export_starts_the_same_namespace(
    make_server: Callable[..., Server], file: Path, tmp_path: Path, form: str
) -> None:
    first = make_server("--config", str(file)).start()
    running = run("export", "--format", form, "--data", first.data)
    assert (running.returncode, running.stderr) == (0, "")
    first.stop()
    assert run("export", "--format", form, "--data", first.data).stdout == running.stdout

    exported = tmp_path / "exported"
    exported.write_text(running.stdout)
    second = make_server("--config", str(exported), data="second").start()
    assert run("export", "--format", form, "--data", second.data).stdout == running.stdout
    rules = Administration(second.connection_string).client.list_rules("news", "eu")
    assert [rule.name for rule in rules] == ["region"]


def test_what_the_emulators_format_cannot_hold_is_named(
    make_server: Callable[..., Server], tmp_path: Path
) -> None:
    file = tmp_path / "postbus.toml"
    file.write_text("[queues.orders]\nstatus = 'Disabled'\nmax_size_in_megabytes = 2048\n")
    server = make_server("--config", str(file)).start()
    exported = run("export", "--format", "emulator", "--data", server.data)
    assert exported.returncode == 0
    queue: Any = json.loads(exported.stdout)["UserConfig"]["Namespaces"][0]["Queues"][0]
    assert queue["Name"] == "orders"
    assert exported.stderr.splitlines() == [
        "postbus: not written: orders: MaxSizeInMegabytes",
        "postbus: not written: orders: Status",
    ]


def test_a_destination_that_is_nowhere_stops_the_start(
    make_server: Callable[..., Server], tmp_path: Path
) -> None:
    file = tmp_path / "postbus.toml"
    file.write_text("[queues.first]\n[topics.t.subscriptions.s]\nforward_to = 'nowhere'\n")
    with pytest.raises(ServerDied) as died:
        make_server("--config", str(file)).start()
    assert '[topics."t".subscriptions."s"] forward_to: there is no queue' in str(died.value)
    assert "Traceback" not in str(died.value)
