"""The HTTP API of the sidecar (contract 12.8): the calls that every mode has.

`http/access.py` checks who may call, and `http/server.py` is the server. Nothing is decided here: every call asks the
running sidecar through `Operated` (`probes.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.api.holds import shown_to
from reconsume.sidecar.api.probes import Operated, Scrape, probes
from reconsume.sidecar.errors import BusyError
from reconsume.sidecar.http.access import Access, AccessMiddleware
from reconsume.sidecar.http.calls import Call, Caller, Endpoint
from reconsume.sidecar.http.json_answer import json_answer
from reconsume.sidecar.http.problems import problem
from reconsume.topics.durations import parse_duration

__all__ = ["Access", "build_app", "build_probe_app"]

RETRY_AFTER = {"retry-after": "5"}
LONGEST_DRAIN = 3600.0
"""Seconds. No caller waits longer for a call, and no pod has a longer grace period."""


def build_app(
    sidecar: Operated,
    scrape: Scrape,
    access: Access,
    calls: Sequence[Call] = (),
) -> Starlette:
    """Return the API for the service beside the sidecar.

    `calls`: further routes, such as those of the delivery mode.
    """
    routes = [
        *probes(sidecar, scrape),
        Call("/status", _status(sidecar), Caller.READ),
        Call("/drain", _drain(sidecar), Caller.SERVICE, "POST"),
        *calls,
    ]
    return _app(routes, access)


def build_probe_app(sidecar: Operated, scrape: Scrape) -> Starlette:
    """Return an app with the probes and metrics alone, for the kubelet and Prometheus.

    It accepts any host name, since they call by whatever name they know.
    """
    return _app(probes(sidecar, scrape), None)


def _app(routes: list[Call], access: Access | None) -> Starlette:
    app = Starlette(
        routes=routes,
        middleware=[Middleware(AccessMiddleware, access=access, routes=routes)],
        exception_handlers={HTTPException: _on_http_error, BusyError: _on_busy, Exception: _on_fault},
    )
    app.router.redirect_slashes = False  # the redirect would name the host that the caller sent
    return app


def _status(sidecar: Operated) -> Endpoint:
    async def status(request: Request) -> Response:
        return json_answer(shown_to(request, sidecar.status()))

    return status


def _drain(sidecar: Operated) -> Endpoint:
    async def drain(request: Request) -> Response:
        values = request.query_params.getlist("timeout")
        try:
            timeout = min(parse_duration(values[0]) / 1000, LONGEST_DRAIN) if values else None
        except ValueError:
            return _bad_timeout()
        if len(values) > 1:
            return _bad_timeout()
        meant = request.query_params.getlist("group")
        # The status has a row for each partition: a preStop hook that names no group need not wait for it.
        if meant and set(meant) != {group := str(sidecar.status()["group"])}:
            return problem(409, f"This sidecar is of the group {group}.")
        unfinished = await sidecar.drain(timeout)
        return json_answer({"drained": unfinished == 0, "left": unfinished})

    return drain


def _bad_timeout() -> Response:
    return problem(400, "timeout must be one duration such as 500ms, 20s or 1m30s.")


async def _on_http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):  # starlette gives all handlers the same type
        raise error
    details = {404: "There is no such call.", 405: "This call has another method; see the Allow header."}
    return problem(error.status_code, details.get(error.status_code, error.detail), error.headers)


async def _on_busy(request: Request, busy: Exception) -> Response:
    return problem(503, f"{busy}.".capitalize(), RETRY_AFTER)


async def _on_fault(request: Request, fault: Exception) -> Response:
    """Answer with a general problem. The fault itself goes to the log, never to the caller."""
    return problem(500, "The sidecar failed to answer this call; its log says why.")
