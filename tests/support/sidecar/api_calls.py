"""The API around a played sidecar, called, and what every refusal of it has."""

from __future__ import annotations

from starlette.applications import Starlette

from reconsume.sidecar.api.app import Access, build_app
from tests.support.sidecar.running_api import Answer, Client, Operation

METRICS = b"reconsume_in_flight 0.0\n"
MIB = 1024 * 1024


def the_app(sidecar: Operation, access: Access | None = None) -> Starlette:
    return build_app(sidecar, lambda: METRICS, access or Access())


def call(place: str | int, method: str, target: str, headers: dict[str, str] | None = None, **more: object) -> Answer:
    with Client(place) as client:
        return client.call(method, target, headers, **more)  # type: ignore[arg-type]


def assert_problem(answer: Answer, status: int) -> None:
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json.keys() == {"type", "title", "status", "detail"}
    assert answer.json["status"] == status
    assert answer.json["detail"]
