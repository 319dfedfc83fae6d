"""TLS for a connection whose first bytes have been read already.

`loop.start_tls` expects them still to be in the socket. They are fed to its protocol by the calls
with which a transport feeds it, at the one moment when that is in order: after it has been told of
the connection, and before anything more is read.
"""

import asyncio
import ssl
from typing import Final, cast

SHUTDOWN_S: Final = 2.0
"""How long a peer may take to answer the end of the layer (RFC 8446 6.1) before it is cut off."""


async def encrypt(
    transport: asyncio.Transport,
    protocol: asyncio.Protocol,
    context: ssl.SSLContext,
    first: bytes,
    timeout_s: float,
) -> asyncio.Transport:
    """Do the server's side of the handshake; returns the transport inside it.

    `protocol` is told neither of the connection nor, where the handshake fails, of its loss. It may
    be given data before this returns. Raises OSError, of which every TLS fault is one.
    """
    transport.pause_reading()
    loop = asyncio.get_running_loop()
    starting = loop.create_task(
        loop.start_tls(
            transport,
            protocol,
            context,
            server_side=True,
            ssl_handshake_timeout=timeout_s,
            ssl_shutdown_timeout=SHUTDOWN_S,
        )
    )
    # Its first step sets the protocol and puts two calls in line: connection_made, and
    # resume_reading. Ours comes third, and only then does the loop look at the socket again.
    await asyncio.sleep(0)
    loop.call_soon(_feed, transport, first)
    encrypted = await starting
    if encrypted is None or encrypted.is_closing():
        raise ConnectionResetError("gone before the handshake was done")
    return encrypted


def _feed(transport: asyncio.Transport, data: bytes) -> None:
    layer = cast("asyncio.BufferedProtocol", transport.get_protocol())
    while data and not transport.is_closing():
        buffer = cast("memoryview", layer.get_buffer(len(data)))
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        layer.buffer_updated(size)
        data = data[size:]
