"""Who may make which call of the API: the service, operators, readers, and whoever has no token."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from reconsume.sidecar import api
from reconsume.sidecar.api.app import Access, build_app, policy_routes
from reconsume.sidecar.api.holds import hold_routes
from reconsume.sidecar.api.pull import no_pull_routes, pull_routes
from reconsume.sidecar.api.reset import reset_routes
from reconsume.sidecar.api.retry import retry_routes
from reconsume.sidecar.api.settle import settle_routes
from reconsume.sidecar.api.view import no_view_routes, view_routes
from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.http.calls import Call, Caller
from tests.support.sidecar.api_calls import assert_problem
from tests.support.sidecar.running_api import Answer, Client, Operation, serving

BUILDERS: Mapping[str, Callable[[], list[Call]]] = {
    "hold_routes": lambda: hold_routes(cast(Any, Keeper()).status, cast(Any, None), ()),
    "policy_routes": lambda: policy_routes(cast(Any, Keeper()).policy),
    "pull_routes": lambda: pull_routes(cast(Any, None), "billing", 1_000),
    "no_pull_routes": lambda: no_pull_routes("push"),
    "retry_routes": lambda: retry_routes(cast(Any, None)),
    "reset_routes": lambda: reset_routes(cast(Any, Topics()), no_store),
    "settle_routes": lambda: settle_routes(no_store, ()),
    "view_routes": lambda: view_routes(cast(Any, None)),
    "no_view_routes": no_view_routes,
}
SERVED = (
    *("hold_routes", "policy_routes", "no_pull_routes", "retry_routes"),
    *("reset_routes", "settle_routes", "no_view_routes"),
)
"""Those whose calls a test makes: none of them needs more than a caller."""

CALLS = {
    Caller.PROBE: {"GET /livez", "GET /readyz", "GET /startupz", "GET /metrics"},
    Caller.READ: {
        *("GET /status", "GET /v1/policy", "GET /v1/holds"),
        *("GET /v1/view/messages", "GET /v1/view/messages/{id:path}", "GET /v1/view/stats"),
    },
    Caller.SERVICE: {
        *("POST /drain", "POST /v1/retry", "POST /v1/receive", "POST /v1/ack", "POST /v1/nack", "POST /v1/release"),
        *("POST /v1/change-invisible", "POST /v1/reconsume-later", "POST /v1/dead-letter"),
    },
    Caller.OPERATOR: {
        *("POST /v1/holds", "DELETE /v1/holds/{id}"),
        *("POST /v1/settle", "GET /v1/settle/{id}", "DELETE /v1/settle/{id}"),
        *("POST /v1/reset", "GET /v1/reset/{id}"),
    },
}
"""Every call of the API, by who may make it."""
EVERY = [(caller, call) for caller, calls in CALLS.items() for call in sorted(calls)]

TOKENS = {
    "none": None,
    "unknown": "nobody-has-this-one",
    "service": "the-token-of-the-service",
    "operator": "the-token-of-an-operator",
}


class Topics:
    """What knows the main topics of a group; it has none."""

    topic_names = ()


def no_store() -> NoReturn:
    """Nobody answers here."""
    raise BrokerError("there is no Kafka")


class Keeper:
    """What knows holds and policy; it has none."""

    def status(self) -> dict[str, object]:
        return {"holds": [], "holds_ignored": ""}

    def policy(self) -> dict[str, object]:
        return {}


def routes_of(names: tuple[str, ...]) -> list[Call]:
    return [route for name in names for route in BUILDERS[name]()]


@contextmanager
def served(folder: Path, *, service: bool, operators: bool) -> Iterator[str | int]:
    files = folder / "service", folder / "operators"
    files[0].write_text(f"billing: {TOKENS['service']}\n")
    files[1].write_text(f"ann: {TOKENS['operator']}\n")
    access = Access(files[0] if service else None, operators=files[1] if operators else None)
    with serving(build_app(Operation(), lambda: b"", access, routes_of(SERVED))) as port:
        yield port


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str | int]:
    with served(tmp_path_factory.mktemp("both"), service=True, operators=True) as port:
        yield port


@pytest.fixture(scope="module")
def only_operators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str | int]:
    with served(tmp_path_factory.mktemp("operators"), service=False, operators=True) as port:
        yield port


@pytest.fixture(scope="module")
def only_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str | int]:
    with served(tmp_path_factory.mktemp("service"), service=True, operators=False) as port:
        yield port


@pytest.fixture(scope="module")
def neither(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str | int]:
    with served(tmp_path_factory.mktemp("neither"), service=False, operators=False) as port:
        yield port


def make(port: str | int, call: str, token: str) -> Answer:
    """Make a call with a body that no endpoint takes: what is allowed ends in the endpoint, and does nothing."""
    method, _, path = call.partition(" ")
    path = path.replace("{id:path}", "orders:0:1").replace("{id}", "no-such-hold")
    secret, body = TOKENS[token], json.dumps({"nonsense": 1})
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    lines += [] if secret is None else [f"Authorization: Bearer {secret}"]
    lines += [] if method != "POST" else ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    with Client(port) as client:
        client.send("\r\n".join([*lines, "", body if method == "POST" else ""]).encode())
        return client.answer(method)


def refusal(answer: Answer) -> int | None:
    return answer.status if answer.status in (401, 403) else None


def test_every_call_is_listed_with_who_may_make_it() -> None:
    """Given a new call, then this fails until somebody has decided who may make it."""
    app = build_app(Operation(), lambda: b"", Access(), routes_of(tuple(BUILDERS)))
    assert all(isinstance(route, Call) for route in app.routes)
    found: dict[Caller, set[str]] = {caller: set() for caller in Caller}
    for route in cast("list[Call]", app.routes):
        (method,) = (route.methods or set()) - {"HEAD"}
        found[route.caller].add(f"{method} {route.path}")
    assert found == CALLS


def test_no_module_of_the_api_has_calls_that_this_list_lacks() -> None:
    modules = [importlib.import_module(f"{api.__name__}.{one.name}") for one in pkgutil.iter_modules(api.__path__)]
    builders = {name for module in modules for name in vars(module) if name.endswith("_routes")}
    assert builders == set(BUILDERS)


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize(("caller", "call"), EVERY)
def test_with_both_files_each_token_opens_its_own_calls(both: str | int, caller: Caller, call: str, token: str) -> None:
    opens = {
        Caller.PROBE: {"none", "unknown", "service", "operator"},
        Caller.READ: {"service", "operator"},
        Caller.SERVICE: {"service"},
        Caller.OPERATOR: {"operator"},
    }
    known = token in ("service", "operator")
    assert refusal(make(both, call, token)) == (None if token in opens[caller] else 403 if known else 401)


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize(("caller", "call"), EVERY)
def test_with_operators_tokens_alone_the_service_needs_none_on_loopback(
    only_operators: str | int, caller: Caller, call: str, token: str
) -> None:
    refused = {Caller.PROBE: set(), Caller.READ: {"unknown", "service"}, Caller.SERVICE: set()}
    refused[Caller.OPERATOR] = {"none", "unknown", "service"}
    assert refusal(make(only_operators, call, token)) == (401 if token in refused[caller] else None)


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("call", sorted(CALLS[Caller.OPERATOR]))
def test_without_operators_tokens_nobody_changes_the_group_and_the_refusal_names_the_setting(
    only_service: str | int, neither: str | int, call: str, token: str
) -> None:
    for port in (only_service, neither):
        answer = make(port, call, token)
        assert_problem(answer, 403)
        assert "operators.token_file" in answer.json["detail"]


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("caller", [Caller.PROBE, Caller.READ, Caller.SERVICE])
def test_without_any_file_all_other_calls_are_as_open_as_loopback(
    neither: str | int, caller: Caller, token: str
) -> None:
    assert {refusal(make(neither, call, token)) for call in CALLS[caller]} == {None}


def test_a_token_in_both_files_is_the_services_alone(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKENS['service']}\n")
    access = Access(tmp_path / "token", operators=tmp_path / "token")
    with serving(build_app(Operation(), lambda: b"", access, routes_of(SERVED))) as port:
        assert_problem(make(port, "POST /v1/settle", "service"), 403)
        assert make(port, "POST /drain", "service").status == 200
