"""Listening sockets, which outlive a restart in place: callers wait for the new process instead of being refused.

The process that restarts passes the descriptors on in an environment variable, by address. Each server of the new one
takes its own; an address that is not listened on any more is closed.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
from collections.abc import Iterable, MutableMapping
from functools import partial
from pathlib import Path

from reconsume.sidecar.background import on_own_thread
from reconsume.sidecar.settings.addresses import Listen

VARIABLE = "SIDECAR_SOCKETS"
"""It has not the prefix of settings, because it is not one."""
SOCKET_MODE = 0o660
"""The service reaches the socket by the pod's fsGroup; no other user does."""


def shown(listen: Listen) -> str:
    """Return an address as it is shown."""
    return f"unix:{listen.path}" if listen.path is not None else f"{listen.host}:{listen.port}"


async def listener_on(listen: Listen) -> socket.socket:
    """Return the socket of an address: the one of the process before, or a new one. Raises OSError."""
    handed_over: dict[str, int] = json.loads(os.environ.get(VARIABLE, "{}"))
    if (descriptor := handed_over.pop(shown(listen), None)) is not None:
        os.environ[VARIABLE] = json.dumps(handed_over)
        os.set_inheritable(descriptor, False)
        return socket.socket(fileno=descriptor)
    return _bind_unix(Path(listen.path)) if listen.path is not None else await _bind_tcp(listen)


def close_unclaimed(environ: MutableMapping[str, str]) -> None:
    """Close the sockets that were handed over and that no server has taken."""
    for descriptor in json.loads(environ.pop(VARIABLE, "{}")).values():
        os.close(descriptor)


def hand_over(listeners: Iterable[tuple[str, socket.socket]], environ: MutableMapping[str, str]) -> None:
    """Leave these sockets, by address, and the standard streams open for the next program, and nothing else."""
    kept = {address: listener.detach() for address, listener in listeners}
    for entry in Path("/dev/fd").iterdir():
        if (descriptor := int(entry.name)) > 2:
            try:
                os.set_inheritable(descriptor, descriptor in kept.values())
            except OSError as failure:  # the one that the folder was listed with
                if failure.errno != errno.EBADF:
                    raise
    environ[VARIABLE] = json.dumps(kept)


async def _bind_tcp(listen: Listen) -> socket.socket:
    """Return a socket on the first address of the name that can be bound."""
    ask = partial(socket.getaddrinfo, listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses = await on_own_thread("lookup", ask)
    refused: tuple[object, ...] = ("the name has no address",)
    for family, kind, protocol, _, address in addresses:
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setblocking(False)
            listener.bind(address)
        except OSError as refusal:
            listener.close()
            refused = refusal.args
        else:
            return listener
    raise OSError(*refused)


def _bind_unix(path: Path) -> socket.socket:
    """Return a socket at `path`.

    A socket that a crashed process left there is removed. One that a process listens on is not: then OSError is raised.
    """
    if path.exists():
        _check_stale(path)
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.bind(str(path))
        path.chmod(SOCKET_MODE)  # before listen, so that no caller can connect while the mode is wider
    except OSError:
        listener.close()
        raise
    return listener


def _check_stale(path: Path) -> None:
    """Raise OSError unless `path` is a socket that no process listens on."""
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise FileExistsError(errno.EEXIST, "a file that is no socket stands there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
