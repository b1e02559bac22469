"""What docs/once.md shows works as it stands: the service, and the SQL for SQLite; PostgreSQL has its own file."""

from __future__ import annotations

import http.client
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.docs.once_docs import ROOT, blocks, changed, statements
from tests.support.deadline import until
from tests.support.service.service import listens

SERVICE = next(block for block in blocks("Python", "python") if "serve_forever" in block)


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """The documented service, running; only its port is another."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = int(free.getsockname()[1])
    program = tmp_path / "service.py"
    program.write_text(changed(SERVICE, "8080", str(number)))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, program], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL
    ) as service:
        try:
            until(lambda: service.poll() is not None or listens(number), 20, "the documented service listens")
            assert service.poll() is None, "the documented service has ended"
            yield number
        finally:
            service.kill()


def sell(port: int, key: str) -> int:
    """The status of one delivery of an order of two pieces."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as client:
        client.request("POST", "/events", b"2", {"Idempotency-Key": key})
        return client.getresponse().status


def pieces(database: Path) -> int:
    with closing(sqlite3.connect(database)) as connection:
        return int(connection.execute("SELECT pieces FROM stock").fetchone()[0])


def test_the_documented_service_sells_once_however_often_it_is_asked(port: int, tmp_path: Path) -> None:
    assert [sell(port, "billing/orders:3:1024/0") for _ in range(4)] == [200] * 4
    assert pieces(tmp_path / "shop.db") == 998
    assert sell(port, "billing/orders:3:1024/1") == 200
    assert sell(port, "billing/orders:3:1025/0") == 200
    assert pieces(tmp_path / "shop.db") == 994


def test_the_documented_service_answers_500_and_does_nothing_for_a_malformed_key(port: int, tmp_path: Path) -> None:
    assert sell(port, "billing/orders:3:1024") == 500
    assert pieces(tmp_path / "shop.db") == 1000


def test_the_documented_sql_for_sqlite_claims_a_key_once() -> None:
    (steps,) = blocks("SQLite", "sql")
    begin, insert, effect, commit = statements(steps)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.executescript(blocks("PostgreSQL", "sql")[0])  # "the same table"
        connection.execute("CREATE TABLE stock AS SELECT 1000 AS pieces")
        inserted = []
        for _ in range(2):
            connection.execute(begin)
            inserted.append(connection.execute(insert).rowcount)
            if inserted[-1] == 1:
                connection.execute(effect)
            connection.execute(commit)
        assert inserted == [1, 0]
        assert connection.execute("SELECT pieces FROM stock").fetchone() == (998,)
        connection.executescript(blocks("How long rows are kept", "sql")[0])
