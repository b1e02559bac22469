"""A pod's service as a process of its own: it can be signalled, and killed, and what it saw is read from its ledger.

    python -m tests.support.service.pod_service LEDGER --work steady --at-term finish

Its port is its first line. At SIGTERM it does what `--at-term` says: `finish` what it has and end, `cut` everything off
at once, or `ignore` the signal.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.deadline import until
from tests.support.proof.ledger import Delivery
from tests.support.service.behaviours import Answer, Behaviour, Request, Script
from tests.support.service.service import Service

REPOSITORY = Path(__file__).resolve().parents[3]
STEADY, SLOW = 0.15, 2.5
"""Seconds that an answer takes."""
LEAVES_WITHIN = 30.0
STILL = 0.3
"""Seconds without a new request after which none is on its way, as no answer leaves."""
STOPPING = threading.Event()
"""Set at SIGTERM, in the service's process."""
NEVER = threading.Event()


def steady(request: Request) -> Behaviour:
    """Every tenth record fails once."""
    fails = (request.value or b"").endswith(b"0") and request.times == 0
    return Answer(500 if fails else 200, after=STEADY)


WORKS: Mapping[str, Script] = {
    "steady": steady,
    "slow": lambda _request: Answer(after=SLOW),
    "broken": lambda _request: Answer(500, until=STOPPING),
    "hang": lambda _request: Answer(until=NEVER),
}
"""What the service does with requests; `broken`: it fails what it has once it is stopped, its pools being shut."""


class Leaving(Service):
    """A service that can go in order."""

    def leave(self) -> None:
        """Accept nothing more, and wait until all that is here has its answer."""
        self._await(self._leave())
        until(lambda: self.in_flight == 0, LEAVES_WITHIN, "all requests are answered")

    async def _leave(self) -> None:
        """Close the port while no answer leaves, as `retire` does; how many requests there will be is not known."""
        self._gate.clear()
        seen = -1
        while seen != (seen := len(self.ledger.deliveries())):
            await asyncio.sleep(STILL)
        await self._close(cut=False)
        self._gate.set()


def main() -> int:
    """Serve until SIGTERM."""
    words = argparse.ArgumentParser()
    words.add_argument("ledger", type=Path)
    words.add_argument("--work", choices=WORKS, required=True)
    words.add_argument("--at-term", choices=("finish", "cut", "ignore"), required=True)
    asked = words.parse_args()
    signal.signal(signal.SIGTERM, lambda _number, _frame: None if asked.at_term == "ignore" else STOPPING.set())
    service = Leaving(asked.ledger, WORKS[asked.work])
    with service:
        sys.stdout.write(f"{service.port}\n")
        sys.stdout.flush()
        STOPPING.wait()
        if asked.at_term == "cut":
            os._exit(0)
        service.leave()
    return 0


class ServiceProcess:
    """Starts one, and ends it at the latest when it is left. Signals go to its own id alone."""

    def __init__(self, ledger: Path, work: str, at_term: str) -> None:
        self._ledger = ledger
        self._command = [sys.executable, "-m", __name__, str(ledger), "--work", work, "--at-term", at_term]

    def __enter__(self) -> ServiceProcess:
        environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        self.process = subprocess.Popen(self._command, cwd=REPOSITORY, env=environ, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the service ended with {self.process.wait()}"
        self.port = int(line)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()

    @property
    def url(self) -> str:
        """Where records are posted."""
        return f"http://127.0.0.1:{self.port}/events"

    def deliveries(self) -> tuple[Delivery, ...]:
        """All that it has written down so far."""
        return read_ledger(self._ledger)

    def unanswered(self) -> int:
        """How many requests it has now, or had when it ended."""
        return sum(delivery.answered is None for delivery in self.deliveries())


def read_ledger(file: Path) -> tuple[Delivery, ...]:
    """What a ledger's file says; values of more than 256 bytes are cut there, so tests of this kind send less."""
    found: list[Delivery] = []
    for line in file.read_bytes().splitlines(keepends=True) if file.exists() else ():
        if not line.endswith(b"\n"):
            break  # is being written
        said: dict[str, Any] = json.loads(line)
        if "got" in said:
            found.append(_delivery(said["got"]))
        else:
            number = said["n"]
            found[number] = found[number]._replace(answer=said["answer"], means=said["means"], answered=said["at"])
    return tuple(found)


def _delivery(got: dict[str, Any]) -> Delivery:
    data = {name: None if got[name] is None else base64.b64decode(got[name]) for name in ("key", "value")}
    return Delivery(**{**got, **data, "headers": tuple((name, value) for name, value in got["headers"])})


if __name__ == "__main__":
    raise SystemExit(main())
