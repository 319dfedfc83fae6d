"""Apache ActiveMQ Artemis as a peer: one broker from Maven, with a journal that syncs its data.

The programs are kept under build/ from one measurement to the next. The instance with its journal
lives in the folder of the measurement and ends with it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from bench.brokers import ROOT, Broker, BrokerFailed, BrokerMissing, inherited, said

VERSION = "2.40.0"
_ARTIFACT = f"org.apache.activemq:apache-artemis:{VERSION}:tar.gz:bin"
_KEPT = ROOT / "build" / "artemis"
_OTHER_PROTOCOLS = ("stomp", "mqtt", "hornetq", "amqp")


class Artemis(Broker):
    name = "Artemis"
    user = "guest"
    password = "guest"
    settlement = "at-once"
    without_second = "takes mode second and never settles"
    # The virtual machine compiles its hot code while it runs.
    warm_up_count = 500_000

    @classmethod
    def obtain(cls) -> Path:
        """The folder of the programs, fetched once by Maven."""
        for program in ("java", "mvn"):
            if shutil.which(program) is None:
                raise BrokerMissing(f"{program} is not installed")
        home = _KEPT / f"apache-artemis-{VERSION}"
        if not home.exists():
            _fetch(home)
        return home

    def __init__(self, folder: Path, queues: Sequence[str], home: Path) -> None:
        super().__init__(folder)
        self._home = home
        self._queues = queues
        self._instance = folder / "instance"
        # Options of Java that are meant for other programs.
        self._environment = inherited("ARTEMIS_", "JAVA_ARGS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")

    @property
    def full_name(self) -> str:
        settings = (self._instance / "etc" / "broker.xml").read_text()
        kind, synced = (
            re.findall(f"<journal-{name}>(.*)</", settings)[0] for name in ("type", "datasync")
        )
        java = re.findall(r'version "(.*?)"', said(["java", "-version"]))[0]
        how = "with data-sync" if synced == "true" else "WITHOUT data-sync"
        return f"Artemis {VERSION} on Java {java}, {kind} journal {how}, default settings"

    def start(self) -> None:
        said(
            [
                *(str(self._home / "bin" / "artemis"), "create", str(self._instance), "--silent"),
                *("--user", self.user, "--password", self.password, "--require-login"),
                *("--host", "127.0.0.1", "--default-port", str(self.port), "--no-web"),
                *(f"--no-{protocol}-acceptor" for protocol in _OTHER_PROTOCOLS),
                *("--queues", ",".join(self._queues)),
            ],
            self._environment,
        )
        self.launch([str(self._instance / "bin" / "artemis"), "run"], self._environment)
        self.wait_until_served()

    def address(self, queue: str) -> str:
        return queue

    def complaints(self) -> list[str]:
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if re.search(r"\b(WARN|ERROR|FATAL)\b", line)]


def _fetch(home: Path) -> None:
    command = ["mvn", "--quiet", "--batch-mode", "dependency:copy", f"-Dartifact={_ARTIFACT}"]
    command += [f"-DoutputDirectory={_KEPT}", "-Dmdep.useBaseVersion=true"]
    try:
        said(command)
    except BrokerFailed as error:
        raise BrokerMissing(f"Maven cannot fetch it: {' '.join(str(error).split())}") from error
    # Unpacked beside it first: a folder of that name is always whole.
    unpacked = _KEPT / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    shutil.unpack_archive(_KEPT / f"apache-artemis-{VERSION}-bin.tar.gz", unpacked)
    (unpacked / home.name).rename(home)
