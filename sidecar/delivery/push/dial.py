"""Connect to the service: by a Unix socket, or by TCP to the first of its hosts that accepts, and by TLS where asked.

A connection by TLS is there when its handshake is over: before that no byte of a request is written. So whatever the
handshake ends with is a refused connection, and no attempt.

A failure is returned as a word, never as an exception. An exception that is kept beyond its handler holds the frames
that it has passed, and so the connection and its request: an outage would fill the memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from reconsume.sidecar.background import on_own_thread
from reconsume.sidecar.delivery.push.target import Target
from reconsume.sidecar.open_files import USED_UP, is_used_up

Addresses: TypeAlias = Sequence[tuple[Any, ...]]
"""What the system says of a name, as `socket.getaddrinfo` returns it."""
_LOOKUPS = WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, int], "asyncio.Future[Addresses | str]"]]()
"""The lookups in progress on each event loop, by host and port."""
LOOK_AGAIN_S = 0.01
"""Seconds until a Unix socket with a full backlog is tried again."""

REASONS: tuple[tuple[type[OSError], str], ...] = (
    (ConnectionRefusedError, "connection-refused"),
    (FileNotFoundError, "no-such-socket"),
    (socket.gaierror, "no-such-host"),
    (TimeoutError, "connect-timeout"),
)

UNTRUSTED = "tls-untrusted"
DISTRUST: Mapping[int, str] = {
    9: "tls-not-yet-valid",
    10: "tls-expired",
    62: "tls-wrong-name",
    64: "tls-wrong-name",  # of an address
}
"""Why a certificate is not accepted, by OpenSSL's X509_V_ERR numbers. Any other is a matter of the CA."""
REFUSED = "tls-client-refused"
"""The service does not accept our certificate, or wants one."""
REFUSALS = re.compile(r"ALERT_(CERTIFICATE|BAD_CERTIFICATE|UNSUPPORTED_CERTIFICATE|UNKNOWN_CA|ACCESS_DENIED)")


async def dial(
    loop: asyncio.AbstractEventLoop, target: Target, protocol: asyncio.Protocol, context: ssl.SSLContext | None = None
) -> str:
    """Connect. Return why no connection was made; empty once there is one. `context`: needed if the target has TLS."""
    if target.socket_path:
        return await _dial_socket(loop, target.socket_path, protocol)
    return await _dial_hosts(loop, target, protocol, context)


async def _dial_hosts(
    loop: asyncio.AbstractEventLoop, target: Target, protocol: asyncio.Protocol, context: ssl.SSLContext | None
) -> str:
    """Try each host in turn. If all fail, the first error is the one to report: `::1` may not exist on this host."""
    first = ""
    for host in target.hosts:
        addresses = await _look_up(host, target.port)
        if isinstance(addresses, str):
            first = first or addresses
            continue
        for *_, address in addresses:
            reason = await _dial_address(loop, target, str(address[0]), protocol, context)
            if not reason:
                return ""
            first = first or reason
    return first


async def _look_up(host: str, port: int) -> Addresses | str:
    """Return the addresses of a host, or why it has none.

    Not left to create_connection: if the dial is given up meanwhile, nothing reads the error of a lookup that fails
    later (uvloop 0.23). It would end the process. Dials of one host share one lookup and its thread, so that a name
    server that does not respond holds one thread for each host, and delays no other work.
    """
    lookups = _LOOKUPS.setdefault(asyncio.get_running_loop(), {})
    if (lookup := lookups.get((host, port))) is None:
        lookup = lookups[host, port] = asyncio.ensure_future(_ask_names(host, port))
        lookup.add_done_callback(lambda _ended: lookups.pop((host, port), None))
    return await asyncio.shield(lookup)


async def _ask_names(host: str, port: int) -> Addresses | str:
    try:
        with contextlib.suppress(socket.gaierror):  # a name; an address needs no thread
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        return await on_own_thread("lookup", partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError) as fault:
        return reason_of(fault)


async def _dial_address(
    loop: asyncio.AbstractEventLoop,
    target: Target,
    address: str,
    protocol: asyncio.Protocol,
    context: ssl.SSLContext | None,
) -> str:
    try:
        if not target.tls_name:
            await loop.create_connection(lambda: protocol, address, target.port)
            return ""
        if context is None:
            return UNTRUSTED
        name = target.tls_name
        await loop.create_connection(lambda: protocol, address, target.port, ssl=context, server_hostname=name)
    except (OSError, ValueError) as fault:  # the TLS library refuses some names and files by a ValueError
        return tls_reason(fault) if target.tls_name else reason_of(fault)
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
    if is_used_up(fault):
        return USED_UP
    return next((reason for kind, reason in REASONS if isinstance(fault, kind)), "unreachable")


def tls_reason(fault: Exception) -> str:
    """Return the same where the connection goes by TLS."""
    if isinstance(fault, ssl.SSLCertVerificationError):
        return DISTRUST.get(fault.verify_code, UNTRUSTED)
    if is_refusal(fault):
        return REFUSED
    reset = isinstance(fault, ssl.SSLError | ConnectionResetError | ConnectionAbortedError | BrokenPipeError)
    return "tls-handshake" if reset else reason_of(fault)


def is_refusal(fault: Exception | None) -> bool:
    """Return whether the service refuses our certificate, or misses it.

    Under TLS 1.3 it says so behind its own part of the handshake, when a request may be on its way already.
    """
    return isinstance(fault, ssl.SSLError) and REFUSALS.search(fault.reason or "") is not None
