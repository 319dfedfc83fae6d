"""Celery as it is, over kombu's transport for Azure, with a URL that names Azure: a drop-in.

Queues are made through the management API over https, messages go over AMQP with TLS.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.administration import Administration
from tests.support.carriers import local_ca
from tests.support.server import Server
from tests.support.waiting import until_blocking

PROGRAMS = Path(__file__).parent / "programs"
BIN = Path(sys.executable).parent
NAMESPACE = "postbus"
QUEUE = "tasks"
WITHIN_S = 60.0


class Farm:
    """A server, workers, and a program that calls their tasks."""

    def __init__(self, server: Server, folder: Path, **variables: str) -> None:
        self.server = server
        self.notes = folder / "notes"
        results = folder / "results"
        results.mkdir()
        path = os.pathsep.join([str(PROGRAMS / "as_azure"), str(PROGRAMS)])
        authority = str(local_ca(server))
        self._environment = {
            **os.environ,
            "PYTHONPATH": path,
            "POSTBUS_PORT": str(server.port),
            "POSTBUS_CA": authority,
            "REQUESTS_CA_BUNDLE": authority,
            "BROKER_URL": f"azureservicebus://RootManageSharedAccessKey:SAS_KEY_VALUE@{NAMESPACE}",
            "RESULT_URL": f"file://{results}",
            "QUEUE": QUEUE,
            "NOTES": str(self.notes),
            **variables,
        }
        self._log = folder / "workers.log"
        self._workers: list[subprocess.Popen[bytes]] = []

    def start_worker(self) -> None:
        with self._log.open("ab") as log:
            worker = subprocess.Popen(
                [str(BIN / "celery"), "-A", "celery_tasks", "worker", "--concurrency", "2"],
                cwd=self._log.parent,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._workers.append(worker)

    def kill_worker(self) -> None:
        """The worker and its children, as the machine's end would."""
        worker = self._workers.pop()
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def call(self, *calls: dict[str, Any], wait: bool = True) -> list[Any]:
        """Have a program call tasks; returns their results, in order."""
        done = subprocess.run(
            [sys.executable, str(PROGRAMS / "celery_call.py"), json.dumps(calls), str(int(wait))],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=WITHIN_S + 60,
            check=False,
        )
        assert done.returncode == 0, f"{done.stderr[-3000:]}\n{self._worker_log()}"
        results: list[Any] = json.loads(done.stdout)
        return results

    def _worker_log(self) -> str:
        return self._log.read_text()[-3000:] if self._log.exists() else ""

    def noted(self) -> Counter[str]:
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        return Counter(lines)

    def left(self) -> int:
        administration = Administration(self.server.connection_string)
        count = administration.counts(QUEUE).total_message_count
        administration.close()
        return int(count or 0)

    def close(self) -> None:
        while self._workers:
            self.kill_worker()


@pytest.fixture
def azure(tmp_path: Path) -> Iterator[Server]:
    """A server with a certificate for the name that kombu makes of a namespace."""
    data = tmp_path / "data"
    name = f"{NAMESPACE}.servicebus.windows.net"
    subprocess.run(
        [str(BIN / "postbus"), "cert", "--data", str(data), "--name", name],
        stdout=subprocess.DEVNULL,
        check=True,
    )
    server = Server(data).start()
    yield server
    server.discard()


@pytest.fixture
def farm(azure: Server, tmp_path: Path) -> Iterator[Callable[..., Farm]]:
    opened: list[Farm] = []

    def make(**variables: str) -> Farm:
        opened.append(Farm(azure, tmp_path, **variables))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def call(task: str, *arguments: Any, **options: Any) -> dict[str, Any]:
    return {"task": task, "arguments": arguments, "options": options}


def test_tasks_retries_and_countdowns(farm: Callable[..., Farm]) -> None:
    """Issue 3, "must show": run once each, tried again as often as asked, not before their time."""
    work = farm()
    work.start_worker()
    began = time.time()
    sums = [call("add", n, n) for n in range(20)]
    *added, tries, told = work.call(*sums, call("flaky", 2), call("tell_time", countdown=4))
    assert added == [2 * n for n in range(20)]
    assert tries == 2
    assert told >= began + 4
    assert work.noted() == Counter(
        {**{f"add {n} {n}": 1 for n in range(20)}, "flaky": 3, "tell_time": 1}
    )
    until_blocking("all are acknowledged", lambda: work.left() == 0)


def test_tasks_wait_for_a_worker_through_the_death_of_the_server(
    azure: Server, farm: Callable[..., Farm]
) -> None:
    """R-SETTLE-01."""
    work = farm()
    work.call(*(call("add", n, 1) for n in range(10)), wait=False)
    azure.kill()
    azure.start()
    work.start_worker()
    until_blocking("all have run", lambda: len(work.noted()) == 10, WITHIN_S)
    until_blocking("all are acknowledged", lambda: work.left() == 0)
    assert work.noted() == Counter({f"add {n} 1": 1 for n in range(10)})


def test_a_worker_goes_on_after_the_death_of_the_server(
    azure: Server, farm: Callable[..., Farm]
) -> None:
    work = farm()
    work.start_worker()
    assert work.call(call("add", 1, 1)) == [2]
    azure.kill()
    azure.start()
    assert work.call(call("add", 2, 2)) == [4]


def test_a_task_whose_worker_dies_is_run_by_another(farm: Callable[..., Farm]) -> None:
    """R-SETTLE-10: acknowledged late, so its message comes again when the connection is gone."""
    work = farm()
    work.start_worker()
    work.call(call("linger", 15), wait=False)
    until_blocking("it has begun", lambda: work.noted()["linger begins"] == 1, WITHIN_S)
    work.kill_worker()
    work.start_worker()
    until_blocking("it has ended", lambda: work.noted()["linger ends"] == 1, WITHIN_S)
    assert work.noted()["linger begins"] == 2
    until_blocking("it is acknowledged", lambda: work.left() == 0)


def test_a_lock_is_renewed_while_a_task_takes_longer(farm: Callable[..., Farm]) -> None:
    """kombu's own renewal, with locks of five seconds: the task runs once."""
    work = farm(LOCK_S="5")
    work.start_worker()
    assert work.call(call("linger", 12), call("tell_time", countdown=12))[0] == "done"
    until_blocking("all are acknowledged", lambda: work.left() == 0)
    assert work.noted() == Counter({"linger begins": 1, "linger ends": 1, "tell_time": 1})
