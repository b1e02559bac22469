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
    DROP = "it is not passed on"
    SILENCE = "nothing more is passed on in this direction of the connection"
    CUT = "the connection is closed on both sides"


GRAVEST = tuple(reversed(Fate))


class Request(NamedTuple):
    """What is known of one request; `connection` numbers the client's connections from 1."""

    api: int
    version: int
    correlation: int
    client: str
    connection: int


def parse(frame: bytes, connection: int) -> Request:
    """The request's prefix; a client id may be null (length −1)."""
    api, version, correlation, length = PREFIX.unpack_from(frame)
    client = frame[PREFIX.size : PREFIX.size + max(0, length)].decode()
    return Request(api, version, correlation, client, connection)


def nothing(_request: Request) -> None:
    """The action of a rule that only delays or drops."""


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
    fired: threading.Event = field(default_factory=threading.Event)
    """Set once `action` has run for the first time."""
    seen: int = 0

    def takes(self, request: Request) -> bool:
        """Count the request; whether it is one to act on."""
        if request.api != self.api or self.client not in request.client:
            return False
        self.seen += 1
        return self.nth <= self.seen < self.nth + self.times

    async def act(self, request: Request) -> Fate:
        """Do what the rule says."""
        self.action(request)
        self.fired.set()
        if self.delay:
            await asyncio.sleep(self.delay)
        return self.fate


class Passing(NamedTuple):
    """A request under way and the rules that act on it."""

    request: Request
    rules: tuple[Rule, ...]

    async def at(self, moment: Moment) -> Fate:
        """Let the rules of this moment act; the gravest fate counts."""
        fates = [await rule.act(self.request) for rule in self.rules if rule.moment is moment]
        return next((fate for fate in GRAVEST if fate in fates), Fate.PASS)
