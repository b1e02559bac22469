"""`POST /drain` from the same pod: what a preStop hook does, without a shell.

Only the call lives here; what a drain is, is the running sidecar's (`api/app.py`).
"""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

from sidecar.errors import SetupError
from sidecar.settings.addresses import Listen
from topics.durations import render_duration

ANSWER_WITHIN = 5.0
"""Seconds beyond the drain itself: the sidecar answers at its own deadline, not before."""
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
LONGEST_ANSWER = 65_536


class Drained(NamedTuple):
    """What the sidecar answered: how many deliveries were still out at its deadline."""

    drained: bool
    left: int


def drain(place: Listen, wait: float, timeout: int | None = None, token: str = "") -> Drained:
    """Ask the sidecar that listens on `place` to drain, and wait for its answer.

    `timeout`: ms that it may take, None: its own `drain_timeout`. `wait`: seconds that the drain may take at most.
    `token`: where the API asks for one. Raises SetupError when no sidecar answers, or one that does not drain.
    """
    query = "" if timeout is None else f"?{urlencode({'timeout': render_duration(timeout)})}"
    connection = _Connection(place, wait + ANSWER_WITHIN)
    try:
        headers = {"Host": "localhost", "Content-Length": "0"}
        connection.request("POST", f"/drain{query}", headers=headers | (bearer(token) if token else {}))
        answer = connection.getresponse()
        body = answer.read(LONGEST_ANSWER)
    except (OSError, http.client.HTTPException) as error:
        raise SetupError(f"no sidecar answers on {shown(place)}: {error or type(error).__name__}") from error
    finally:
        connection.close()
    return _read(place, answer.status, body)


def bearer(token: str) -> dict[str, str]:
    """The header that shows a token."""
    return {"Authorization": f"Bearer {token}"}


def token_in(file: Path) -> str:
    """The first token of a token file. Raises SetupError."""
    try:
        lines = file.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as fault:
        why = fault.strerror if isinstance(fault, OSError) else "it is not ASCII"
        raise SetupError(f"the token file {file} cannot be read: {why}") from fault
    found = next(filter(None, map(str.strip, lines)), "")
    if not found.isprintable() or not found:
        raise SetupError(f"the token file {file} holds no token")
    return found


def shown(place: Listen) -> str:
    """The address as a setting says it."""
    host = f"[{place.host}]" if ":" in place.host else place.host
    return f"unix:{place.path}" if place.path is not None else f"{host}:{place.port}"


def _read(place: Listen, status: int, body: bytes) -> Drained:
    try:
        said = json.loads(body)
        found = Drained(said["drained"] is True, int(said["left"]))
    except (ValueError, KeyError, TypeError):
        found = None
    if status == 401:
        raise SetupError(
            f"the sidecar on {shown(place)} asks for a token: name its file in api.token_file, or by --token-file"
        )
    if status != 200 or found is None:
        raise SetupError(f"what answers on {shown(place)} does not drain: HTTP {status}")
    return found


class _Connection(http.client.HTTPConnection):
    """HTTP over TCP on loopback, or over a Unix socket."""

    def __init__(self, place: Listen, timeout: float) -> None:
        super().__init__(EVERYWHERE.get(place.host, place.host) or "localhost", place.port or None, timeout=timeout)
        self._path = place.path

    def connect(self) -> None:
        """Connect; Nagle's algorithm is of no use for one small request."""
        if self._path is None:
            super().connect()
            return
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
