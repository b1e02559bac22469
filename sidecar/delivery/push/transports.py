"""What a transport says of itself: whether it is TLS, was reset, and how much of what was written has not left."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import socket
import struct
import termios


def has_unsent(transport: asyncio.Transport) -> bool:
    """Return whether a part of what was written is still here.

    Under TLS the transport does not count what it has encrypted. Then the kernel's queue says it: the rest waits for a
    place there.
    """
    if transport.get_write_buffer_size() > 0:
        return True
    return is_secure(transport) and unacknowledged(transport.get_extra_info("socket")) > 0


def is_secure(transport: asyncio.Transport) -> bool:
    """Return whether a transport is TLS."""
    return transport.get_extra_info("sslcontext") is not None


def unacknowledged(own: socket.socket | None) -> int:
    """Return how many bytes the peer's kernel has not acknowledged; 0 if this system does not say.

    A Unix socket is accepted by the kernel in one step, and its count is of something else: what the peer has not read.
    """
    if own is None or own.family == socket.AF_UNIX:
        return 0
    try:
        size: bytes = fcntl.ioctl(own.fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:
        return 0
    return int(struct.unpack("i", size)[0])


def has_reset(own: socket.socket | None) -> bool:
    """Return whether the peer's kernel has refused what was written: its process had closed the socket.

    Behind the end of the stream no read reports that. Asking takes the error from the socket.
    """
    if own is None:
        return False
    try:
        return own.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in (errno.EPIPE, errno.ECONNRESET)
    except OSError:
        return False
