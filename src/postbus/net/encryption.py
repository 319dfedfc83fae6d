"""TLS for a connection whose first bytes have been read already.

`loop.start_tls` expects these bytes still to be in the socket. So they go to its protocol by the
calls that a transport uses. There is one right moment: after `connection_made`, and before the loop
reads anything more.
"""

import asyncio
import ssl
from typing import Final, cast

SHUTDOWN_S: Final = 2.0
"""How long a peer may take to answer the end of TLS (RFC 8446 6.1) before it is cut off."""


async def encrypt(
    transport: asyncio.Transport,
    protocol: asyncio.Protocol,
    context: ssl.SSLContext,
    first: bytes,
    timeout_s: float,
) -> asyncio.Transport:
    """Do the server's side of the handshake; returns the transport inside it.

    `protocol` hears of no new connection, and of no loss where the handshake fails. It may get data
    before this returns. Raises OSError, the base of every TLS fault.
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
    # The first step of `start_tls` sets the protocol and queues two calls: connection_made and
    # resume_reading. Our call is the third, and only then does the loop look at the socket again.
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
