"""What lies in the kernel when a write has ended the transport is still looked at."""

from __future__ import annotations

import asyncio
import socket

from postbus.net.unread import unread


async def test_what_a_peer_sent_before_it_left_is_found() -> None:
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    transport.pause_reading()
    theirs.send(b"close")
    theirs.close()
    assert unread(transport) == b"close"
    assert unread(transport) == b""
    transport.abort()


async def test_nothing_is_no_error() -> None:
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    assert unread(transport) == b""
    theirs.close()
    transport.abort()
