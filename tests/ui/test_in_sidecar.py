"""The dashboard in a running sidecar: a real process, called as a person's browser would."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from reconsume.topics.events import State
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import UNUSED, GroupTopics, create_group, fresh_group
from tests.support.kafka.topic_io import produce
from tests.support.kafka.view_topics import event, tell
from tests.support.service.service import Service
from tests.support.sidecar.process import SidecarProcess
from tests.support.sidecar.redrive import dead_letter, lives_once_redriven
from tests.support.sidecar.running_api import Client
from tests.support.view_rows import wall
from tests.ui.scene import TOKEN, Scene
from tests.ui.web import Visitor

SECONDS = 40.0
POD = "billing-0"


class Pod(NamedTuple):
    """A sidecar with a dashboard, its service, and what the dashboard is called by."""

    sidecar: SidecarProcess
    service: Service
    scene: Scene
    port: int


@pytest.fixture(scope="module")
def group(kafka: Broker) -> GroupTopics:
    """A group with two dead letters."""
    group = create_group(fresh_group(kafka.bootstrap), partitions=1, also=UNUSED)
    produce(group.bootstrap, group.dlq, [dead_letter(group, number, reason="bad-sku") for number in range(2)])
    return group


@pytest.fixture(scope="module")
def pod(group: GroupTopics, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    folder = tmp_path_factory.mktemp("pod")
    tokens, audit = folder / "token", folder / "audit.jsonl"
    tokens.write_text(f"{TOKEN}\n")
    operators = {"token_file": str(tokens), "audit_file": str(audit)}
    ui = {"enabled": True, "listen": "127.0.0.1:0", "base_path": "/reconsume"}
    overrides = {"ui": ui, "operators": operators}
    with ExitStack() as stack:
        service = stack.enter_context(Service(folder / "ledger.jsonl", lives_once_redriven))
        sidecar = SidecarProcess(group, service.url, folder, pod=POD, overrides=overrides)
        stack.enter_context(sidecar)
        sidecar.wait_ready()
        line = sidecar.wait_log("the dashboard listens on port ", SECONDS)
        found = re.search(r"listens on port (\d+)", line)
        assert found is not None
        port = int(found[1])
        yield Pod(sidecar, service, Scene(group, f"http://127.0.0.1:{port}", audit), port)


def status_of(port: int, path: str, host: str = "localhost") -> int:
    with Client(port) as client:
        client.send(f"GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
        return client.answer("GET").status


def test_it_has_an_address_of_its_own_and_answers_nothing_else_there(pod: Pod) -> None:
    shown = ("/", "/dlq", "/policy", "/static/style.css")
    # A new group's coordinator may still be loading.
    until(lambda: {status_of(pod.port, path) for path in shown} == {200}, SECONDS, "the pages are shown")
    assert {status_of(pod.port, path) for path in ("/livez", "/metrics", "/status", "/v1/policy")} == {404}
    assert {status_of(pod.sidecar.port, path) for path in ("/", "/dlq", "/sign-in")} == {404}
    assert status_of(pod.port, "/", host="evil.example") == 421


def test_it_is_served_below_its_base_path_too(pod: Pod) -> None:
    until(lambda: status_of(pod.port, "/reconsume/policy") == 200, SECONDS, "the page is shown")
    assert 'href="/reconsume/dlq"' in Visitor(pod.scene).get("/policy").body.decode()


def test_a_dead_letter_is_brought_back_to_the_service_and_written_down(pod: Pod, group: GroupTopics) -> None:
    visitor = Visitor(pod.scene)
    assert visitor.sign_in().status == 303
    plan = visitor.post("/dlq/plan", {"csrf": visitor.csrf(), "reason": "bad-sku"})
    planned = re.search(r'name="plan" value="([^"]+)"', plan.body.decode())
    assert planned is not None
    assert visitor.post("/dlq/redrive", {"csrf": visitor.csrf(), "plan": planned[1]}).status == 303
    wanted = {f"{group.main}:0:{number}" for number in range(2)}
    until(lambda: wanted <= pod.service.ledger.taken(), SECONDS, "the service has taken both")
    assert '"action": "redrive", "who": "alice"' in pod.scene.audit.read_text()


def test_its_first_page_is_made_from_the_events_without_a_job(pod: Pod, group: GroupTopics) -> None:
    visitor = Visitor(pod.scene)

    def first_page() -> str:
        return visitor.get("/part/group").body.decode()

    until(lambda: "from the events" in first_page(), SECONDS, "the group is shown, and from what")
    tell(group.bootstrap, [event(group.group, number) for number in range(3)])
    until(lambda: visitor.get("/records").body.decode().count("orders:0:") >= 3, SECONDS, "what waits is shown")
    assert "from the events" in visitor.get("/records").body.decode()
    assert "from the events" in visitor.get("/record?id=orders:0:1").body.decode()


def test_a_group_that_is_a_minute_old_shows_what_waits_what_died_and_who_runs(pod: Pod, group: GroupTopics) -> None:
    """Given a level without any committed offset, then it is shown what waits there and when it is due; and of each
    reason of dead letters how many there are, and the newest text."""
    visitor, at = Visitor(pod.scene), wall()
    assert visitor.sign_in().status == 303
    dead = [(10, "bad-sku", "A-1 is not sold"), (11, "bad-sku", "A-2 is not sold"), (12, "no-price", "")]
    told = [
        event(group.group, number, State.DLQ, level=None, due=0, reason=reason, at=at - 1_000 + number, text=text)
        for number, reason, text in dead
    ]
    tell(group.bootstrap, [*told, event(group.group, 20, level="30m", due=at + 1_800_000)])

    def first_page() -> str:
        return visitor.get("/part/group").body.decode()

    until(lambda: "no-price" in first_page() and ">30m<" in first_page(), SECONDS, "the events are folded")
    page = first_page()
    (level,) = [one for one in re.findall(r"<tr>(.*?)</tr>", page) if ">30m</a>" in one]
    assert '<td class="number">1</td>' in level
    assert re.search(r"due in (30m|29m\d+s)<", level)
    (row,) = [one for one in re.findall(r"<tr>(.*?)</tr>", page) if "/dlq?reason=bad-sku" in one]
    assert ("A-2 is not sold" in row, "A-1" in row, ">2<" in row) == (True, False, True)
    assert POD in visitor.get("/part/alarms?fleet=1").body.decode()


def test_it_shows_the_instance_that_serves_it_with_its_pace_and_lag(pod: Pod) -> None:
    def row() -> list[str]:
        page = Visitor(pod.scene).get("/part/instances").body.decode()
        rows = [one for one in re.findall(r"<tr>(.*?)</tr>", page) if POD in one]
        return re.findall(r"<td[^>]*>(.*?)</td>", rows[0]) if rows else []

    cells = until(lambda: found if len(found := row()) > 3 and found[3] else [], SECONDS, "its lag is known")
    assert ("running" in cells[1], ">open<" in cells[2]) == (True, True)
    assert re.search(r"\b0 of [1-9]\d* out", cells[2]), "of as many as the slow start lets out by now"


def test_it_ends_with_the_sidecar(pod: Pod) -> None:
    assert pod.sidecar.stop().code == 0
    with pytest.raises(ConnectionRefusedError), socket.socket() as caller:
        caller.connect(("127.0.0.1", pod.port))
