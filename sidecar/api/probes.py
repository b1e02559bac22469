"""Answer the probes, /livez, /readyz and /startupz, and the scrapes of Prometheus, from the running sidecar.

Contract 12.8 says what each means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.http.calls import Call, Caller
from reconsume.sidecar.http.json_answer import json_answer
from reconsume.sidecar.http.problems import problem
from reconsume.sidecar.observability.metrics import CONTENT_TYPE

Scrape = Callable[[], bytes]


class Operated(Protocol):
    """The running sidecar, as its API sees it. Called on the event loop."""

    def problems(self) -> list[str]:
        """Return a sentence for each problem, such as a thread without progress; empty while the sidecar is alive."""

    def started(self) -> bool:
        """Return whether both lanes' producers are ready and their consumers subscribed."""

    def status(self) -> dict[str, object]:
        """Return the content of `/status`, of types that JSON has."""

    async def drain(self, timeout: float | None = None) -> int:
        """Stop fetching, finish and commit within `timeout` seconds. Return how many records were left, at most.

        Must be safe to call again, also while another call waits.
        """


def probes(sidecar: Operated, scrape: Scrape) -> list[Call]:
    """Return the calls without which no pod runs. Other callers than the service may have them."""

    async def alive(request: Request) -> Response:
        problems = sidecar.problems()
        if problems:
            return problem(503, "; ".join(problems))
        return json_answer({"status": "ok"})

    async def started(request: Request) -> Response:
        if not sidecar.started():
            return problem(503, "The sidecar has not subscribed yet; it waits for Kafka.")
        return json_answer({"status": "ok"})

    async def metrics(request: Request) -> Response:
        return Response(scrape(), media_type=CONTENT_TYPE)

    return [
        # Ready even if Kafka or the service is away. Readiness decides about the pod's own endpoints, which must not go
        # away with Kafka. So both probes ask the same question.
        Call("/livez", alive, Caller.PROBE),
        Call("/readyz", alive, Caller.PROBE),
        Call("/startupz", started, Caller.PROBE),
        Call("/metrics", metrics, Caller.PROBE),
    ]
