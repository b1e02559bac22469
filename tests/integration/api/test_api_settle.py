"""`POST /v1/settle` over a real server: what may be decided, by whom, and what each error is."""

from __future__ import annotations

import gc
import json
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from reconsume.sidecar.api.app import Access, build_app
from reconsume.sidecar.api.settle import MOST_AT_ONCE, settle_routes
from reconsume.sidecar.dlq.settle_request import NotWaitingError, Settled, SettleRequest
from reconsume.sidecar.dlq.settle_waiting import DecisionCalls
from reconsume.sidecar.errors import BrokerError, ContractError, LetterError, RecordError
from reconsume.sidecar.http.access import LOOPBACK_NAMES
from reconsume.sidecar.operation import Row
from tests.support.deadline import until
from tests.support.sidecar.api_calls import assert_problem
from tests.support.sidecar.running_api import Answer, Client, Operation, serving

GOOD = {"id": "orders:3:1024", "how": "commit", "why": "it was paid by hand"}
MANY = {"waiting": {"topic": "orders", "reason": "http-503", "level": "10m", "key": "ada"}, **GOOD, "rate": "50/s"}
del MANY["id"]
ROW = {"topic": "orders", "level": "10m", "reason": "http-503", "records": 7, "due_soon": 0, "is": "done"}
DONE = Settled([], 1, "3f9c1ab2", done=True)


class Settler(DecisionCalls):
    """Answers with `settled`, or raises it, once `go` is set; keeps what was asked for."""

    def __init__(self) -> None:
        self.settled: Settled | Exception = DONE
        self.calls: list[SettleRequest] = []
        self.dry_runs: list[bool] = []
        self.ended: list[tuple[str, str]] = []
        self.client_of: Callable[[weakref.ref[threading.Event]], None] = lambda _client: None
        self.go = threading.Event()
        self.go.set()

    def settle(self, request: SettleRequest, *, dry_run: bool) -> Settled:
        client = threading.Event()  # it stands for what a call makes, and can be referred to weakly
        self.client_of(weakref.ref(client))
        self.calls.append(request)
        self.dry_runs.append(dry_run)
        assert self.go.wait(30)
        if isinstance(self.settled, Exception):
            raise self.settled.__class__(str(self.settled))
        return self.settled

    def status(self, decision: str) -> Row:
        if decision != "3f9c1ab2":
            raise RecordError("there is no such decision")
        return {"decision": decision, "state": "open", "done": 5}

    def end(self, decision: str, who: str) -> None:
        self.status(decision)
        self.ended.append((decision, who))


@pytest.fixture
def settler() -> Settler:
    return Settler()


@pytest.fixture
def port(settler: Settler, tmp_path: Path) -> Iterator[str | int]:
    with served(settler, tmp_path) as port:
        yield port


def served(settler: Settler, folder: Path) -> AbstractContextManager[str | int]:
    token = folder / "token"
    token.write_text("ann: a-secret-long-enough\n")
    app = build_app(
        Operation(),
        lambda: b"",
        Access(None, LOOPBACK_NAMES, operators=token),
        calls=settle_routes(lambda: settler, ["orders"]),
    )
    return serving(app)


def call_of(body: object, token: str = "a-secret-long-enough") -> bytes:
    text = json.dumps(body)
    lines = ["POST /v1/settle HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token}"]
    lines += ["Content-Type: application/json", f"Content-Length: {len(text)}", "", text]
    return "\r\n".join(lines).encode()


def settle(port: str | int, body: object, token: str = "a-secret-long-enough") -> Answer:
    with Client(port) as client:
        client.send(call_of(body, token))
        return client.answer("POST")


@pytest.mark.parametrize("how", ["commit", "dead-letter", "retry-now"])
def test_a_decision_about_one_record_is_made_by_the_name_of_the_token_and_its_end_is_answered(
    port: str | int, settler: Settler, how: str
) -> None:
    answer = settle(port, {**GOOD, "how": how})
    told = {"decision": "3f9c1ab2", "how": how, "records": 1, "id": GOOD["id"], "done": True}
    assert (answer.status, answer.json) == (200, told)
    assert settler.calls == [SettleRequest("orders:3:1024", how, GOOD["why"], "api:ann")]


def test_one_that_is_written_and_not_carried_out_yet_is_202(port: str | int, settler: Settler) -> None:
    settler.settled = Settled([], 1, "3f9c1ab2")
    answer = settle(port, GOOD)
    assert (answer.status, answer.json["done"], answer.json["decision"]) == (202, False, "3f9c1ab2")


def test_one_whose_record_ended_before_is_409(port: str | int, settler: Settler) -> None:
    settler.settled = Settled([], 1, "3f9c1ab2", done=False)
    assert_problem(settle(port, GOOD), 409)


def test_a_decision_about_many_is_202_with_its_id_and_its_plan(port: str | int, settler: Settler) -> None:
    settler.settled = Settled([ROW], 7, "3f9c1ab2")
    answer = settle(port, MANY)
    assert (answer.status, answer.json) == (
        202,
        {"decision": "3f9c1ab2", "how": "commit", "records": 7, "plan": [ROW]},
    )
    (wanted,) = settler.calls
    named = wanted.topic, wanted.reason, wanted.level, wanted.key, wanted.rate
    assert (wanted.id, named) == ("", ("orders", "http-503", "10m", b"ada", "50/s"))


def test_a_dry_run_is_200_with_the_plan_and_so_is_what_fits_nothing(port: str | int, settler: Settler) -> None:
    settler.settled = Settled([ROW], 7)
    answer = settle(port, {**MANY, "dry_run": True})
    assert (answer.status, answer.json["decision"], answer.json["records"]) == (200, None, 7)
    settler.settled = Settled([], 0)
    answer = settle(port, {**MANY, "waiting": {}})
    assert (answer.status, answer.json["plan"]) == (200, [])
    assert settler.dry_runs == [True, False]


def test_a_decision_is_followed_and_ended_by_its_id(port: str | int, settler: Settler) -> None:
    token = {"Authorization": "Bearer a-secret-long-enough"}
    with Client(port) as client:
        answer = client.call("GET", "/v1/settle/3f9c1ab2", token)
        assert (answer.status, answer.json) == (200, {"decision": "3f9c1ab2", "state": "open", "done": 5})
        assert client.call("DELETE", "/v1/settle/3f9c1ab2", token).status == 204
    assert settler.ended == [("3f9c1ab2", "api:ann")]
    with Client(port) as client:
        assert client.call("GET", "/v1/settle/unknown", token).status == 404
        assert client.call("DELETE", "/v1/settle/unknown", token).status == 404
        assert client.call("GET", "/v1/settle/3f9c1ab2").status == 401


@pytest.mark.parametrize(
    "body",
    [
        {**GOOD, "how": "redrive"},
        {**GOOD, "how": "COMMIT"},
        {**GOOD, "how": ["commit"]},
        {**GOOD, "how": None},
        {**GOOD, "id": ""},
        {**GOOD, "id": "orders:3"},
        {**GOOD, "id": "orders:3:-1"},
        {**GOOD, "id": "../orders:3:1024"},
        {**GOOD, "id": "<script>:0:0"},
        {**GOOD, "id": "orders:3:1024\n"},
        {**GOOD, "id": "\ud800:0:0"},
        {**GOOD, "id": "x" * 301 + ":0:0"},
        {**GOOD, "id": 7},
        {**GOOD, "id": [GOOD["id"]]},
        {**GOOD, "why": ""},
        {**GOOD, "why": "  "},
        {**GOOD, "why": "x" * 1_001},
        {**GOOD, "why": "\x1b[2J"},
        {**GOOD, "why": {}},
        {**GOOD, "who": "me"},
        {"id": GOOD["id"], "how": "commit"},
        {"how": "commit", "why": "x"},
        {**MANY, "id": GOOD["id"]},
        {**MANY, "waiting": []},
        {**MANY, "waiting": {"topic": "other"}},
        {**MANY, "waiting": {"topic": 7}},
        {**MANY, "waiting": {"level": "main"}},
        {**MANY, "waiting": {"reason": ""}},
        {**MANY, "waiting": {"reason": "a\x1b"}},
        {**MANY, "waiting": {"key": "a", "key_base64": "YQ=="}},
        {**MANY, "waiting": {"key_base64": "?"}},
        {**MANY, "waiting": {"who": "me"}},
        {**MANY, "rate": "50"},
        {**MANY, "rate": 50},
        {**MANY, "dry_run": "yes"},
        {"id": GOOD["id"], "why": "x"},
        [],
    ],
)
def test_what_is_no_decision_is_refused_and_nothing_is_done(port: str | int, settler: Settler, body: object) -> None:
    assert_problem(settle(port, body), 400)
    assert settler.calls == []


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (NotWaitingError("orders:3:1024 does not wait in this group"), 404),
        (LetterError("it cannot be settled so"), 409),
        (ContractError("1000 records are settled and not done yet"), 409),
        (BrokerError("no answer"), 503),
    ],
)
def test_each_refusal_has_its_status(port: str | int, settler: Settler, fault: Exception, status: int) -> None:
    settler.settled = fault
    assert_problem(settle(port, GOOD), status)


def test_a_call_that_fails_leaves_nothing_that_waits_for_a_collection(port: str | int, settler: Settler) -> None:
    """A sidecar collects cycles rarely, and the frames of a failed call hold clients of Kafka."""
    settler.settled = BrokerError("no answer")
    settled_in: list[weakref.ref[threading.Event]] = []
    settler.client_of = settled_in.append
    gc.disable()
    try:
        assert settle(port, GOOD).status == 503
        until(lambda: settled_in[0]() is None, 30, "what the call has made is gone")
    finally:
        gc.enable()


def test_the_call_needs_the_token_and_is_a_post(port: str | int, settler: Settler) -> None:
    assert_problem(settle(port, GOOD, "wrong"), 401)
    with Client(port) as client:
        assert client.call("GET", "/v1/settle", {"Authorization": "Bearer a-secret-long-enough"}).status == 405
    assert settler.calls == []


def test_few_calls_are_under_way_at_once_also_if_their_callers_go_away(port: str | int, settler: Settler) -> None:
    """Given as many calls as may be, one of them without its caller, when another one comes, then it is refused; once
    they have ended there is room again."""
    settler.go.clear()
    with ThreadPoolExecutor(MOST_AT_ONCE) as callers:
        waiting = [callers.submit(settle, port, GOOD) for _ in range(MOST_AT_ONCE - 1)]
        with Client(port) as gone:
            gone.send(call_of(GOOD))
            until(lambda: len(settler.calls) == MOST_AT_ONCE, 30, "all are under way")
        refused = settle(port, GOOD)
        assert_problem(refused, 503)
        assert refused.headers["retry-after"] == "5"
        settler.go.set()
        assert [call.result().status for call in waiting] == [200] * (MOST_AT_ONCE - 1)
    until(lambda: settle(port, GOOD).status == 200, 30, "there is room again")
