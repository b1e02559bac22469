"""The audit lines of the API: which token made which call that changes something, and from where."""

from __future__ import annotations

import logging
from functools import partial

from starlette.types import Message, Scope, Send

TOKEN_NAME = "reconsume.token"
"""The key of a call's scope that has the name of its token."""
NO_TOKEN = "none"
"""What stands for the token where no token file is set."""
NOT_MADE = (404, 405)
"""Statuses of calls that do not exist. Their paths are the caller's own words, and nothing has changed."""

_LOG = logging.getLogger("reconsume.audit")


def audited(scope: Scope, send: Send) -> Send:
    """Return a `send` that writes the audit line of a call when its answer begins."""
    return partial(_send, scope, send)


async def _send(scope: Scope, send: Send, message: Message) -> None:
    if message["type"] == "http.response.start" and message["status"] not in NOT_MADE:
        caller = {"token": scope.get(TOKEN_NAME, NO_TOKEN), "peer": peer_of(scope)}
        line = {"event": "api-call", "action": scope["path"], "status": message["status"], **caller}
        _LOG.info("a call that changes something was answered", extra=line)
    await send(message)


def tell_refused(scope: Scope, path: str, status: int, *, operators: bool) -> None:
    """Write the audit line of a call that is refused before it is made.

    `path`: of the call as the API defines it, never as the caller wrote it. `operators`: whether it is a call of
    operators; such lines have a limit of their own.
    """
    about = {"action": path, "status": status, "token": scope.get(TOKEN_NAME, NO_TOKEN), "peer": peer_of(scope)}
    if operators:
        _LOG.warning("a call of operators is refused", extra={"event": "operator-call-refused", **about})
    else:
        _LOG.warning("a call is refused", extra={"event": "api-refused", **about})


def peer_of(scope: Scope) -> str:
    """Return the address from which a call comes; `unix` for a socket."""
    client = scope.get("client")
    return client[0] if client else "unix"
