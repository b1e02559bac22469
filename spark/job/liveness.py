"""Tell whether the job lives: `GET /livez`, beside the metrics.

A query lives if it has ended a batch, had nothing to do, or was started within the last minute. A query that is not
running waits for its next start, which a restart of the process would not hasten. It counts as alive; the metrics
`restarts` and `given_up` tell of it. What is left is what a restart heals: a query that runs and gets no further, and a
supervisor that stands still.

This module imports nothing of Spark.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

LIVE_SECONDS = 60.0
"""Seconds without a sign of life after which a query is named. A batch of `--max-offsets` events takes some seconds;
with a shorter time, a pause of the machine would become a restart."""


class Liveness:
    """When each query gave a sign of life last. Methods may be called on any thread."""

    def __init__(self, queries: Iterable[str], now: Callable[[], float]) -> None:
        """`now`: seconds of a clock that never goes back. Until `begin` the job is starting, and not alive yet."""
        self._now, self._lock = now, threading.Lock()
        self._queries, self._last = tuple(queries), dict[str, float]()
        self._begun = False

    def begin(self) -> None:
        """Expect signs of life from now on: Spark runs."""
        with self._lock:
            self._last = dict.fromkeys(self._queries, self._now())
            self._begun = True

    def alive(self, query: str) -> None:
        """Note a sign of life."""
        with self._lock:
            if query in self._last:
                self._last[query] = self._now()

    def given_up(self, query: str) -> None:
        """Expect no more signs of a query that is not started any more: the others must go on."""
        with self._lock:
            self._last.pop(query, None)

    def fault(self) -> str:
        """Return which queries stand still, and for how long, as one sentence; an empty text if the job lives."""
        with self._lock:
            if not self._begun:
                return "Spark has not started"
            now = self._now()
            ages = {query: now - last for query, last in self._last.items() if now - last > LIVE_SECONDS}
        return "; ".join(f"the {query} query has got no further for {age:.0f} s" for query, age in ages.items())


def with_livez(others: WSGIApplication, liveness: Liveness) -> WSGIApplication:
    """Return an application that answers `/livez` with 200, or with 503 and the fault; all else is left to `others`."""

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != "/livez":
            return others(environ, start_response)
        fault = liveness.fault()
        status = "503 Service Unavailable" if fault else "200 OK"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")])
        return [f"{fault or 'alive'}\n".encode()]

    return app
