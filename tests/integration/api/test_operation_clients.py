"""The Kafka clients of one call of the API: few, and all of them closed when it ends, whatever ends it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from reconsume.sidecar.api.app import Access, build_app
from reconsume.sidecar.http.access import LOOPBACK_NAMES
from reconsume.sidecar.kafka import clients
from reconsume.sidecar.kafka.clients import CredentialRegistry
from reconsume.sidecar.runtime.servers import hold_calls, reset_calls, settle_calls
from reconsume.sidecar.settings import load
from reconsume.sidecar.settings.policy import build_policy
from reconsume.topics.client_rules import checked_client
from reconsume.topics.names import Kind
from tests.support.beside import repeated
from tests.support.deadline import until
from tests.support.freed import nothing_left
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.level_copies import Owner, decisions_of, level_copy
from tests.support.kafka.topic_io import Out, produce
from tests.support.sidecar.policy import write
from tests.support.sidecar.running_api import Answer, Client, Operation, serving

C = TypeVar("C")
HOLDING: Any = SimpleNamespace(status=dict)
"""What `GET` is answered by, which nobody calls here."""
HOUR = 3_600_000
SECONDS = 30.0
WHY = {"why": "the handler had a bug"}


class Calls:
    """An operator who calls the API of a sidecar, and the clients that each call makes."""

    def __init__(self, client: Client) -> None:
        self._client, self.made = client, Counter[str]()

    def make(self, client_class: Callable[[dict[str, Any]], C], config: Mapping[str, object]) -> C:
        """Make a client, and count it."""
        self.made[client_class.__name__] += 1
        return checked_client(client_class, config)

    def __call__(self, method: str, path: str, **body: object) -> Answer:
        """One call; `made` has its clients alone."""
        self.made.clear()
        text = json.dumps(body) if body else ""
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Authorization: Bearer a-secret-long-enough"]
        lines += ["Content-Type: application/json", f"Content-Length: {len(text)}", "", text]
        self._client.send("\r\n".join(lines).encode())
        return self._client.answer(method)


@pytest.fixture
def group(kafka: Broker) -> GroupTopics:
    """A group of which 40 records wait for an hour."""
    made = create_group(fresh_group(kafka.bootstrap, delays=(HOUR,)), 1, also=[Kind.POLICY])
    level = made.names.level(HOUR, "")
    produce(made.bootstrap, made.main, [Out(b"v") for _ in range(3)])
    produce(made.bootstrap, level, [level_copy(made, level, number) for number in range(40)])
    return made


@pytest.fixture
def call(group: GroupTopics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    text = f"group: {group.group}\ntopics: [{group.main}]\nkafka: {{bootstrap.servers: '{group.bootstrap}'}}\n"
    text += "deliver: {url: 'http://127.0.0.1:1/'}\nretry: {levels: [1h], ladder: [1h]}\n"
    (file := tmp_path / "reconsume.yaml").write_text(text)
    (token := tmp_path / "token").write_text("ann: a-secret-long-enough\n")
    settings, registry = load(file, (), {}), CredentialRegistry()
    calls = [
        *settle_calls(settings, lambda: build_policy(settings, "pod-0"), registry),
        *reset_calls(settings, registry),
        *hold_calls(settings, HOLDING, registry),
    ]
    app = build_app(Operation(), lambda: b"", Access(None, LOOPBACK_NAMES, operators=token), calls=calls)
    with serving(app) as port, Client(port) as client:
        made = Calls(client)
        monkeypatch.setattr(clients, "checked_client", made.make)
        yield made


@contextmanager
def owned(group: GroupTopics) -> Iterator[None]:
    """The owner of the records carries each decision out, on a thread. Its heartbeats are news at each look."""
    owner, known = Owner(group), set[str]()

    def follow() -> None:
        write(group, b"{}", b"instance/pod-0")
        for ident in set(decisions_of(group)) - known:
            known.add(ident)
            owner.note(ident, 1)

    with repeated(follow, 0.1):
        yield


def test_a_call_makes_five_clients_at_most(call: Calls, group: GroupTopics) -> None:
    """One that asks, one each that reads the policy topic, progress and waiting records, and one that writes; however
    often it looks."""
    with owned(group):
        settled = call("POST", "/v1/settle", id=f"{group.main}:0:1", how="commit", **WHY)
    assert (settled.status, settled.json["done"]) == (200, True), settled.body
    assert call.made == {"AdminClient": 1, "Consumer": 3, "Producer": 1}
    tried = call("POST", "/v1/settle", waiting={}, how="retry-now", **WHY)
    assert (tried.status, tried.json["records"]) == (202, 40), tried.body
    assert call.made == {"AdminClient": 1, "Consumer": 3, "Producer": 1}
    assert call("GET", f"/v1/settle/{tried.json['decision']}").json["state"] == "open"
    assert call.made == {"AdminClient": 1, "Consumer": 1}
    assert call("DELETE", f"/v1/settle/{tried.json['decision']}").status == 204
    assert call.made == {"AdminClient": 1, "Consumer": 1, "Producer": 1}
    moved = call("POST", "/v1/reset", topic=group.main, to="latest", **WHY)
    assert moved.status == 202, moved.body
    assert call.made == {"AdminClient": 1, "Consumer": 2, "Producer": 1}
    assert call("GET", f"/v1/reset/{moved.json['reset']}").status == 200
    assert call.made == {"AdminClient": 1, "Consumer": 1}
    held = call("POST", "/v1/holds", topic=group.main, **{"for": "1h"}, **WHY)
    assert held.status == 201, held.body
    assert call.made == {"AdminClient": 1, "Consumer": 1, "Producer": 1}


def test_calls_leave_no_thread_and_no_descriptor_behind(call: Calls, group: GroupTopics) -> None:
    """Neither those that are carried out, nor those that are refused by an error where all the clients are."""

    def one_by_one(first: int, last: int) -> None:
        for number in range(first, last):
            ident = f"{group.main}:0:{number}"
            assert call("POST", "/v1/settle", id=ident, how="commit", **WHY).status == 200
            assert call("POST", "/v1/settle", id=f"{group.main}:0:{number + 1000}", how="commit", **WHY).status == 404
            assert call("GET", "/v1/settle/00000000").status == 404
            assert call("GET", "/v1/reset/00000000").status == 404
            assert call("POST", "/v1/reset", topic=group.main, partition=9, to="latest", **WHY).status == 409
            assert call("DELETE", "/v1/holds/00000000").status == 404

    with owned(group):
        one_by_one(0, 3)
        with nothing_left(mib=100):
            one_by_one(3, 18)
        until(lambda: not decisions_of(group), SECONDS, "all are settled")
