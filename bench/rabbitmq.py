"""RabbitMQ as a peer: a node of its own with the AMQP 1.0 plugin and quorum queues.

The node, its name service (epmd) and everything they write live in one folder and end with the
measurement; an installed service is neither used nor touched.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from bench.brokers import Broker, BrokerFailed, BrokerMissing, free_port, inherited, said

# Debian puts a wrapper on the path that changes user and folder; the scripts themselves are here.
_DEBIAN = Path("/usr/lib/rabbitmq/bin")
_LOOPBACK = "-kernel inet_dist_use_interface {127,0,0,1}"


class RabbitMQ(Broker):
    name = "RabbitMQ"
    user = "guest"
    password = "guest"
    settlement = "first"
    # 3.10 ends the session: "rcv-settle-mode second not supported".
    without_second = "refuses mode second"

    @classmethod
    def obtain(cls) -> Path:
        """The folder with rabbitmq-server and rabbitmqctl."""
        if (_DEBIAN / "rabbitmq-server").exists():
            return _DEBIAN
        if found := shutil.which("rabbitmq-server"):
            return Path(found).resolve().parent
        raise BrokerMissing("rabbitmq-server is not installed")

    def __init__(self, folder: Path, queues: Sequence[str], scripts: Path) -> None:
        super().__init__(folder)
        self._scripts = scripts
        self._queues = queues
        self._version = ""
        self._epmd_port = free_port()
        (folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{self.port}\n")
        (folder / "enabled_plugins").write_text("[rabbitmq_amqp1_0].\n")
        self._environment = {
            **inherited("RABBITMQ_", "ERL_", "CONF_ENV_FILE", "NOTIFY_SOCKET"),
            # The cookie that lets rabbitmqctl in is made here.
            "HOME": str(folder),
            "RABBITMQ_NODENAME": f"postbus-bench-{os.getpid()}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _LOOPBACK,
            "RABBITMQ_CTL_ERL_ARGS": _LOOPBACK,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
            # Makes the script become the node instead of waiting beside it: one process to end.
            "RUNNING_UNDER_SYSTEMD": "true",
        }

    @property
    def full_name(self) -> str:
        return f"{self._version}, AMQP 1.0 plugin, quorum queue, one node, default settings"

    def start(self) -> None:
        # Started by us, or else the node leaves one running that nobody owns.
        epmd = shutil.which("epmd")
        if epmd is None:
            raise BrokerFailed("RabbitMQ needs epmd, which comes with Erlang")
        self.launch([epmd, "-port", str(self._epmd_port)], self._environment)
        self.launch([str(self._scripts / "rabbitmq-server")], self._environment)
        self.wait_until_served()
        self._control("await_startup")
        self._declare()
        release = "erlang:system_info(otp_release)"
        told = self._control("eval", f"{{rabbit_misc:version(), {release}}}.")
        number, erlang = json.loads(told.strip().replace("{", "[").replace("}", "]"))
        self._version = f"RabbitMQ {number} on Erlang {erlang}"

    def _declare(self) -> None:
        definitions = {
            "queues": [
                {
                    "name": queue,
                    "vhost": "/",
                    "durable": True,
                    "auto_delete": False,
                    "arguments": {"x-queue-type": "quorum"},
                }
                for queue in self._queues
            ]
        }
        path = self.folder / "definitions.json"
        path.write_text(json.dumps(definitions))
        self._control("import_definitions", str(path))
        listed = self._control("list_queues", "name", "type", "--quiet", "--no-table-headers")
        quorum = {line.split()[0] for line in listed.splitlines() if line.split()[1:] == ["quorum"]}
        if not set(self._queues) <= quorum:
            raise BrokerFailed(f"RabbitMQ did not make the quorum queues: {listed}")

    def _control(self, *arguments: str) -> str:
        return said([str(self._scripts / "rabbitmqctl"), *arguments], self._environment)

    def address(self, queue: str) -> str:
        return f"/amq/queue/{queue}"

    def complaints(self) -> list[str]:
        lines = [
            line
            for path in sorted((self.folder / "log").glob("*.log"))
            for line in path.read_text(errors="replace").splitlines()
        ]
        marks = ("[warning]", "[error]", "[critical]")
        return [line for line in lines if any(mark in line for mark in marks)]
