"""The service that fails some records once, and the account of who came when: lost, repeated, early or late."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.flaky import Flaky

PAD = "x" * 150
ROUNDING = 1.0
"""ms by which a retry may seem early: clients write whole milliseconds."""


def body(number: int) -> bytes:
    """A record of some 200 B, with its number and its time in epoch ms."""
    return json.dumps({"id": number, "at": time.time() * 1000, "pad": PAD}).encode()


class Request(NamedTuple):
    """One delivery of a record: its age, when it came, and whether it was accepted; ms."""

    age: float
    at: float
    accepted: bool


class Account(NamedTuple):
    """What became of the records of a run; times in ms."""

    lost: int
    repeated: int
    """Deliveries more than were needed."""
    early: int
    """Retries that came more than a millisecond before their time."""
    late: tuple[float, ...]
    """How late the retries were whose wait the kill did not fall into, sorted; negative for early ones."""
    waits: tuple[float, ...]
    """The ages of records at their first delivery before the kill, sorted, without those that waited for the start."""


class Judge:
    """Serves, and fails every `failing`th record once; 0 fails none."""

    def __init__(self, failing: int = 0) -> None:
        self.requests = defaultdict[int, list[Request]](list)
        self.newest = 0.0
        """When the last request came, in epoch ms."""
        self._failing = failing
        self._service = Flaky(self._takes)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._service.port}/"

    def accepted(self) -> int:
        """How many records it has accepted."""
        return sum(any(one.accepted for one in requests) for requests in list(self.requests.values()))

    def _takes(self, fields: Mapping[str, str], at: float) -> bool:
        if not fields[":body"]:  # a peer that asks the service for its settings
            return True
        record = json.loads(fields[":body"])
        requests = self.requests[record["id"]]
        fails = self._failing and record["id"] % self._failing == 0 and not requests
        requests.append(Request(at - record["at"], at, not fails))
        self.newest = at
        return not fails


def account(
    requests: Mapping[int, list[Request]], records: int, delay: float, killed: float, started: int = 0
) -> Account:
    """Judge what came of `records` records, numbered from 0, with retries after `delay` ms and a kill at `killed`.

    Records before number `started` waited for the peer's start.
    """
    pairs = [come[:2] for come in requests.values() if len(come) > 1 and not come[0].accepted]
    # The kill may take the wait along: such a retry says nothing of how punctual others are.
    whole = [(first, again) for first, again in pairs if not first.at < killed < again.at]
    firsts = [come[0] for number, come in requests.items() if number >= started]
    return Account(
        lost=sum(not any(one.accepted for one in requests.get(number, ())) for number in range(records)),
        repeated=sum(max(0, len(come) - (1 if come[0].accepted else 2)) for come in requests.values()),
        early=sum(again.at - first.at < delay - ROUNDING for first, again in pairs),
        late=tuple(sorted(again.at - first.at - delay for first, again in whole)),
        waits=tuple(sorted(one.age for one in firsts if one.at < killed)),
    )
