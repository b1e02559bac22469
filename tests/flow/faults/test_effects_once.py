"""A producer sends some orders twice, the sidecar is killed, answers are lost, dead letters are redriven: in PostgreSQL
each order has its effect once (contract 1.11). The table has no unique key: nothing but the helper prevents a second.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from reconsume.once import create_table, delivery_key, once
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import create_group, fresh_group
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.postgres import installed_postgres
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import CLOSE, OK, Behaviour, Request, verdict
from tests.support.service.service import Service
from tests.support.sidecar.process import SidecarProcess
from tests.support.sidecar.redrive import dlq
from tests.support.sidecar.scene import KAFKA

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
KILLS = 6
SECONDS = 60.0
KEYED = {"deliver": {"idempotency": {"from": "json", "pointer": "/order"}}, "kafka": KAFKA}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """One server for this file, by its connection string."""
    with installed_postgres() as running:
        yield running


class Shop:
    """The script of a service that books each order in its database.

    Some orders are refused until they are redriven, some only after they were booked, and some answers are lost behind
    the commit. `dice` decides by order and attempt.
    """

    def __init__(self, connection: Any, seed: int) -> None:
        self.connection, self.seed, self.repeated = connection, seed, 0

    def __call__(self, request: Request) -> Behaviour:
        order = json.loads(request.value or b"")["order"]
        redriven = request.headers["reconsume-redrives"] != "0"
        if chance(self.seed, order, "refused") < 0.01 and not redriven:
            return verdict("dead-letter; reason=refused")
        with once(self.connection, delivery_key(request.headers)) as first:
            if first:
                self.connection.execute("INSERT INTO booked VALUES (%s)", (order,))
            else:
                self.repeated += 1
        if chance(self.seed, order, "refused late") < 0.01 and not redriven:
            return verdict("dead-letter; reason=refused-late")
        lost = chance(self.seed, order, request.headers["reconsume-times"]) < 0.02
        return CLOSE if lost and not request.seen else OK


def chance(seed: int, *what: object) -> float:
    """A number from 0 to 1 that is the same for the same things."""
    return random.Random(f"{seed}/{what}").random()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("orders", [400, pytest.param(10_000, marks=pytest.mark.long)])
def test_each_order_has_its_effect_once_whatever_happens(
    kafka: Broker, server: str, tmp_path: Path, orders: int, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = random.randrange(1_000_000)
    group = create_group(fresh_group(kafka.bootstrap), partitions=4)
    with ExitStack() as stack:
        connection = stack.enter_context(closing(psycopg.connect(server)))
        connection.execute("DROP TABLE IF EXISTS reconsume_once, booked")
        create_table(connection)
        connection.execute("CREATE TABLE booked (order_id VARCHAR(40) NOT NULL)")
        connection.commit()
        shop = Shop(connection, seed)
        service = stack.enter_context(Service(tmp_path / "ledger.jsonl", shop))
        sidecar = stack.enter_context(SidecarProcess(group, service.url, tmp_path / "pod", overrides=KEYED))
        names = [f"order {number}" for number in range(orders)]
        twice = [name for name in names if chance(seed, name, "refused") < 0.01 or chance(seed, name, "twice") < 0.01]
        produce(group.bootstrap, group.main, [Out(json.dumps({"order": name}).encode()) for name in names])
        produce(group.bootstrap, group.main, [Out(json.dumps({"order": name}).encode()) for name in twice])
        step = orders // (KILLS + 1)
        for number in range(1, KILLS + 1):
            until(lambda least=number * step: len(service.ledger.deliveries()) > least, SECONDS, f"seed {seed}")
            sidecar.kill()
            sidecar.start()
        await_quiet(group, SECONDS)
        letters = len(dump(group.bootstrap, group.dlq))
        assert letters >= 2 * sum(chance(seed, name, "refused") < 0.01 for name in names)
        code, _, told = dlq(group, tmp_path / "dlq", "redrive", "--yes")
        assert code == 0, told
        await_quiet(group, SECONDS)
        sidecar.stop()
        booked = [row[0] for row in connection.execute("SELECT order_id FROM booked").fetchall()]
        connection.commit()
    with capsys.disabled():
        print(  # noqa: T201 - the numbers are what it is for
            f"\n  seed {seed}: {orders} orders, {len(twice)} sent twice, {KILLS} kills, {letters} redriven, "
            f"{len(service.ledger.deliveries())} deliveries, {shop.repeated} of them without a second effect",
            end=" ",
        )
    assert sorted(booked) == sorted(names), f"seed {seed}"
