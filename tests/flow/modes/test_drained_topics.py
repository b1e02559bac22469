"""Retry topics of another system, drained into their main topic on a real broker (contract 6.14)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from reconsume.topics import retry_headers as wire
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.proof.ledger import Delivery
from tests.support.service import stub_service as stub
from tests.support.service.behaviours import OK, Answer, Behaviour, Request
from tests.support.service.stub_service import StubService
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.config import Config
from tests.support.sidecar.redrive import dlq

SECONDS = 60.0
SPRING = (("retry_topic-attempts", (3).to_bytes(4)),)
"""The header of a record that Spring has delivered twice."""
RETRY: Mapping[str, Any] = {
    "max_reconsume_times": 3,
    "ladder": ["1s"],
    "understand": ["spring"],
}
RETRY_LATER: Mapping[str, Any] = {
    "ladder": ["5s"],
    "rules": [{"name": "refused", "reasons": ["http-422"], "dead_letter": True}],
}


def by_value(request: Request) -> Behaviour:
    """What `fails` is refused until it is redriven; `twice` fails once here; `refused` has a rule of its own."""
    value = request.value or b""
    if value == b"refused":
        return Answer(422)
    if value == b"fails" and request.headers["reconsume-redrives"] == "0":
        return Answer(500)
    return Answer(500) if value == b"twice" and request.times == 0 else OK


def drained(group: GroupTopics, **own: object) -> list[Mapping[str, object]]:
    """The entries of a main topic with settings of its own, and of a retry topic that is drained into it."""
    main, old = group.mains
    return [{"name": main, **own}, {"name": old, "drains": main}]


def test_records_of_a_drained_topic_have_topic_path_and_rules_of_its_main_topic(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, folder: Path
) -> None:
    """Given records that wait in a retry topic of Spring: first deliveries, retries, dead letters and redrives."""
    group = create_group(new_group(2), partitions=1)
    main, old = group.mains
    service = start_service(by_value)
    rules = [{"name": "refused", "topics": [main], "reasons": ["http-422"], "dead_letter": True}]
    sidecar = start_sidecar(
        group, service.url, overrides={"topics": drained(group, path="/orders"), "retry": {**RETRY, "rules": rules}}
    )
    values = (b"good", b"twice", b"fails", b"refused")
    produce(group.bootstrap, old, [Out(value, b"k", SPRING if value == b"fails" else (), 0) for value in values])
    produce(group.bootstrap, main, [Out(b"new", b"k", (), 0)])
    sidecar.until(lambda: len(service.ledger.taken()) == 3, SECONDS, "what can be taken is taken")
    sidecar.until(lambda: len(dump(group.bootstrap, group.dlq)) == 2, SECONDS, "two are dead letters")

    seen = service.ledger.deliveries()
    assert {(one.value, one.times) for one in seen} == {
        (b"new", 0), (b"good", 0), (b"twice", 0), (b"twice", 1), (b"fails", 2), (b"fails", 3), (b"refused", 0),
    }  # fmt: skip
    assert {one.path for one in seen} == {"/orders"}
    assert {named(one, "reconsume-topic") for one in seen} == {main}
    places = {(one.id, named(one, "reconsume-partition"), named(one, "reconsume-offset")) for one in seen}
    assert places == {(f"{main}:0:0", "0", "0"), *((f"{old}:0:{at}", "0", str(at)) for at in range(len(values)))}

    letters = {row.value: dict(row.headers) for row in dump(group.bootstrap, group.dlq)}
    named_in = (wire.REAL_TOPIC, wire.ORIGIN_MESSAGE_ID, wire.RETRY_DRAINED)
    assert {(value, *(letter[name] for name in named_in)) for value, letter in letters.items()} == {
        (b"fails", main.encode(), f"{old}:0:2".encode(), old.encode()),
        (b"refused", main.encode(), f"{old}:0:3".encode(), old.encode()),
    }
    events = [json.loads(row.value or b"{}") for row in dump(group.bootstrap, group.names.events)]
    assert {event["topic"] for event in events} == {main}
    assert sidecar.metric(f'reconsume_dead_lettered_total{{reason="http-422",topic="{main}"}}') == 1
    counted = [line for line in sidecar.metrics().splitlines() if line.startswith("reconsume_deliveries_total")]
    assert [line for line in counted if old in line and not line.endswith(" 0.0")] == []

    code, _, told = dlq(group, folder, "redrive", "--id", f"{old}:0:2", "--yes")
    assert code == 0, told
    sidecar.until(lambda: len(service.ledger.taken()) == 4, SECONDS, "the redriven one is taken")
    assert named(service.ledger.deliveries()[-1], "reconsume-topic") == main
    found = reconsume("audit", "-c", sidecar.files[0])
    assert found.exit_code == 0, found.stdout + found.stderr
    assert sidecar.stop().code == 0


def test_the_entry_goes_with_the_old_topic_while_its_records_wait_and_lie_in_the_dlq(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, folder: Path
) -> None:
    """Given a sidecar without the entry: it takes what the one before it has left, and a redriven dead letter."""
    group = create_group(new_group(2), partitions=1)
    main, old = group.mains
    failing = start_service(lambda request: Answer(422 if request.value == b"refused" else 500))
    before = start_sidecar(group, failing.url, overrides={"topics": drained(group), "retry": RETRY_LATER})
    produce(group.bootstrap, old, [b"waits", b"refused"])
    level = group.names.level(5_000, main)
    before.until(lambda: [row.value for row in dump(group.bootstrap, level)] == [b"waits"], SECONDS, "one waits")
    before.until(
        lambda: [row.value for row in dump(group.bootstrap, group.dlq)] == [b"refused"], SECONDS, "one is dead"
    )
    assert before.stop().code == 0

    service = start_service(lambda _request: OK)
    after = start_sidecar(group, service.url, overrides={"topics": [main], "retry": RETRY_LATER})
    assert dlq(group, folder, "redrive", "--id", f"{old}:0:1", "--yes")[0] == 0
    after.until(lambda: len(service.ledger.taken()) == 2, SECONDS, "both are taken")
    seen = {(one.value, one.id, named(one, "reconsume-topic")) for one in service.ledger.deliveries()}
    assert seen == {(b"waits", f"{old}:0:0", main), (b"refused", f"{old}:0:1", main)}
    assert len(dump(group.bootstrap, group.dlq)) == 1
    assert after.stop().code == 0


def named(delivery: Delivery, header: str) -> str:
    """A header of a request."""
    return dict(delivery.headers)[header]


def test_a_drained_topic_shares_the_slots_of_its_main_topic(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """With `concurrency: 1` no two requests of both topics overlap."""
    group = create_group(new_group(2), partitions=1)
    service = start_service(lambda _request: Answer(after=0.05))
    for topic in group.mains:
        produce(group.bootstrap, topic, [b"order-%d" % number for number in range(10)])
    sidecar = start_sidecar(group, service.url, overrides={"topics": drained(group, concurrency=1)})
    sidecar.until(lambda: len(service.ledger.taken()) == 20, SECONDS, "all are taken")
    spans = sorted((one.received, one.answered or 0) for one in service.ledger.deliveries())
    assert all(ended <= begun + 1 for (_, ended), (begun, _) in pairwise(spans)), spans
    assert {one.id.partition(":")[0] for one in service.ledger.deliveries()} == set(group.mains)


@pytest.mark.parametrize("form", [{"envelope": True}, {"batch": {"max_size": 8}}], ids=["envelope", "batch"])
def test_a_body_names_the_main_topic_and_where_the_record_is(
    new_group: FreshGroup, start_sidecar: StartSidecar, form: Config
) -> None:
    group = create_group(new_group(2), partitions=1)
    main, old = group.mains
    produce(group.bootstrap, old, [b"order"])
    with StubService([stub.ok]) as service:
        sidecar = start_sidecar(group, service.url, overrides={"topics": drained(group), "deliver": form})
        until(lambda: service.requests, SECONDS, "a request has come")
        assert sidecar.stop().code == 0
    (record,) = json.loads(service.requests[0].partition(b"\r\n\r\n")[2])["records"]
    assert (record["topic"], record["id"], record["partition"], record["offset"]) == (main, f"{old}:0:0", 0, 0)
