"""What a scripted service may do with a request, as values."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tests.support.proof.ledger import FAILED


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer after `after` seconds, and once `until` is set. `means` overrides what the status says."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    after: float = 0.0
    until: threading.Event | None = None
    close: bool = False
    means: str = ""


@dataclass(frozen=True, slots=True)
class Break:
    """No whole answer: `hang`, `close` (before a byte), `close-mid` (in a JSON body), `garbage`, `endless` (a head)."""

    how: str


Behaviour: TypeAlias = Answer | Break
OK = Answer()
FAIL = Answer(500)
HANG, CLOSE, CLOSE_MID, GARBAGE, ENDLESS = (Break(how) for how in ("hang", "close", "close-mid", "garbage", "endless"))


def verdict(text: str, status: int = 200, means: str = FAILED) -> Answer:
    """An answer with the header `Reconsume-Verdict`."""
    return Answer(status, (("Reconsume-Verdict", text),), means=means)


@dataclass(frozen=True, slots=True)
class Request:
    """What a script decides on. `seen`: how often this very attempt was delivered before."""

    id: str
    times: int
    value: bytes | None
    key: bytes | None
    headers: dict[str, str]
    seen: int

    @property
    def path(self) -> str:
        """The path that it was posted to."""
        return self.headers[":path"]


Script: TypeAlias = Callable[[Request], Behaviour]


def by_name(cases: Mapping[str, Sequence[Behaviour]]) -> Script:
    """A script for records whose value is `<name>:<anything>`: the n-th attempt gets the n-th behaviour of that name,
    later ones the last. Other records are taken. A throttled attempt is repeated, and counts as one more here."""

    def script(request: Request) -> Behaviour:
        name = (request.value or b"").partition(b":")[0].decode(errors="replace")
        steps = cases.get(name, (OK,))
        return steps[min(request.times + request.seen, len(steps) - 1)]

    return script


class BadFails:
    """Records whose value begins with `bad` fail until `well` is set."""

    def __init__(self) -> None:
        self.well = threading.Event()

    def __call__(self, request: Request) -> Behaviour:
        return Answer(500 if (request.value or b"").startswith(b"bad") and not self.well.is_set() else 200)
