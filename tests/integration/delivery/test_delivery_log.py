"""With `log.level: debug` each delivery has a line: id, times, path, status and ms."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from msgspec.structs import replace

from reconsume.sidecar.observability.repeats import Repeats
from tests.integration.delivery.batch_client import Feeder
from tests.support.service import stub_service as stub
from tests.support.service.stub_service import StubService
from tests.support.sidecar.push_client import SHORT_MS, a_push, a_record, deliver, run

LOGGER = "reconsume.deliveries"


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[Any, ...]]:
    """Id, times, path and status of each line."""
    lines: list[Any] = [line for line in caplog.records if line.name == LOGGER]
    assert all(line.event == "delivery" and 0 <= line.ms < 5_000 for line in lines)
    return [(line.id, line.times, line.path, line.status) for line in lines]


def test_each_record_has_a_line_with_the_status_of_its_response_and_none_if_none_came(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    with StubService([stub.ok, stub.ok, stub.answer(500), stub.hang]) as service:

        async def work() -> None:
            push = a_push(service.url, timeout_ms=SHORT_MS)
            for record in (a_record(1), a_record(2), a_record(3), replace(a_record(4), again=2)):
                await deliver(push, record)
            push.close()

        run(work)
    ids = [a_record(offset).id for offset in range(1, 5)]
    assert told(caplog) == [
        (ids[0], 0, "/events", 200),
        (ids[1], 0, "/events", 200),
        (ids[2], 0, "/events", 500),
        (ids[3], 2, "/events", None),
    ]


def test_each_record_of_a_batch_has_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    with StubService([stub.ok]) as service:

        async def work() -> None:
            feeder = Feeder(service.url)
            feeder.feed(a_record(1), a_record(2), a_record(3))
            await feeder.answered(3)
            feeder.batches.close()

        run(work)
    assert told(caplog) == [(a_record(offset).id, 0, "/events", 200) for offset in (1, 2, 3)]


def test_without_the_level_there_is_none(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    with StubService([stub.ok]) as service:

        async def work() -> None:
            push = a_push(service.url)
            await deliver(push, a_record(1))
            push.close()

        run(work)
    assert told(caplog) == []


def test_none_of_them_is_summed_up() -> None:
    repeats = Repeats()
    line = logging.makeLogRecord({"name": LOGGER, "levelno": logging.DEBUG, "event": "delivery", "id": "orders:0:1"})
    assert all(repeats.admit(line, 0.0) for _ in range(1_000))
