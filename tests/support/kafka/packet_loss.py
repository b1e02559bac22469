"""Packet loss by the kernel: a socket filter that lets no packet in. Linux; needs no rights and no tool.

Retransmission, its back-off, and what a closed socket still has to send are then the kernel's own.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import sys

AVAILABLE = sys.platform == "linux"
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
"""Of `asm-generic/socket.h`; Python has no names for them."""
RETURN_NOTHING = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
"""One instruction (`struct sock_filter`) of the classic BPF: keep 0 bytes of the packet, which drops it."""
DROP_ALL = struct.pack("HP", 1, ctypes.addressof(RETURN_NOTHING))
"""The program (`struct sock_fprog`): so many instructions, and where they are."""


def lose_packets(sock: socket.socket, *, lossy: bool) -> None:
    """Drop all that arrives for a socket from now on, or let it in again. A listener loses attempts to connect."""
    if lossy:
        sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, DROP_ALL)
    else:
        sock.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
