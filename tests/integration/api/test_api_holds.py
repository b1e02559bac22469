"""`/v1/holds` over a real server: what may be held, by whom, and what each error is."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from threading import Event

import pytest

from reconsume.sidecar.api.app import Access, build_app
from reconsume.sidecar.api.holds import MOST_AT_ONCE, THREADS, hold_routes
from reconsume.sidecar.errors import BrokerError, ContractError, RecordError
from reconsume.sidecar.group_policy.operations import HoldsChanged, HoldStore
from reconsume.sidecar.group_policy.state import ControlState, HoldsInForce
from reconsume.sidecar.http.access import LOOPBACK_NAMES
from reconsume.topics.hold_record import HoldRecord
from reconsume.topics.names import Names
from tests.support.deadline import until
from tests.support.sidecar.api_calls import assert_problem
from tests.support.sidecar.running_api import Answer, Client, Operation, serving

GOOD = {"topic": "orders", "for": "1h", "why": "the ledger is mended"}
AUTH = {"Authorization": "Bearer a-secret-long-enough"}


class Keeper:
    def status(self) -> dict[str, object]:
        return {"holds": [], "holds_ignored": ""}


class Topic(HoldStore):
    """Holds in memory, or a broker that is away."""

    def __init__(self) -> None:
        super().__init__({}, Names("billing"))
        self.there: dict[str, HoldRecord] = {}
        self.released: list[tuple[str, str]] = []
        self.fault: Exception | None = None
        self.reads = 0
        self.go = Event()
        self.go.set()

    def read(self) -> HoldsInForce:
        self.reads += 1
        assert self.go.wait(60)
        if self.fault is not None:
            raise self.fault
        return HoldsInForce(self.there)

    def begin(self, planned: HoldRecord) -> HoldsChanged:
        self.read()
        self.there["a"] = planned
        return HoldsChanged(self.there, 0, ControlState(), frozenset())

    def release(self, idents: Collection[str], who: str, newer: Collection[str] = ()) -> HoldsChanged:
        there = self.read().records
        if not set(idents) <= there.keys():
            raise RecordError("no such hold")
        self.released += [(ident, who) for ident in idents]
        return HoldsChanged(there, 0, ControlState(), frozenset())


@pytest.fixture(scope="module")
def topic() -> Topic:
    return Topic()


@pytest.fixture(scope="module")
def place(topic: Topic, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str | int]:
    token: Path = tmp_path_factory.mktemp("holds") / "token"
    token.write_text("ann: a-secret-long-enough\n")
    app = build_app(
        Operation(),
        lambda: b"",
        Access(None, LOOPBACK_NAMES, operators=token),
        calls=hold_routes(Keeper().status, lambda: topic, ("orders",)),
    )
    with serving(app) as place:
        yield place


def call(place: str | int, method: str, path: str, body: object = None) -> Answer:
    with Client(place) as client:
        if body is None:
            return client.call(method, path, AUTH)
        text = json.dumps(body)
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Authorization: Bearer a-secret-long-enough"]
        lines += ["Content-Type: application/json", f"Content-Length: {len(text)}", "", text]
        client.send("\r\n".join(lines).encode())
        return client.answer(method)


def test_a_hold_is_written_listed_and_released_by_the_name_of_the_token(place: str | int, topic: Topic) -> None:
    made = call(place, "POST", "/v1/holds", GOOD)
    assert (made.status, made.json["what"], made.json["who"]) == (201, "topic=orders", "api:ann")
    assert made.json["until"] - made.json["since"] == 3_600_000
    assert call(place, "GET", "/v1/holds").json == {"holds": [], "holds_ignored": ""}
    assert call(place, "DELETE", "/v1/holds/a").status == 204
    assert topic.released == [("a", "api:ann")]
    assert_problem(call(place, "DELETE", "/v1/holds/b"), 404)


@pytest.mark.parametrize(
    ("what", "key", "level"),
    [
        ({"key": ""}, b"", None),
        ({"key": "a\nb"}, b"a\nb", None),
        ({"key_base64": base64.b64encode(b"\xff").decode()}, b"\xff", None),
        ({"level": "60s"}, None, "1m"),
        ({"level": "ready", "topic": "orders"}, None, "ready"),
        ({"all": True}, None, None),
    ],
)
def test_what_may_be_held(
    place: str | int, topic: Topic, what: dict[str, object], key: bytes | None, level: str | None
) -> None:
    assert call(place, "POST", "/v1/holds", {"for": "1s", "why": "x", **what}).status == 201
    assert (topic.there["a"].key, topic.there["a"].level) == (key, level)


@pytest.mark.parametrize(
    "body",
    [
        {"for": "1h", "why": "x"},
        {**GOOD, "all": True},
        {**GOOD, "all": "yes"},
        {**GOOD, "all": 1},
        {**GOOD, "for": "8d"},
        {**GOOD, "for": 60},
        {"topic": "orders", "why": "x"},
        {"topic": "orders", "for": "1h"},
        {**GOOD, "why": ""},
        {**GOOD, "why": " "},
        {**GOOD, "why": "x" * 1_001},
        {**GOOD, "why": "\x1b[2J"},
        {**GOOD, "topic": ""},
        {**GOOD, "topic": "odrers"},
        {**GOOD, "topic": 1},
        {**GOOD, "level": "soon"},
        {**GOOD, "key": "a", "key_base64": "YQ=="},
        {**GOOD, "key_base64": "?"},
        {**GOOD, "key": "\ud800"},
        {**GOOD, "who": "me"},
        [],
    ],
)
def test_what_is_no_hold_is_refused_and_nothing_is_written(place: str | int, topic: Topic, body: object) -> None:
    topic.there.clear()
    assert_problem(call(place, "POST", "/v1/holds", body), 400)
    assert not topic.there


@pytest.mark.parametrize(("fault", "status"), [(BrokerError("no answer"), 503), (ContractError("no topic"), 409)])
def test_a_broker_or_a_topic_that_is_away_is_named(
    place: str | int, topic: Topic, fault: Exception, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic, "fault", fault)
    for answer in (call(place, "POST", "/v1/holds", GOOD), call(place, "DELETE", "/v1/holds/a")):
        assert_problem(answer, status)


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/holds"), ("DELETE", "/v1/holds/a")])
def test_each_change_needs_the_token(place: str | int, method: str, path: str) -> None:
    with Client(place) as client:
        assert client.call(method, path).status == 401


def test_callers_that_hang_up_in_a_loop_get_no_more_than_the_calls_own_threads(place: str | int, topic: Topic) -> None:
    """Given a caller that begins releases and hangs up each time while Kafka is slow, then its calls still count: a few
    run, a few wait, the next one is told to come again, and reads and probes are answered as ever."""
    head = "\r\n".join(["DELETE /v1/holds/x HTTP/1.1", "Host: localhost", f"Authorization: {AUTH['Authorization']}"])
    before = topic.reads
    topic.go.clear()
    try:
        for _ in range(5 * MOST_AT_ONCE):
            with Client(place) as client:
                client.send(f"{head}\r\n\r\n".encode())
        until(lambda: call(place, "DELETE", "/v1/holds/x").status == 503, 30, "the calls are bounded")
        refused = call(place, "DELETE", "/v1/holds/x")
        assert_problem(refused, 503)
        assert refused.headers["retry-after"] == "5"
        assert topic.reads - before == THREADS
        assert call(place, "GET", "/v1/holds").status == 200
        with Client(place) as client:
            assert client.call("GET", "/livez").status == 200
    finally:
        topic.go.set()
    until(lambda: call(place, "DELETE", "/v1/holds/x").status == 404, 30, "there is room again")
    assert topic.reads - before <= MOST_AT_ONCE + 1, "a call that was refused was never begun"
