"""What a peer had sent before its connection broke, and nobody had read yet.

The SDK for Python closes its socket right behind its close frame, with answers of ours unread.
The next thing that is written there fails, and the loop ends the transport by that, although the
close frame lies in the kernel. It tells an orderly end from a broken connection (R-SETTLE-10).
"""

import asyncio
import os
from typing import Final

UNREAD_MAX: Final = 256 * 1024
"""Bytes that are looked at. A peer that leaves more behind has not closed in order."""
_AT_ONCE: Final = 64 * 1024


def unread(transport: asyncio.BaseTransport) -> bytes:
    """The bytes that are left in the kernel, of a connection without TLS or a WebSocket."""
    socket = transport.get_extra_info("socket")
    if socket is None:
        return b""
    found = bytearray()
    try:
        while len(found) < UNREAD_MAX:
            part = os.read(socket.fileno(), _AT_ONCE)
            if not part:
                break
            found += part
    except OSError:
        pass  # nothing more is there
    return bytes(found)
