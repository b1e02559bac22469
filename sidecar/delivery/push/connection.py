"""One kept-alive HTTP/1.1 connection: send a request in one write, read the answer, reply with its outcome.

Callbacks only; no task, future or timer belongs to a single request. The connection knows only its own request. The
pool (`pool.py`) decides where a free connection goes, and when one has waited too long. `response_reader.py` decides
what the answer means.

What a loss means (contract 1.6, 1.8, 1.10): before the write, NotSent. A reset on a connection that carried a response
says that the service did not read the request, so it is sent once more. Any other end before the head of a response is
complete may be the death of the service; `deaths.py` finds out. Behind a complete head it is a failed attempt.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

import msgspec

from reconsume.sidecar.core.outcome import CANCELLED, COMMITTED, Failed, NotSent
from reconsume.sidecar.core.record import Now
from reconsume.sidecar.delivery.push.batch_verdicts import WholeRefused
from reconsume.sidecar.delivery.push.dial import REFUSED, is_refusal
from reconsume.sidecar.delivery.push.response_reader import LOST, Interpret, Judged, ResponseReader
from reconsume.sidecar.delivery.push.transports import has_reset, has_unsent, is_secure

Delivery: TypeAlias = tuple[Any, Callable[[Any, Any, Now], None]]
"""What was sent (a record or a batch), and the callback for its outcome."""

TIMEOUT = Failed("timeout", "the service did not answer in time", "timeout")


class Wanted(msgspec.Struct, frozen=True):
    """A delivery that needs a connection, its rendered request, and what reads its answer."""

    delivery: Delivery
    request: bytes
    judge: Interpret | None
    until: float = 0.0
    """Loop time (seconds) by which a repeated request must be answered; 0 for one that was not sent yet. A repeated one
    takes no used connection."""


class Owner(Protocol):
    """The pool, as a connection uses it."""

    clock: Callable[[], Now]

    def freed(self, connection: Connection, delivery: Delivery, judged: Judged) -> None:
        """Take back a connection that may carry another request, and pass its answer on."""

    def gone(self, connection: Connection) -> None:
        """Forget a connection for good. A second call must be harmless."""

    def ended(self, connection: Connection, delivery: Delivery | None, judged: Judged) -> None:
        """Measure a delivery that was sent and ended together with its connection."""

    def repeat(self, delivery: Delivery, judge: Interpret, until: float) -> None:
        """Send once more, on a new connection, what the service did not read on a used one."""

    def hung_up(self, connection: Connection) -> None:
        """Note that the service has ended a connection that was idle, or whose response had not begun."""

    def lost(self, lost: LostRequest) -> None:
        """Find out whether the service has died with a request, and reply to it."""

    def due(self, delivery: Delivery) -> float:
        """Return when the answer to a request that is sent now is due (loop time)."""

    def admits(self, transport: asyncio.Transport) -> bool:
        """Return whether the connected peer may get records."""


class LostRequest(NamedTuple):
    """A request that may have been read, and whose connection has ended without a response."""

    delivery: Delivery
    judge: Interpret | None
    until: float
    """Loop time (seconds) by which it must be answered."""
    was_reset: Callable[[], bool]
    """Returns whether a reset came behind the end: then the service did not read the request. Closes the socket."""
    otherwise: Judged = LOST
    """The outcome if the service lives."""


def is_never_reset() -> bool:
    """Return that nothing more is known of the connection of a lost request."""
    return False


class Connection(asyncio.Protocol):
    """One connection, which carries at most one request at a time. It is free when it has no delivery."""

    __slots__ = (
        "_judge",
        "_owner",
        "_reading",
        "_request",
        "_transport",
        "_until",
        "_write",
        "answered",
        "began",
        "deadline",
        "delivery",
        "sent",
        "task",
    )

    def __init__(self, owner: Owner, reading: ResponseReader, deadline: float) -> None:
        self._owner = owner
        self._reading = reading
        self._transport: asyncio.Transport | None = None
        self.task: asyncio.Task[None] | None = None
        """The task that connects; None once it is over."""
        self.delivery: Delivery | None = None
        self.sent = False
        self.answered = False
        """Whether it has carried an answer: then the service has accepted it."""
        self.began = 0.0
        """Loop time (seconds) at which the connection got its delivery. Set by the pool."""
        self.deadline = deadline
        """Loop time (seconds) by which the next step must have happened: the connection, the answer, or the next
        use."""

    @property
    def status(self) -> int:
        """The status of the last response, 0 if there was none, where it is read of each (`responses.py`)."""
        return self._reading.status

    @property
    def socket(self) -> socket.socket | None:
        """The socket; None while there is none."""
        transport = self._transport
        own: socket.socket | None = None if transport is None else transport.get_extra_info("socket")
        return own

    def hold(self, delivery: Delivery, request: bytes, until: float, judge: Interpret | None) -> None:
        """Keep a request until the connection is open.

        Its answer is due at `until` (loop time); if that is 0, as usual after the connection is open.
        """
        self.delivery, self._request, self._until, self._judge = delivery, request, until, judge

    def send(self, delivery: Delivery, request: bytes, until: float, judge: Interpret | None) -> None:
        """Write a request now, on an open and free connection.

        `judge` reads the answer; None for the usual reader.
        """
        self.delivery = delivery
        self.deadline = until
        self.sent = True
        if judge is not None:
            self._reading.judge = judge
        self._write(request)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the held request, unless it was given up meanwhile or the peer may not get it."""
        self._transport = cast(asyncio.Transport, transport)
        self._write = self._transport.write
        self.task = None
        if self.delivery is None:
            self.drop()
        elif not self._owner.admits(self._transport):
            self.fail(NotSent("forbidden-address"))
        else:
            self.send(self.delivery, self._request, self._until or self._owner.due(self.delivery), self._judge)
            self._request = b""

    def data_received(self, data: bytes) -> None:
        """Read on, and reply with the outcome once the answer is complete."""
        delivery = self.delivery
        if delivery is None:
            # Bytes without a request (a 408 before closing): what comes next could be mistaken for an answer.
            self.drop()
            return
        outcome = self._reading.feed(data)
        if outcome is None:
            return
        transport = self._transport
        early = outcome is not COMMITTED and transport is not None and has_unsent(transport)
        if early or not self._reading.keep_alive:  # early: the answer came before the whole request was sent
            if self.answered and is_goodbye(outcome):
                self._repeat(delivery)
            else:
                self.fail(outcome)
            return
        self.delivery = None
        self.sent = False
        self.answered = True
        self._owner.freed(self, delivery, outcome)

    def eof_received(self) -> bool:
        """Take the end of the stream as the end of the answer.

        Returns whether the transport stays open: while it is found out whether the service has died.
        """
        # A request that reaches a socket which its service has closed is answered by a reset, behind the end.
        return self._hung_up(whole=True, is_reset=has_reset(self.socket))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the attempt whose answer never came, and release the parser.

        A service that refuses our certificate has looked at no request, though one was sent: that is no attempt. What
        ends a connection of TLS without its own end (that is `eof_received`) may be an attacker, and ends no body.
        """
        whole = exc is None and (self._transport is None or not is_secure(self._transport))
        self._transport = None
        if exc is not None and not self.answered and self._reading.untouched and is_refusal(exc):
            self.fail(NotSent(REFUSED))
        else:
            self._hung_up(whole=whole, is_reset=isinstance(exc, ConnectionResetError | BrokenPipeError))
        self._reading.close()

    def _hung_up(self, *, whole: bool, is_reset: bool) -> bool:
        """End the attempt, have it repeated if the service did not read it, or have it found out what became of it.

        `whole`: the connection ended in order. `is_reset`: the service did not read all that was sent. That says
        something of the request only on a connection that carried an answer: until then the peer may be a proxy.
        """
        delivery = self.delivery
        if delivery is not None and (not self.sent or self._reading.has_head):
            self.fail(self._reading.end_response(whole=whole))
            return False
        self._owner.hung_up(self)
        if delivery is None:
            self.drop()
        elif is_reset and self.answered and self._reading.untouched:
            self._repeat(delivery)
        else:
            return self._lose(delivery)
        return False

    def _lose(self, delivery: Delivery) -> bool:
        """Have it found out whether the service has died; return whether the transport stays open until then."""
        self._owner.ended(self, delivery, LOST)
        self._owner.gone(self)
        self.delivery, self.sent = None, False
        stays = self._transport is not None and self.answered and self._reading.untouched
        was_reset = self._end_lost if stays else is_never_reset
        self._owner.lost(LostRequest(delivery, self._reading.judge, self.deadline, was_reset))
        if not stays:
            self.drop()
        return stays

    def _end_lost(self) -> bool:
        """Close a connection that has ended in order; return whether a reset has come behind that."""
        is_reset = has_reset(self.socket)
        self.drop()
        return is_reset

    def _repeat(self, delivery: Delivery) -> None:
        self.delivery, self.sent = None, False
        self.drop()
        self._owner.repeat(delivery, self._reading.judge, self.deadline)

    def expire(self) -> None:
        """Give up what was due by now: the connection, the answer, or the next use of an idle connection."""
        self.fail(self._reading.end_response(TIMEOUT, whole=False) if self.sent else NotSent("connect-timeout"))

    def cancel(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel a delivery that is not sent. One that is sent stays until it is answered."""
        if self.sent:
            return
        delivery, self.delivery = self.delivery, None
        self.drop()
        if delivery is not None:
            loop.call_soon(lambda: delivery[1](delivery[0], CANCELLED, self._owner.clock()))

    def fail(self, outcome: Judged) -> None:
        """Drop the connection. If it had a delivery, reply to it with `outcome`."""
        delivery, self.delivery = self.delivery, None
        if self.sent:
            self._owner.ended(self, delivery, outcome)
        self.sent = False
        self.drop()
        if delivery is not None:
            delivery[1](delivery[0], outcome, self._owner.clock())

    def take_back(self) -> Wanted | None:
        """Drop the connection, and return what it was to be opened for; None if nothing waits for it any more."""
        delivery, self.delivery = self.delivery, None
        self.drop()
        return None if delivery is None else Wanted(delivery, self._request, self._judge, self._until)

    def drop(self) -> None:
        """Close at once and discard unsent bytes. The pool forgets the connection."""
        self._owner.gone(self)
        if self.task is not None:
            self.task.cancel()
            self.task = None
        if self._transport is not None:
            self._transport.abort()
        else:  # no `connection_lost` follows, and the reader refers to this connection and its request
            self._reading.close()


def is_goodbye(judged: Judged) -> bool:
    """Return whether an answer with which a used connection ends says that no whole request came (RFC 9110, 15.5.9).

    Load balancers and some servers write a 408 before they close a connection that was idle. It may cross a request.
    """
    match judged:
        case Failed(reason="http-408", asked=False) | WholeRefused(status=408):
            return True
        case _:
            return False
