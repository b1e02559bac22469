"""No problem document repeats a word that its caller wrote (contract 12.8): a page or a log may show it."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any, cast

import pytest

from reconsume.sidecar.api.app import Access, build_app
from reconsume.sidecar.api.holds import hold_routes
from reconsume.sidecar.api.pull import pull_routes
from reconsume.sidecar.api.retry import retry_routes
from reconsume.sidecar.api.settle import settle_routes
from reconsume.sidecar.dlq.settle_request import SettleRequest
from reconsume.sidecar.errors import LetterError, RecordError
from reconsume.topics.outputs import AllowedOutputs
from tests.support.sidecar.running_api import Answer, Client, Operation, serving

WORD = "zq-word-of-the-caller-zq"
TOKEN = "the-token-of-an-operator"
POST = {
    "topic": "orders",
    "partition": 0,
    "offset": 0,
    "timestamp": 1,
    "key_base64": None,
    "value_base64": "",
    "headers": [],
}
HOLD = {"topic": "orders", "for": "1h", "why": "why"}
SETTLE = {"id": "orders:0:1", "how": "commit", "why": "why"}
ACK = {"handles": ["h"], "produce": [{"topic": "out", "value": "v"}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/retry": POST,
    "/v1/holds": HOLD,
    "/v1/settle": SETTLE,
    "/v1/ack": ACK,
    "/v1/nack": {"handles": ["h"]},
    "/v1/receive": {"max": 1, "invisible": "30s", "wait": "0s"},
    "/v1/change-invisible": {"handles": ["h"], "invisible": "30s"},
    "/v1/reconsume-later": {"handles": ["h"]},
    "/v1/dead-letter": {"handles": ["h"]},
}


class Store:
    """Holds of which none is in force."""

    def read(self) -> object:
        return None

    def release(self, idents: list[str], *_: object) -> None:
        raise RecordError(f"no hold {idents[0]} is in force")


class Leases:
    """No record is leased."""

    closed, waiting = False, 0

    def settle(self, *_: object) -> object:
        raise AssertionError("what is refused reaches no lease")

    change = settle


class Decisions:
    """No record can be settled, and no decision is known."""

    def settle(self, request: SettleRequest, **_: bool) -> Any:
        raise LetterError(f"{request.id} cannot be settled so: it is the first")

    def status(self, decision: str, *_: str) -> Any:
        raise RecordError(f"there is no decision {decision}")

    end = status


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str | int]:
    token = tmp_path_factory.mktemp("words") / "token"
    token.write_text(f"{TOKEN}\n")
    calls = [
        *hold_routes(cast(Any, None), lambda: cast(Any, Store()), ("orders",)),
        *settle_routes(lambda: cast(Any, Decisions()), ("orders",)),
        *retry_routes(cast(Any, None)),
        *pull_routes(cast(Any, Leases()), "billing", 1_000, AllowedOutputs(("out",), ())),
    ]
    access = Access(operators=token)
    with serving(build_app(Operation(), lambda: b"", access, calls)) as place:
        yield place


def call(
    place: str | int, method: str, target: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> Answer:
    sent = {
        "Host": "localhost",
        "Authorization": f"Bearer {TOKEN}",
        "Content-Type": "application/json",
        **(headers or {}),
    }
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
    lines += [] if body is None else [f"Content-Length: {len(body)}"]
    with Client(place) as client:
        client.send("\r\n".join([*lines, "", ""]).encode() + (body or b""))
        return client.answer(method)


def silent(answer: Answer) -> None:
    assert answer.status >= 400
    assert WORD not in answer.body.decode()
    assert WORD not in str(answer.headers)


def changed(value: Any, word: Any) -> Iterator[Any]:
    """Yield a document once for each place in it, with the word there: as a value, as a name, and as one more field."""
    yield word
    if isinstance(value, dict):
        yield {**value, WORD: 1}
        for name, inner in value.items():
            yield {(WORD if one == name else one): kept for one, kept in value.items()}
            for other in changed(inner, word):
                yield {**value, name: other}
    elif isinstance(value, list):
        yield [*value, word]
        for number, inner in enumerate(value):
            for other in changed(inner, word):
                yield [*value[:number], other, *value[number + 1 :]]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "word", [WORD, [WORD], {WORD: WORD}, f"{WORD}:0:1", f"\u202e{WORD}", f'"{WORD}` - at `$.{WORD}']
)
def test_no_body_is_repeated_whatever_is_wrong_with_it(place: str | int, path: str, word: Any) -> None:
    refused = 0
    for body in changed(BODIES[path], word):
        answer = call(place, "POST", path, json.dumps(body).encode())
        if answer.status >= 500:  # the plain doubles behind the calls fail once a call is good
            continue
        refused += 1
        silent(answer)
    assert refused > 2


@pytest.mark.parametrize(
    "text", [f"{{{WORD}", f'"{WORD}"', f'{{"a": {WORD}}}', f"[{WORD}]", f'{{"{WORD}": 1, "{WORD}": 2}}']
)
def test_no_malformed_body_is_repeated(place: str | int, text: str) -> None:
    for path in BODIES:
        silent(call(place, "POST", path, text.encode()))


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", f"/{WORD}"),
        ("POST", f"/v1/{WORD}"),
        ("PUT", f"/v1/holds/{WORD}"),
        ("DELETE", f"/v1/holds/{WORD}"),
        ("POST", f"/drain?timeout={WORD}"),
        ("POST", f"/drain?group={WORD}"),
    ],
)
def test_no_path_and_no_parameter_is_repeated(place: str | int, method: str, target: str) -> None:
    silent(call(place, method, target))


@pytest.mark.parametrize(
    "name", ["Host", "Authorization", "Content-Type", "Content-Encoding", "Origin", "Sec-Fetch-Site"]
)
def test_no_header_of_a_call_is_repeated(place: str | int, name: str) -> None:
    value = f"Bearer {WORD}" if name == "Authorization" else f"http://{WORD}" if name == "Origin" else WORD
    silent(call(place, "POST", "/v1/settle", json.dumps(SETTLE).encode(), {name: value}))


def test_what_may_not_be_written_is_named_by_its_number(place: str | int) -> None:
    for produce in (
        [{"topic": WORD, "value": "v"}],
        [{"topic": "out", "value": "v", WORD: 1}],
        [{"topic": "out", "headers": [[WORD, "not base64"]]}],
        [{"topic": "out", "headers": [["h", WORD]]}],
        [{"topic": "out", "value": "a", "value_base64": b64encode(WORD.encode()).decode()}],
    ):
        answer = call(place, "POST", "/v1/ack", json.dumps({"handles": ["h"], "produce": produce}).encode())
        silent(answer)
        assert "produce[0]" in answer.json["detail"]
