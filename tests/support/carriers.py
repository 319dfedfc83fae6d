"""How a client of the Python SDK is told to use TLS or WebSockets (docs/transports.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from azure.servicebus import TransportType

from postbus.settings import MADE_CERTIFICATE
from postbus.tls.local_ca import CA_CERTIFICATE, make_certificate
from tests.support.server import Server

CARRIERS = ("tls", "websocket", "websocket_tls")


def make_local_ca(data: Path) -> Path:
    """What `postbus cert` makes for this data folder; returns the CA that clients are to trust."""
    folder = data / MADE_CERTIFICATE.parent
    make_certificate(folder, [])
    return folder / CA_CERTIFICATE


def local_ca(server: Server) -> Path:
    return server.data / MADE_CERTIFICATE.parent / CA_CERTIFICATE


def encrypted(connection_string: str) -> str:
    """The same without the emulator's switch, which is what tells the SDKs not to use TLS."""
    return connection_string.replace(";UseDevelopmentEmulator=true", "")


def carried_by(carrier: str, server: Server) -> dict[str, Any]:
    """Options of a client; its connection string is among them."""
    options: dict[str, Any] = {
        "connection_string": server.connection_string,
        # The port in the connection string is honoured over plain TCP only (wire §1.1).
        "custom_endpoint_address": f"sb://localhost:{server.port}",
        "transport_type": (
            TransportType.Amqp if carrier == "tls" else TransportType.AmqpOverWebsocket
        ),
    }
    if carrier != "websocket":
        options["connection_string"] = encrypted(server.connection_string)
        options["connection_verify"] = str(local_ca(server))
    return options
