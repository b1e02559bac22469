"""The HTTP API of the sidecar (contract 12.8): the calls that every mode has, and the responses to errors of all calls.

`http/access.py` checks who may call, and `http/server.py` is the server. Nothing is decided here: every call asks the
running sidecar through `Operated`. All of it runs on the sidecar's event loop.

A call raises what it cannot answer, and `_on_error` makes the problem document; so a refusal has the same form whoever
found it. What is not in `ERRORS` is a fault: the caller is told nothing of it, and the log has it.

A sidecar of several groups has the probes, `/metrics`, `/status` and `/drain` once, for all of them, and the calls of
each group below `/groups/NAME` (`GroupPaths`). In a sidecar of one group those calls have that address too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from reconsume.sidecar.api.holds import shown_to
from reconsume.sidecar.errors import BrokerError, BusyError, ContractError
from reconsume.sidecar.hints import PRESENT_GROUP
from reconsume.sidecar.http.access import Access, AccessMiddleware
from reconsume.sidecar.http.calls import Call, Caller
from reconsume.sidecar.http.json_answer import json_answer
from reconsume.sidecar.http.json_body import RefusedError
from reconsume.sidecar.http.problems import problem
from reconsume.sidecar.observability.metrics import CONTENT_TYPE
from reconsume.sidecar.view.query import BadCursorError, UnknownError
from reconsume.topics.durations import parse_duration

__all__ = [
    "Access",
    "GroupCalls",
    "GroupPaths",
    "Operated",
    "Scrape",
    "Status",
    "build_app",
    "build_group_app",
    "build_probe_app",
    "policy_routes",
]

RETRY_AFTER = {"retry-after": "5"}
LONGEST_DRAIN = 3600.0
"""Seconds. No caller waits longer for a call, and no pod has a longer grace period."""
ERRORS: dict[type[Exception], tuple[int, str]] = {
    RefusedError: (400, "{}"),
    BadCursorError: (400, "cursor must be the one that the page before has returned."),
    UnknownError: (503, "Nothing is known of the view now: {}."),
    BusyError: (503, "{}."),
    ContractError: (409, "{}."),
    BrokerError: (503, "{}."),
    Exception: (500, "The sidecar failed to answer this call; its log says why."),
}
"""What a caller is told of an error, and by which status; the first that fits."""
HTTP_ERRORS = {404: "There is no such call.", 405: "This call has another method; see the Allow header."}

Scrape = Callable[[], bytes]
Status = dict[str, object]
PREFIX = "/groups/"
"""What the path of a call of one group begins with; the group's name follows."""


class GroupCalls(NamedTuple):
    """The part of the API that is about one group. `status`: what `/status` shows of it."""

    status: Callable[[], Status]
    calls: Sequence[Call]
    access: Access


class Operated(Protocol):
    """The running sidecar, as its API sees it. Called on the event loop."""

    @property
    def groups(self) -> Sequence[str]:
        """The names of its groups."""

    def problems(self) -> list[str]:
        """Return a sentence for each problem, such as a thread without progress; empty while the sidecar is alive."""

    def started(self) -> bool:
        """Return whether the producers of all lanes are ready and their consumers subscribed."""

    def status(self) -> Status | list[Status]:
        """Return the content of `/status`, of types that JSON has: a list if there are several groups."""

    async def drain(self, timeout: float | None = None) -> int:
        """Stop fetching, finish and commit within `timeout` seconds. Return how many records were left, at most.

        Must be safe to call again, also while another call waits.
        """


class CommonCalls:
    """The endpoints that every mode has."""

    def __init__(self, sidecar: Operated, scrape: Scrape) -> None:
        self._sidecar, self._scrape = sidecar, scrape

    def probes(self) -> list[Call]:
        """Return the calls without which no pod runs. Other callers than the service may have them."""
        return [
            # Ready even if Kafka or the service is away. Readiness decides about the pod's own endpoints, which must
            # not go away with Kafka. So both probes ask the same question.
            Call("/livez", self.alive, Caller.PROBE),
            Call("/readyz", self.alive, Caller.PROBE),
            Call("/startupz", self.started, Caller.PROBE),
            Call("/metrics", self.metrics, Caller.PROBE),
        ]

    async def alive(self, request: Request) -> Response:
        """Answer the probes of liveness and readiness."""
        problems = self._sidecar.problems()
        return problem(503, "; ".join(problems)) if problems else json_answer({"status": "ok"})

    async def started(self, request: Request) -> Response:
        """Answer the probe of the start."""
        if not self._sidecar.started():
            return problem(503, "The sidecar has not subscribed yet; it waits for Kafka.")
        return json_answer({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """Answer a scrape of Prometheus."""
        return Response(self._scrape(), media_type=CONTENT_TYPE)

    async def status(self, request: Request) -> Response:
        """Return what the sidecar does."""
        shown = self._sidecar.status()
        if isinstance(shown, list):
            return json_answer([shown_to(request, one) for one in shown])
        return json_answer(shown_to(request, shown))

    async def drain(self, request: Request) -> Response:
        """Stop fetching, finish what is in flight, and tell how much was left."""
        durations, timeout = request.query_params.getlist("timeout"), None
        try:
            if durations:
                (text,) = durations
                timeout = min(parse_duration(text) / 1000, LONGEST_DRAIN)
        except ValueError:  # one that cannot be read, or more than one
            raise RefusedError("timeout must be one duration such as 500ms, 20s or 1m30s.") from None
        meant, groups = request.query_params.getlist("group"), self._sidecar.groups
        if meant and set(meant) != set(groups):
            noun = "group" if len(groups) == 1 else "groups"
            return problem(409, f"This sidecar is of the {noun} {', '.join(groups)}, and drains as a whole.")
        unfinished = await self._sidecar.drain(timeout)
        return json_answer({"drained": unfinished == 0, "left": unfinished})


def policy_routes(policy: Callable[[], dict[str, object]]) -> list[Call]:
    """Return the route of `GET /v1/policy`, which changes nothing.

    `policy`: returns, on the event loop, the values in force, their origins, their author and their time, of types that
    JSON has; and why a newer policy is not in force.
    """

    async def show(request: Request) -> Response:
        return json_answer(policy())

    return [Call("/v1/policy", show, Caller.READ)]


class GroupPaths:
    """ASGI app that passes a call below `/groups/NAME` to the API of that group, and any other one to `whole`."""

    def __init__(self, whole: ASGIApp, groups: Mapping[str, ASGIApp]) -> None:
        self._whole, self._groups = whole, groups

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on."""
        app, path = self._whole, scope["path"] if scope["type"] == "http" else ""
        if path.startswith(PREFIX):
            group = path.removeprefix(PREFIX).partition("/")[0]
            if group in self._groups:
                app, scope = self._groups[group], {**scope, "root_path": f"{PREFIX}{group}"}
                if len(self._groups) > 1:
                    PRESENT_GROUP.set(group)
        await app(scope, receive, send)


def build_app(sidecar: Operated, scrape: Scrape, access: Access, calls: Sequence[Call] = ()) -> Starlette:
    """Return the API for the service next to the sidecar, without the calls below `/groups/NAME`.

    `calls`: further routes, such as those of the delivery mode of the only group.
    """
    common = CommonCalls(sidecar, scrape)
    status = Call("/status", common.status, Caller.READ)
    return _app([*common.probes(), status, Call("/drain", common.drain, Caller.SERVICE, "POST"), *calls], access)


def build_group_app(of_group: GroupCalls) -> Starlette:
    """Return the API of one group, which is below `/groups/NAME`."""

    async def status(request: Request) -> Response:
        return json_answer(shown_to(request, of_group.status()))

    return _app([Call("/status", status, Caller.READ), *of_group.calls], of_group.access)


def build_probe_app(sidecar: Operated, scrape: Scrape) -> Starlette:
    """Return an app with the probes and metrics alone, for the kubelet and Prometheus.

    It accepts any host name, since they call by whatever name they know.
    """
    return _app(CommonCalls(sidecar, scrape).probes(), None)


def _app(routes: list[Call], access: Access | None) -> Starlette:
    app = Starlette(
        routes=routes,
        middleware=[Middleware(AccessMiddleware, access=access, routes=routes)],
        exception_handlers=dict.fromkeys((HTTPException, *ERRORS), _on_error),
    )
    app.router.redirect_slashes = False  # the redirect would name the host that the caller sent
    return app


async def _on_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return problem(error.status_code, HTTP_ERRORS.get(error.status_code, error.detail), error.headers)
    status, text = next(shown for kind, shown in ERRORS.items() if isinstance(error, kind))
    text = text.format(error)
    if not isinstance(error, RefusedError):  # that begins with the name of a field
        text = text[:1].upper() + text[1:]
    return problem(status, text, RETRY_AFTER if status == 503 else None)
