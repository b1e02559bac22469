"""The API of a sidecar of several groups: a call finds its group by its path, and the whole has probes and drain."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.api.app import Access, GroupCalls, GroupPaths, build_app, build_group_app
from reconsume.sidecar.hints import PRESENT_GROUP, hint
from reconsume.sidecar.http.calls import Call, Caller
from reconsume.sidecar.http.json_answer import json_answer
from tests.support.sidecar.api_calls import call
from tests.support.sidecar.running_api import Operation, serving

GROUPS = ("billing", "shipping")


def calls_of(group: str) -> list[Call]:
    """Calls that tell which group they have reached."""

    async def told(_request: Request) -> Response:
        return json_answer({"group": group, "present": PRESENT_GROUP.get(), "hint": hint("topics apply")})

    return [Call("/v1/policy", told, Caller.READ), Call("/v1/receive", told, Caller.SERVICE, "POST")]


def paths_of(sidecar: Operation, access: Access, *groups: str) -> GroupPaths:
    """The API of a sidecar of these groups."""
    below = {
        group: build_group_app(GroupCalls(lambda group=group: {"group": group}, calls_of(group), access))
        for group in groups
    }
    calls = calls_of(groups[0]) if len(groups) == 1 else []
    return GroupPaths(build_app(sidecar, lambda: b"", access, calls), below)


class SeveralGroups(Operation):
    """A sidecar of both groups."""

    def status(self) -> list[dict[str, object]]:  # type: ignore[override]
        return [{"group": group, "partitions": []} for group in GROUPS]


@pytest.fixture
def sidecar() -> SeveralGroups:
    return SeveralGroups(groups=GROUPS)


@pytest.fixture
def port(sidecar: SeveralGroups) -> Iterator[str | int]:
    with serving(paths_of(sidecar, Access(), *GROUPS)) as place:
        yield place


@pytest.mark.parametrize("group", GROUPS)
def test_a_call_reaches_the_group_in_its_path_and_knows_it(port: int, group: str) -> None:
    found = call(port, "GET", f"/groups/{group}/v1/policy").json
    assert (found["group"], found["present"]) == (group, group)
    assert found["hint"] == f"reconsume topics apply --group {group}"
    assert call(port, "POST", f"/groups/{group}/v1/receive").json["group"] == group
    assert call(port, "GET", f"/groups/{group}/status").json == {"group": group}


@pytest.mark.parametrize(
    "path", ["/v1/policy", "/groups/nobody/status", "/groups/", "/groups/billing", "/groups/billing/drain", "/groups"]
)
def test_what_is_no_call_of_a_group_is_not_there(port: int, path: str) -> None:
    assert call(port, "GET", path).status == 404


def test_the_status_of_the_whole_is_a_list(port: int) -> None:
    assert [one["group"] for one in call(port, "GET", "/status").json] == list(GROUPS)


@pytest.mark.parametrize(("query", "status"), [("", 200), ("?group=shipping&group=billing", 200)])
def test_a_drain_is_of_all_groups(port: int, sidecar: Operation, query: str, status: int) -> None:
    assert call(port, "POST", f"/drain{query}").status == status
    assert sidecar.drains == [None]


@pytest.mark.parametrize("query", ["?group=billing", "?group=billing&group=other", "?group=a&group=b&group=shipping"])
def test_a_drain_that_names_other_groups_than_these_changes_nothing(port: int, sidecar: Operation, query: str) -> None:
    refused = call(port, "POST", f"/drain{query}")
    assert refused.status == 409
    assert refused.json["detail"] == "This sidecar is of the groups billing, shipping, and drains as a whole."
    assert sidecar.drains == []


def test_a_token_opens_the_calls_of_all_groups_and_without_it_none(sidecar: Operation, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-secret-long-enough\n")
    with serving(paths_of(sidecar, Access(tmp_path / "token"), *GROUPS)) as place:
        for group in GROUPS:
            path, bearer = f"/groups/{group}/v1/receive", {"Authorization": "Bearer a-secret-long-enough"}
            assert call(place, "POST", path).status == 401
            assert call(place, "POST", path, bearer).json["group"] == group
        assert call(place, "GET", "/groups/nobody/status").status == 401, "nobody learns which groups there are"


def test_the_calls_of_a_single_group_have_both_addresses_and_no_present_group() -> None:
    with serving(paths_of(Operation(), Access(), "billing")) as place:
        for path in ("/v1/policy", "/groups/billing/v1/policy"):
            found = call(place, "GET", path).json
            assert (found["group"], found["present"]) == ("billing", None)


def test_a_context_of_one_call_does_not_reach_the_next_one(port: int) -> None:
    assert call(port, "GET", "/groups/billing/v1/policy").json["present"] == "billing"
    assert call(port, "GET", "/groups/shipping/v1/policy").json["present"] == "shipping"

    async def outside() -> str | None:
        return PRESENT_GROUP.get()

    assert asyncio.run(outside()) is None
