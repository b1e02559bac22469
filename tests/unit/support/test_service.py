"""The tests' service goes down in order: a request that it never read would be an attempt that it never saw."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.support.deadline import until
from tests.support.service.behaviours import Answer
from tests.support.service.service import Service, free_port, listens

CLIENTS = 4
SECONDS = 20.0
HEADERS = {
    "Reconsume-Id": "orders:0:0",
    "Reconsume-Times": "0",
    "Reconsume-Redrives": "0",
    "Idempotency-Key": "billing/orders:0:0/0",
}


def test_no_answer_leaves_a_service_that_is_about_to_close_its_port(tmp_path: Path) -> None:
    """Who has one would call anew, into a backlog that is thrown away."""
    done = threading.Event()
    with (
        ThreadPoolExecutor(CLIENTS) as pool,
        Service(tmp_path / "ledger", lambda _request: Answer(until=done)) as service,
    ):
        clients = [pool.submit(call_until_refused, service.port) for _ in range(CLIENTS - 1)]
        until(lambda: service.in_flight == CLIENTS - 1, SECONDS, "all but one have called")
        with pytest.raises(TimeoutError, match="only 3"):
            service.retire(CLIENTS, 0)
        done.set()
        with pytest.raises(TimeoutError, match="only 3"):
            service.retire(CLIENTS, 0.2)
        assert [delivery.answer for delivery in service.ledger.deliveries()] == [""] * (CLIENTS - 1)
        clients.append(pool.submit(call_until_refused, service.port))
        service.retire(CLIENTS)
        assert [client.result(SECONDS) for client in clients] == [1] * CLIENTS


def call_until_refused(port: int) -> int:
    """Call again and again until the port is closed, and return how often there was an answer. Raises if a call has
    none."""
    answers = 0
    while True:
        with closing(HTTPConnection("127.0.0.1", port, timeout=SECONDS)) as connection:
            try:
                connection.connect()
            except ConnectionRefusedError:
                return answers
            connection.request("POST", "/events", headers=HEADERS)
            assert connection.getresponse().status == 200
        answers += 1


def test_the_port_of_a_service_that_is_down_refuses_and_is_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the service of another test would answer in its place."""
    with Service(tmp_path / "ledger", up=False) as service:
        monkeypatch.setattr(random, "sample", lambda *_: [service.port])
        assert not listens(service.port)
        with pytest.raises(RuntimeError, match="no free port"):
            free_port()
        service.up()
        service.down()
        assert not listens(service.port)
        with pytest.raises(RuntimeError, match="no free port"):
            free_port()
    assert free_port() == service.port
