"""Handle exceptions that no code on the event loop caught: log them with traceback, count them, and end the process.

A callback that breaks off in the middle leaves its lane in doubt. A place in flight may never be free again, or a
record may be in no part of the lane. A new process begins at what Kafka knows. An exception that belongs to one call of
the API, or to one answer of the service, ends only its connection. The record on that connection has its outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

from reconsume.sidecar.delivery.push.connection import Connection
from reconsume.sidecar.http.protocol import Protocol

_LOG = logging.getLogger("reconsume.run")


class LoopFaults:
    """The exception handler of one event loop."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(connection=0, sidecar=0)
        """The number of exceptions, by what they belong to."""
        self.fatal = ""
        """The first exception after which the process must end, as a sentence; empty if there was none."""

    def handle(self, _loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        """Log and count what the event loop reports (`loop.set_exception_handler`)."""
        fault, message = context.get("exception"), str(context.get("message") or "the event loop has a fault")
        if fault is None:  # something was not closed or not awaited: no callback was broken off
            _LOG.warning("%s", message, extra={"event": "loop-warning"})
            return
        scope = "connection" if of_one_connection(context) else "sidecar"
        self.counts[scope] += 1
        if scope == "sidecar" and not self.fatal:
            self.fatal = f"the event loop: {message}: {fault!r}"
        info = (type(fault), fault, fault.__traceback__)
        extra = {"event": "loop-fault", "scope": scope}
        _LOG.error("uncaught exception on the event loop: %s", message, exc_info=info, extra=extra)


def of_one_connection(context: Mapping[str, Any]) -> bool:
    """Whether an exception ends only one connection."""
    protocol = context.get("protocol") or _begun_by(context["exception"])
    if isinstance(protocol, Connection):
        # A connection to the service calls the lane with the answer. While it still has its delivery, it has not done
        # so: the loss of the connection, which follows, is the outcome. Afterwards the exception is the lane's own.
        return protocol.delivery is not None
    if isinstance(protocol, Protocol):
        return True
    return isinstance(context["exception"], OSError) and not context.keys() & {"handle", "task", "future"}


def _begun_by(fault: BaseException) -> object:
    """Return the object whose method the loop has called: a timer of a connection is reported without its protocol."""
    trace = fault.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(("asyncio.", "uvloop.")):
        trace = trace.tb_next
    return None if trace is None else trace.tb_frame.f_locals.get("self")
