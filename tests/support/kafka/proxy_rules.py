"""Rules for the Kafka proxy: which request, at which moment of its life, and what is done then. No sockets here."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import NamedTuple

PREFIX = struct.Struct(">hhih")
"""Api key, version, correlation id, length of the client id: the same in every version of the request header."""


class Api(IntEnum):
    """The requests that tests act on."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    JOIN_GROUP = 11
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28


class Moment(Enum):
    """The four moments in the life of a request at which a rule may act."""

    ARRIVED = "the proxy has it, the broker not"
    FORWARDED = "the broker gets it"
    ANSWERED = "the proxy has the broker's answer, the client not"
    DONE = "the client gets the answer"


class Fate(Enum):
    """What becomes of the request (ARRIVED) or of its response (ANSWERED), the gravest last."""

    PASS = "it goes on"
    KEEP = "it goes on later, and all that follows it on the connection waits (a request, `Late`)"
    DROP = "it is not passed on"
    SILENCE = "nothing more is passed on in this direction of the connection"
    CUT = "the connection is closed on both sides"


GRAVEST = tuple(reversed(Fate))


class Request(NamedTuple):
    """What is known of one request; `connection` numbers the client's connections from 1.

    `body`: what follows the client id. Its form depends on the api and the version.
    """

    api: int
    version: int
    correlation: int
    client: str
    connection: int
    body: bytes = b""


def parse(frame: bytes, connection: int) -> Request:
    """The request's prefix; a client id may be null (length −1)."""
    api, version, correlation, length = PREFIX.unpack_from(frame)
    end = PREFIX.size + max(0, length)
    return Request(api, version, correlation, frame[PREFIX.size : end].decode(), connection, frame[end:])


def nothing(_request: Request) -> None:
    """The action of a rule that only delays or drops."""


def every(_request: Request) -> bool:
    """The choice of a rule that takes each request of its api and client."""
    return True


class Gate:
    """Requests wait at it, those of several proxies too, until it is opened."""

    def __init__(self) -> None:
        self._is_open = False
        self._waiting: list[asyncio.Future[None]] = []
        self._lock = threading.Lock()

    def open(self) -> None:
        """Let all pass from now on; any thread."""
        with self._lock:
            self._is_open = True
            for waiting in self._waiting:
                waiting.get_loop().call_soon_threadsafe(_resolve, waiting)

    async def passed(self) -> None:
        """Wait until it is open."""
        waiting = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._is_open:
                return
            self._waiting.append(waiting)
        try:
            await waiting
        finally:
            with self._lock:
                self._waiting.remove(waiting)


def _resolve(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():  # its connection has ended meanwhile
        waiting.set_result(None)


@dataclass
class Rule:
    """Acts on requests of one api from clients whose id contains `client`, from the `nth` on, `times` of them.

    `action` runs on the proxy's thread: while it runs, nothing passes. `delay` is in seconds.
    """

    api: Api
    client: str
    moment: Moment
    action: Callable[[Request], None] = nothing
    nth: int = 1
    times: int = 1
    fate: Fate = Fate.PASS
    delay: float = 0.0
    only: Callable[[Request], bool] = every
    """Which of these requests count."""
    gate: Gate | None = None
    """Where it waits, after `action`, until the gate is open."""
    instead: Callable[[Request, bytes], bytes] | None = None
    """Returns what the client gets instead of the broker's response, which begins with the correlation id."""
    behind: Late | None = None
    """A kept request that the broker gets, and answers if it still can, before this one goes on."""
    fired: threading.Event = field(default_factory=threading.Event)
    """Set once `action` has run for the first time."""
    seen: int = 0

    def takes(self, request: Request) -> bool:
        """Count the request; whether it is one to act on."""
        if request.api != self.api or self.client not in request.client or not self.only(request):
            return False
        self.seen += 1
        return self.nth <= self.seen < self.nth + self.times

    async def act(self, request: Request) -> Fate:
        """Do what the rule says."""
        self.action(request)
        self.fired.set()
        if self.gate is not None:
            await self.gate.passed()
        if self.behind is not None:
            self.behind.deliver()
            await self.behind.over()
        if self.delay:
            await asyncio.sleep(self.delay)
        return self.fate


@dataclass
class Late(Rule):
    """Keeps one request from the broker until `deliver`, as a packet that comes late.

    What the client sends behind it on its connection waits too. The broker's side stands in any case. A client whose
    side is `cut` sends the request again on a new connection at once; another one when its own time is over.
    """

    moment: Moment = Moment.ARRIVED
    fate: Fate = Fate.KEEP
    cut: bool = False
    request: Request | None = None
    """What is kept, once `fired`."""
    answer: bytes | None = None
    """The broker's response to it, from the correlation id on, once `answered`."""
    answered: threading.Event = field(default_factory=threading.Event)
    _goes_on: Gate = field(default_factory=Gate)
    _is_over: Gate = field(default_factory=Gate)
    _dropped: bool = False

    async def act(self, request: Request) -> Fate:
        """Keep the request."""
        self.request = request
        return await super().act(request)

    def deliver(self) -> None:
        """Let the broker have it; any thread."""
        assert self.request is not None, f"no request was kept: {self.api.name} of {self.client}"
        self._goes_on.open()

    def drop(self) -> None:
        """Never deliver it, if it waits or is kept later; any thread."""
        self._dropped = True
        self._goes_on.open()

    async def due(self) -> bool:
        """Wait for `deliver`, or for `drop`: then it is False."""
        await self._goes_on.passed()
        return not self._dropped

    def hear(self, response: bytes) -> None:
        """Take the broker's response."""
        self.answer = response
        self.answered.set()
        self.end()

    def end(self) -> None:
        """Say that nothing more happens to it: it was answered or dropped, or its broker has gone."""
        self._is_over.open()

    async def over(self) -> None:
        """Wait for `end`."""
        await self._is_over.passed()


class Passing(NamedTuple):
    """A request under way and the rules that act on it."""

    request: Request
    rules: tuple[Rule, ...]

    async def at(self, moment: Moment) -> Fate:
        """Let the rules of this moment act; the gravest fate counts."""
        fates = [await rule.act(self.request) for rule in self.rules if rule.moment is moment]
        return next((fate for fate in GRAVEST if fate in fates), Fate.PASS)

    def rewritten(self, response: bytes) -> bytes:
        """The response that the client gets."""
        for rule in self.rules:
            response = response if rule.instead is None else rule.instead(self.request, response)
        return response

    @property
    def late(self) -> Late | None:
        """The rule that keeps the request."""
        return next((rule for rule in self.rules if isinstance(rule, Late)), None)
