"""The calls of the API: who may make each of them, and how many may be in progress.

Each route of the API is a `Call` and says of which kind it is where it is defined. `access.py` finds the kind of a
request before it reads the body, and refuses callers that may not make it. There are four kinds:

- `PROBE`: the probes and the metrics. They need no token, because the kubelet and Prometheus have none.
- `READ`: shows something and changes nothing. It needs a token where `api.token_file` is set, the service's or an
  operator's. What it shows of records depends on the caller (`may_see_values`).
- `SERVICE`: what the service does with its own records (verdicts, receive, retry), and `POST /drain`, which ends only
  its own instance. It needs the service's token where `api.token_file` is set. An operator's token does not open it.
- `OPERATOR`: changes the group, for all of its instances. It needs an operator's token, on loopback too. Where
  `operators.token_file` is not set, nobody can make such a call.

A path that no route has counts as `READ` or `SERVICE`, by its method, so that without a token nobody learns which
paths there are.

Each call has a bound on how many of it are in progress. A caller that hangs up frees its connection, and its call runs
on until it ends: so connections alone bound nothing. All of this runs on the event loop of the server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from reconsume.sidecar.errors import BusyError

MOST = 256
"""Calls of one route in progress: more than there are connections, so only callers that hang up meet it."""
VALUES = "reconsume.values"
"""The key of a request's scope that says whether its caller may see keys, values, headers and texts."""
READS = frozenset({"GET", "HEAD", "OPTIONS"})
NO_CALL = "no such call"
"""What stands for the path of a request that no route has: such a path is the caller's own words."""

Endpoint = Callable[[Request], Awaitable[Response]]


class Caller(StrEnum):
    """Who may make a call."""

    PROBE = "probe"
    READ = "read"
    SERVICE = "service"
    OPERATOR = "operator"


class Call(Route):
    """A route of the API. `caller`: who may make the call. `most`: how many may be in progress."""

    def __init__(self, path: str, endpoint: Endpoint, caller: Caller, method: str = "GET", most: int = MOST) -> None:
        super().__init__(path, _bounded(endpoint, most), methods=[method])
        self.caller = caller


class Wanted(NamedTuple):
    """What a request asks for: the kind of its call, and the call's path as the API defines it."""

    caller: Caller
    path: str


def wanted_of(scope: Scope, routes: Sequence[BaseRoute]) -> Wanted:
    """Return what a request asks for."""
    for route in routes:
        if isinstance(route, Call) and route.matches(scope)[0] is Match.FULL:
            return Wanted(route.caller, route.path)
    return Wanted(Caller.READ if scope["method"] in READS else Caller.SERVICE, NO_CALL)


def may_see_values(request: Request) -> bool:
    """Return whether the caller may see keys, values, headers and texts of records, and why an operator acted."""
    return bool(request.scope.get(VALUES, False))


def _bounded(endpoint: Endpoint, most: int) -> Endpoint:
    in_progress = 0

    async def bounded(request: Request) -> Response:
        nonlocal in_progress
        if in_progress >= most:
            raise BusyError("too many of these calls are in progress: try again in a moment")
        in_progress += 1
        try:
            return await endpoint(request)
        finally:
            in_progress -= 1

    return bounded
