"""`GET /v1/policy` (INTERFACE §3): the policy in force, where each value comes from, and why a newer one is not."""

from __future__ import annotations

from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


class Ruled(Protocol):
    """Whoever knows the policy. Called on the event loop."""

    def policy(self) -> dict[str, object]:
        """Values that JSON knows: those in force, their origins, who wrote them and when."""


def policy_routes(ruled: Ruled) -> list[Route]:
    """The call; it changes nothing, so it needs no token."""

    async def policy(request: Request) -> Response:
        body = msgspec.json.encode(ruled.policy())
        return Response(body, media_type="application/json", headers={"cache-control": "no-store"})

    return [Route("/v1/policy", policy, methods=["GET"])]
