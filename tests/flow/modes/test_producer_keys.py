"""`deliver.idempotency` on a real broker: in each form of delivery the service gets the text of the producer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.deadline import until
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.service.behaviours import FAIL, OK, Behaviour, Request

KEYS = {"idempotency": {"from": "header", "name": "order-id"}}
RECORDS = [
    Out(b"first", b"k", (("order-id", b"A-17"),), 0),
    Out(b"again", b"k", (("order-id", b"A-17"),), 0),
    Out(b"without", b"k", (), 0),
]


def fails_once(request: Request) -> Behaviour:
    """A service that fails each first attempt, so that its retry is seen too."""
    return OK if request.times else FAIL


@pytest.mark.parametrize("form", [{}, {"envelope": True}, {"batch": {"max_size": 8}}])
def test_the_service_gets_the_text_at_each_attempt(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, form: dict[str, Any]
) -> None:
    group = create_group(new_group(), partitions=1)
    service = start_service(fails_once)
    start_sidecar(group, service.url, overrides={"deliver": {**KEYS, **form}})
    produce(group.bootstrap, group.main, RECORDS)
    until(lambda: len(service.ledger.deliveries()) >= 6, 60, "each record is delivered and retried")
    keys = {(one.value, one.times): one.idempotency_key for one in service.ledger.deliveries()}
    plain = f"{group.group}/{group.main}:0:2/0"
    assert keys == {
        **{(value, times): "A-17" for value in (b"first", b"again") for times in (0, 1)},
        **{(b"without", times): plain for times in (0, 1)},
    }


def test_a_service_that_pulls_gets_it_too(new_group: FreshGroup, start_sidecar: StartSidecar) -> None:
    group = create_group(new_group(), partitions=1)
    sidecar = start_sidecar(group, "", overrides={"deliver": {"mode": "pull", **KEYS}}, wait=False)
    produce(group.bootstrap, group.main, RECORDS)
    received: list[dict[str, Any]] = []

    def receive() -> bool:
        answer = sidecar.request("POST", "/v1/receive", token=False, body={"wait": "1s", "invisible": "1m"})
        received.extend(answer.json["records"] if answer.status == 200 else ())
        return len(received) >= len(RECORDS)

    sidecar.wait_ready()
    until(receive, 60, "all records are received")
    assert [one["idempotency_key"] for one in received] == ["A-17", "A-17", f"{group.group}/{group.main}:0:2/0"]
