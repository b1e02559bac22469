"""`GET /v1/policy` (contract 12.8): the policy in force, and where each value comes from.

If a newer policy is not in force, the answer says why.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.http.calls import Call, Caller


class Ruled(Protocol):
    """The part of the sidecar that knows the policy. Called on the event loop."""

    def policy(self) -> dict[str, object]:
        """Return the values in force, their origins, their author and their time.

        All values must be of types that JSON has.
        """


def policy_routes(ruled: Ruled) -> list[Call]:
    """Return the route of the call. It changes nothing."""

    async def policy(request: Request) -> Response:
        body = msgspec.json.encode(ruled.policy())
        return Response(body, media_type="application/json", headers={"cache-control": "no-store"})

    return [Call("/v1/policy", policy, Caller.READ)]
