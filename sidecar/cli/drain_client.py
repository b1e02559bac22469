"""`POST /drain` from the same pod: the call of a preStop hook, without a shell.

This is only the call. The running sidecar does the drain (`api/app.py`).
"""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

from reconsume.sidecar.errors import SetupError
from reconsume.sidecar.http.sidecar_connection import SidecarConnection
from reconsume.sidecar.http.tokens import read_tokens
from reconsume.sidecar.settings.addresses import Listen
from reconsume.topics.durations import render_duration

ANSWER_WITHIN = 5.0
"""Seconds to wait beyond the drain itself: the sidecar answers at its own deadline, not before."""
LONGEST_ANSWER = 65_536


class Drained(NamedTuple):
    """The sidecar's answer: `left` deliveries were still out at its deadline."""

    drained: bool
    left: int


def drain(
    address: Listen, wait: float, timeout: int | None = None, token: str = "", group: str | None = None
) -> Drained:
    """Ask the sidecar that listens on `address` to drain, and wait for its answer.

    `timeout`: the longest drain in ms, None for the sidecar's own `drain_timeout`. `wait`: the longest drain in
    seconds; the client waits ANSWER_WITHIN more. `token`: needed if the API requires one. `group`: the sidecar's, None
    for any; the usual port is the same in all groups. Raises SetupError if no sidecar answers, if it is of another
    group, or if the answer is not that of a drain.
    """
    query = {} if timeout is None else {"timeout": render_duration(timeout)}
    query |= {} if group is None else {"group": group}
    connection = SidecarConnection(address, wait + ANSWER_WITHIN)
    try:
        headers = {"Host": "localhost", "Content-Length": "0"}
        connection.request("POST", f"/drain?{urlencode(query)}", headers=headers | (bearer(token) if token else {}))
        answer = connection.getresponse()
        body = answer.read(LONGEST_ANSWER)
    except (OSError, http.client.HTTPException) as error:
        raise SetupError(f"no sidecar answers on {address} (api.listen): {error or type(error).__name__}") from error
    finally:
        connection.close()
    return _read(address, answer.status, body)


def bearer(token: str) -> dict[str, str]:
    """Return the header that carries a token."""
    return {"Authorization": f"Bearer {token}"}


def token_in(file: Path) -> str:
    """Return the first token of a token file, without its name. Raises SetupError if there is none."""
    try:
        tokens = read_tokens(file).tokens
        first = tokens[0].secret.decode("ascii") if tokens else ""
    except (OSError, UnicodeDecodeError) as fault:
        why = fault.strerror if isinstance(fault, OSError) else "it is not ASCII"
        raise SetupError(f"the token file {file} (api.token_file) cannot be read: {why}") from fault
    if not first.isprintable() or not first:
        raise SetupError(f"the token file {file} (api.token_file) holds no token")
    return first


def _read(address: Listen, status: int, body: bytes) -> Drained:
    try:
        answer = json.loads(body)
        drained = Drained(answer["drained"] is True, int(answer["left"]))
    except (ValueError, KeyError, TypeError):
        drained = None
    if status == 401:
        raise SetupError(
            f"the sidecar on {address} asks for a token: name its file in api.token_file, or by --token-file"
        )
    if status == 409:
        raise SetupError(
            f"the sidecar on {address} is of another group, and goes on: name the address of this group's "
            "in api.listen, or by --api"
        )
    if status != 200 or drained is None:
        raise SetupError(f"what answers on {address} does not drain: HTTP {status}")
    return drained
