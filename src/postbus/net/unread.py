"""The unread bytes of a connection that broke.

The Python SDK closes its socket right behind its close frame, with answers of ours unread. Our next
write fails, and the loop ends the transport, although the close frame is in the kernel. The close
frame tells an orderly end from a broken connection (R-SETTLE-10).
"""

import asyncio
import os
from typing import Final

UNREAD_MAX: Final = 256 * 1024
"""Bytes to look at. A peer that leaves more behind has not closed in order."""
_AT_ONCE: Final = 64 * 1024


def unread(transport: asyncio.BaseTransport) -> bytes:
    """The bytes left in the kernel, for a connection without TLS or a WebSocket."""
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
