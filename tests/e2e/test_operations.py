"""What an operator uses: health, metrics, a file of entities, a backup, words on a mistake."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from tests.support.administration import Administration
from tests.support.bus import Bus, receive_one, texts
from tests.support.server import COMMAND, Server, ServerDied


def get(url: str) -> tuple[int, str]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.status, answer.read().decode()


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )


def test_health_says_healthy(server: Server) -> None:
    """The shape is the emulator's (wire §1.1)."""
    status, body = get(f"{server.http}/health")
    assert status == 200
    assert json.loads(body)["status"] == "healthy"


async def test_metrics_count_by_entity(server: Server, open_bus: Callable[..., Bus]) -> None:
    queue = Administration(server.connection_string).make_queue("metered")
    bus = open_bus(server)
    await bus.send(queue, *(ServiceBusMessage("x") for _ in range(3)))
    async with bus.receiver(queue) as receiver:
        await receiver.complete_message(await receive_one(receiver))
    status, body = get(f"{server.http}/metrics")
    assert status == 200
    lines = [line for line in body.splitlines() if queue in line]
    assert any(line.endswith((" 3", " 3.0")) for line in lines), lines
    assert any(line.endswith((" 2", " 2.0")) for line in lines), lines


EMULATOR = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [
                    {
                        "Name": "queue.1",
                        "Properties": {
                            "DeadLetteringOnMessageExpiration": False,
                            "DefaultMessageTimeToLive": "PT1H",
                            "DuplicateDetectionHistoryTimeWindow": "PT20S",
                            "ForwardDeadLetteredMessagesTo": "",
                            "ForwardTo": "",
                            "LockDuration": "PT1M",
                            "MaxDeliveryCount": 3,
                            "RequiresDuplicateDetection": False,
                            "RequiresSession": False,
                        },
                    }
                ],
                "Topics": [],
            }
        ],
        "Logging": {"Type": "File"},
    }
}


async def test_the_emulator_s_configuration_is_read(
    make_server: Callable[..., Server], open_bus: Callable[..., Bus], tmp_path: Path
) -> None:
    """Entities come from the file, and the folder keeps them."""
    file = tmp_path / "Config.json"
    file.write_text(json.dumps(EMULATOR))
    server = make_server("--config", str(file)).start()
    found = Administration(server.connection_string).client.get_queue("queue.1")
    assert found.max_delivery_count == 3
    assert found.lock_duration.total_seconds() == 60
    await open_bus(server).send("queue.1", ServiceBusMessage("x"))

    # the same file again: the queue is there already, and keeps its message
    server.stop()
    server.start()
    assert texts(await open_bus(server).receive("queue.1")) == ["x"]


def broken(change: Callable[[dict[str, Any]], object]) -> str:
    config = json.loads(json.dumps(EMULATOR))
    change(config["UserConfig"]["Namespaces"][0]["Queues"][0]["Properties"])
    return json.dumps(config)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (broken(lambda p: p.update(MaxDeliveryCont=3)), "MaxDeliveryCont"),
        (broken(lambda p: p.update(LockDuration="PT9M")), "LockDuration"),
        (broken(lambda p: p.update(LockDuration="soon")), "LockDuration"),
        (broken(lambda p: p.update(RequiresSession="yes")), "RequiresSession"),
        (
            broken(lambda p: p.update(DuplicateDetectionHistoryTimeWindow="PT19S")),
            "DuplicateDetectionHistoryTimeWindow",
        ),
        (broken(lambda p: p.update(ForwardTo="elsewhere")), "ForwardTo"),
        ("{", "Config.json"),
    ],
    ids=["unknown key", "out of range", "no duration", "sessions", "duplicates", "forward", "json"],
)
def test_a_wrong_key_or_value_in_the_file_is_named(
    make_server: Callable[..., Server], tmp_path: Path, content: str, named: str
) -> None:
    """An error that names it and its place; nothing starts."""
    file = tmp_path / "Config.json"
    file.write_text(content)
    with pytest.raises(ServerDied) as died:
        make_server("--config", str(file)).start()
    assert named in str(died.value)
    assert "Traceback" not in str(died.value)


async def test_a_running_server_is_backed_up(
    server: Server, make_server: Callable[..., Server], open_bus: Callable[..., Bus]
) -> None:
    """The copy is a folder that serves."""
    queue = Administration(server.connection_string).make_queue()
    await open_bus(server).send(queue, *(ServiceBusMessage(f"{n}") for n in range(20)))
    copy = make_server(data="copy")
    done = run("backup", copy.data, "--data", server.data)
    assert done.returncode == 0, done.stderr
    await open_bus(server).send(queue, ServiceBusMessage("after the copy"))

    copy.start()
    assert texts(await open_bus(copy).peek(queue)) == [f"{n}" for n in range(20)]
    assert len(await open_bus(server).peek(queue)) == 21


def test_a_wrong_flag_is_named() -> None:
    answer = run("serve", "--prot", "6000")
    assert answer.returncode != 0
    assert "--prot" in answer.stderr


def test_a_port_in_use_is_named(server: Server, tmp_path: Path) -> None:
    answer = run(*("serve", "--port", server.port, "--admin-port", 0, "--data", tmp_path / "other"))
    assert answer.returncode != 0
    assert str(server.port) in answer.stderr + answer.stdout
    assert "Traceback" not in answer.stderr
