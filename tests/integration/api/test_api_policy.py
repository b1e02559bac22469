"""`GET /v1/policy` over a real server."""

from __future__ import annotations

from starlette.routing import Route

from reconsume.sidecar.api.app import Access, build_app, policy_routes
from reconsume.sidecar.http.access import LOOPBACK_NAMES
from tests.support.sidecar.running_api import Client, Operation, serving

POLICY: dict[str, object] = {"policy": {"ladder": "rocketmq"}, "who": None, "refused": []}


class Ruled:
    def policy(self) -> dict[str, object]:
        return POLICY


def routes() -> list[Route]:
    return policy_routes(Ruled().policy)


def test_the_policy_is_shown_and_cannot_be_set_here() -> None:
    app = build_app(Operation(), lambda: b"", Access(None, LOOPBACK_NAMES), calls=routes())
    with serving(app) as place, Client(place) as client:
        shown = client.call("GET", "/v1/policy")
        assert (shown.status, shown.json) == (200, POLICY)
        assert shown.headers["cache-control"] == "no-store"
        refused = client.call("POST", "/v1/policy")
        assert (refused.status, set(refused.headers["allow"].split(", "))) == (405, {"GET", "HEAD"})
