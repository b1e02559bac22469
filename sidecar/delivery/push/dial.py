"""Connect to the service: by a Unix socket, or by TCP to the first of its hosts that accepts.

A failure is returned as a word, never as an exception. An exception that is kept beyond its handler holds the frames
that it has passed, and so the connection and its request: an outage would fill the memory.
"""

from __future__ import annotations

import asyncio
import errno
import socket

from sidecar.delivery.push.target import Target

LOOK_AGAIN_S = 0.01
"""Seconds until a Unix socket with a full backlog is tried again."""

REASONS: tuple[tuple[type[OSError], str], ...] = (
    (ConnectionRefusedError, "connection-refused"),
    (FileNotFoundError, "no-such-socket"),
    (socket.gaierror, "no-such-host"),
    (TimeoutError, "connect-timeout"),
)


async def dial(loop: asyncio.AbstractEventLoop, target: Target, protocol: asyncio.Protocol) -> str:
    """Connect. Return why no connection was made; empty once there is one."""
    if target.socket_path:
        return await _dial_socket(loop, target.socket_path, protocol)
    return await _dial_hosts(loop, target, protocol)


async def _dial_hosts(loop: asyncio.AbstractEventLoop, target: Target, protocol: asyncio.Protocol) -> str:
    """Try each host in turn. If all fail, the first error is the one to report: `::1` may not exist on this host."""
    first = ""
    for host in target.hosts:
        try:
            # Not left to create_connection: if the dial is given up meanwhile, nothing reads the error of a lookup that
            # fails later (uvloop 0.23). It would end the process.
            addresses = await loop.getaddrinfo(host, target.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as fault:
            first = first or reason_of(fault)
            continue
        for *_, address in addresses:
            reason = await _dial_address(loop, str(address[0]), target.port, protocol)
            if not reason:
                return ""
            first = first or reason
    return first


async def _dial_address(loop: asyncio.AbstractEventLoop, address: str, port: int, protocol: asyncio.Protocol) -> str:
    try:
        await loop.create_connection(lambda: protocol, address, port)
    except OSError as fault:
        return reason_of(fault)
    return ""


async def _dial_socket(loop: asyncio.AbstractEventLoop, path: str, protocol: asyncio.Protocol) -> str:
    """Connect to a Unix socket, and wait while its backlog is full.

    A full backlog answers EAGAIN at once, where TCP would wait. The service is there and busy, so an outage must not be
    declared. The connect timeout ends the wait.
    """
    while True:
        try:
            await loop.create_unix_connection(lambda: protocol, path)
        except OSError as fault:
            if fault.errno != errno.EAGAIN:
                return reason_of(fault)
        else:
            return ""
        await asyncio.sleep(LOOK_AGAIN_S)


def reason_of(fault: Exception) -> str:
    """Return why no connection was made, as a word for metrics and people."""
    return next((reason for kind, reason in REASONS if isinstance(fault, kind)), "unreachable")
