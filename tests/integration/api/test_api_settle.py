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
from reconsume.sidecar.api.settle import MOST_AT_ONCE, Settle, settle_routes
from reconsume.sidecar.dlq.settle_request import Decided, NotWaitingError, SettleRequest
from reconsume.sidecar.errors import BrokerError, ContractError, LetterError
from reconsume.sidecar.http.access import LOOPBACK_NAMES
from reconsume.topics.events import State, event_of
from tests.sim.samples import WALL, life
from tests.support.deadline import until
from tests.support.sidecar.api_calls import assert_problem
from tests.support.sidecar.running_api import Answer, Client, Operation, serving

GOOD = {"id": "orders:3:1024", "how": "commit", "why": "it was paid by hand"}
EVENT = event_of(life(), State.COMMIT, None, group="billing", instance="billing-0", at=WALL)
DONE = Decided(EVENT, as_decided=True)


class Settler:
    """Answers with `decided`, or raises it, once `go` is set; keeps what was asked for."""

    def __init__(self) -> None:
        self.decided: Decided | Exception = DONE
        self.calls: list[SettleRequest] = []
        self.client_of: Callable[[weakref.ref[threading.Event]], None] = lambda _client: None
        self.go = threading.Event()
        self.go.set()

    def __call__(self, request: SettleRequest) -> Decided:
        client = threading.Event()  # it stands for what a call makes, and can be referred to weakly
        self.client_of(weakref.ref(client))
        self.calls.append(request)
        assert self.go.wait(30)
        if isinstance(self.decided, Exception):
            raise self.decided.__class__(str(self.decided))
        return self.decided


@pytest.fixture
def settler() -> Settler:
    return Settler()


@pytest.fixture
def port(settler: Settler, tmp_path: Path) -> Iterator[str | int]:
    with served(settler, tmp_path) as port:
        yield port


def served(settle: Settle | None, folder: Path) -> AbstractContextManager[str | int]:
    token = folder / "token"
    token.write_text("ann: a-secret-long-enough\n")
    app = build_app(
        Operation(), lambda: b"", Access(None, LOOPBACK_NAMES, operators=token), calls=settle_routes(settle)
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
def test_a_decision_is_made_by_the_name_of_the_token_and_its_end_is_answered(
    port: str | int, settler: Settler, how: str
) -> None:
    answer = settle(port, {**GOOD, "how": how})
    ended = {"done": True, "state": "COMMIT"}
    assert (answer.status, answer.json) == (200, {"id": GOOD["id"], "how": how, **ended})
    assert settler.calls == [("orders:3:1024", how, GOOD["why"], "api:ann")]


def test_one_that_is_written_and_not_carried_out_yet_is_202(port: str | int, settler: Settler) -> None:
    settler.decided = Decided(None)
    answer = settle(port, GOOD)
    assert (answer.status, answer.json["done"], answer.json["state"]) == (202, False, None)


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
        (NotWaitingError("orders:3:1024 waits in no queue of this group"), 404),
        (LetterError("it cannot be settled so"), 409),
        (ContractError("1000 records are settled and not done yet"), 409),
        (BrokerError("no answer"), 503),
    ],
)
def test_each_refusal_has_its_status(port: str | int, settler: Settler, fault: Exception, status: int) -> None:
    settler.decided = fault
    assert_problem(settle(port, GOOD), status)


def test_a_call_that_fails_leaves_nothing_that_waits_for_a_collection(port: str | int, settler: Settler) -> None:
    """A sidecar collects cycles rarely, and the frames of a failed call hold clients of Kafka."""
    settler.decided = BrokerError("no answer")
    settled_in: list[weakref.ref[threading.Event]] = []
    settler.client_of = settled_in.append
    gc.disable()
    try:
        assert settle(port, GOOD).status == 503
        until(lambda: settled_in[0]() is None, 30, "what the call has made is gone")
    finally:
        gc.enable()


def test_a_group_without_queues_says_so(tmp_path: Path) -> None:
    with served(None, tmp_path) as port:
        assert_problem(settle(port, GOOD), 404)


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
