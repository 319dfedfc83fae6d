"""Spark for tests: small, quiet, with this checkout on the path of its workers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    """What a process needs so that Spark's workers find the data source where the tests do."""
    path = [str(ROOT / "src"), str(ROOT)]
    path += [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    return {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # Not the address of some interface: a test talks to its own machine only.
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def prepare_environment() -> None:
    os.environ.update(environment())


def session_builder(master: str) -> SparkSession.Builder:
    return (
        SparkSession.builder.master(master)
        .appName("postbus tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config("spark.log.level", "ERROR")
    )


class Program:
    """A driver in a process group of its own, to be killed with its JVM and workers."""

    def __init__(self, path: Path, log: Path, *arguments: str) -> None:
        self.log = log
        with log.open("a") as out:
            self._process = subprocess.Popen(
                [sys.executable, str(path), *arguments],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment()},
                start_new_session=True,
            )

    def kill(self) -> None:
        """End the driver, its JVM and its Python workers at once, as a power cut does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self, within_s: float) -> None:
        """Return when it has ended well."""
        try:
            status = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running after {within_s} s\n{self.tail()}") from None
        assert status == 0, self.tail()

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-60:])
