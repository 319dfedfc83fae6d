"""What an operator sets up so that a name of Azure leads to Postbus, without being root.

In earnest these are a line in the hosts file, `serve --port 5671 --admin-port 443`, and the local
CA among those that Python trusts (docs/sdk-support.md). Programs with this folder on their path
see the same.
"""

import os
import socket
from typing import Any

import certifi

_resolve = socket.getaddrinfo
_port = int(os.environ["POSTBUS_PORT"])


def _resolve_azure(host: Any, port: Any, *rest: Any, **options: Any) -> Any:
    if str(host).endswith(".servicebus.windows.net"):
        return _resolve("127.0.0.1", _port, *rest, **options)
    return _resolve(host, port, *rest, **options)


socket.getaddrinfo = _resolve_azure
certifi.where = lambda: os.environ["POSTBUS_CA"]
