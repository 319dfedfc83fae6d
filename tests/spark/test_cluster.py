"""R-PIPE-04: the same job on a cluster, and over Spark Connect, unchanged."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest

from tests.support.server import Server
from tests.support.spark import Program, environment
from tests.support.waiting import until_blocking

HOME = Path(pyspark.__file__).parent
PROGRAM = Path(__file__).parent / "programs" / "read_and_write.py"
WITHIN_S = 420.0
Start = Callable[..., Path]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a daemon of Spark by its class and returns its log; none outlives the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *command: str) -> Path:
        log = tmp_path / f"{name}.log"
        with log.open("w") as out:
            process = subprocess.Popen(
                [str(HOME / "bin" / command[0]), *command[1:]],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment(), "SPARK_WORKER_DIR": str(tmp_path / name)},
            )
        started.append(process)
        return log

    yield start
    for process in reversed(started):
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def said(log: Path, pattern: str) -> str:
    """What a daemon says, when it has said it."""
    found = until_blocking(
        f"{log.stem} says {pattern}",
        lambda: re.search(pattern, log.read_text(errors="replace")),
        WITHIN_S,
    )
    return found[0]


def run(server: Server, queue: str, master: str, folder: Path) -> None:
    answer = folder / "answer"
    arguments = (server.connection_string, queue, master, str(answer))
    program = Program(PROGRAM, folder / "driver.log", *arguments)
    try:
        program.wait(WITHIN_S)
    finally:
        program.kill()
    assert answer.read_text() == f"2000 {sum(range(2_000))} 2000"


def test_a_job_runs_on_a_standalone_cluster_of_two_workers(
    start: Start, broker: Server, queue: str, tmp_path: Path
) -> None:
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    package = "org.apache.spark.deploy"
    where = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
    log = start("master", "spark-class", f"{package}.master.Master", *where)
    said(log, "I have been elected leader")
    for name in ("worker-1", "worker-2"):
        size = ("--cores", "1", "--memory", "600m", "--webui-port", "0", "--host", "127.0.0.1")
        worker = start(name, "spark-class", f"{package}.worker.Worker", *size, master)
        said(worker, "Successfully registered with master")
    run(broker, queue, master, tmp_path)
    assert len(re.findall("Launching executor", log.read_text())) >= 2


def test_a_job_runs_over_spark_connect(
    start: Start, broker: Server, queue: str, tmp_path: Path
) -> None:
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.master": "local[2]",
    }
    given = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    service = "org.apache.spark.sql.connect.service.SparkConnectServer"
    log = start("connect", "spark-submit", "--class", service, *given, "spark-internal")
    said(log, "Spark Connect server started")
    master = f"sc://127.0.0.1:{port}"
    run(broker, queue, master, tmp_path)

    def pipeline(*arguments: str) -> subprocess.CompletedProcess[str]:
        variables = {"POSTBUS_CONNECTION_STRING": broker.connection_string}
        return subprocess.run(
            [sys.executable, "-m", "postbus", "pipeline", *arguments, "--master", master],
            check=False, capture_output=True, text=True, timeout=WITHIN_S,
            env={**os.environ, **environment(), **variables},
        )  # fmt: skip

    for arguments, answer in (
        (("report", queue, "--out", str(tmp_path / "report")), "2,000 events"),
        (("replay", queue, "--to", queue), "2,000 messages would be sent"),
        (("deadletters", "repair", queue, "--set", "subject='a'"), "0 dead letters would be sent"),
    ):
        ended = pipeline(*arguments)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert answer in ended.stdout
    ended = pipeline("archive", queue, "--table", str(tmp_path / "lake"), "--once")
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1), ended.stderr
    assert "Spark Connect" in ended.stderr
