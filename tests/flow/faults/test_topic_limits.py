"""Whatever the main topic took can wait: limits of topics and quotas of brokers are no fault of a record."""

from __future__ import annotations

import json
from random import Random

import pytest

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.quotas import set_producer_rate
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.service.behaviours import FAIL, by_name, verdict

COUNT = 300


def test_a_record_that_fits_packed_alone_waits_and_dies_packed(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Given 3 MB of JSON that its producer packed, where the topics take 1 MB."""
    group = create_group(new_group(), partitions=1)
    value = b"large:" + json.dumps([{"order": number, "state": "new"} for number in range(100_000)]).encode()
    assert len(value) > 3_000_000
    produce(group.bootstrap, group.main, [Out(value)], {"compression.type": "zstd", "message.max.bytes": 10_000_000})
    service = start_service(by_name({"large": (FAIL,)}))
    sidecar = start_sidecar(group, service.url, overrides={"retry": {"max_reconsume_times": 1, "ladder": ["1s"]}})
    sidecar.until(lambda: len(dump(group.bootstrap, group.dlq)) == 1, 30, "it is dead after its retry")
    [letter] = dump(group.bootstrap, group.dlq)
    assert letter.value == value
    assert sidecar.metric("reconsume_refused_records") == 0
    assert "copies-compressed" in sidecar.log()


@pytest.mark.long
def test_a_burst_of_failures_of_a_topic_with_a_low_limit_waits_after_few_transactions(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """The client gathers 128 KiB into a batch, and the topics take 36 KB: no record is to blame."""
    group = new_group()
    low = {group.main: {"max.message.bytes": "20000"}, group.dlq: {"max.message.bytes": "36384"}}
    create_group(group, partitions=1, config=low)
    random = Random(1)
    bad = [Out(b"bad:" + random.randbytes(1_500), partition=0) for _ in range(COUNT)]
    produce(group.bootstrap, group.main, bad, {"batch.size": 8_000})
    service = start_service(by_name({"bad": (verdict("dead-letter"),)}))
    sidecar = start_sidecar(group, service.url)
    sidecar.until(lambda: len(dump(group.bootstrap, group.dlq)) == COUNT, 30, "all are dead")
    assert sidecar.metric('reconsume_transactions_total{result="aborted"}') < 12
    assert sidecar.metric("reconsume_refused_records") == 0


@pytest.mark.long
def test_a_quota_makes_copies_slow_and_refuses_none(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Given a broker that lets the sidecar write 20 kB a second, until it is lifted."""
    group = create_group(new_group(), partitions=1)
    random = Random(1)
    service = start_service(by_name({"bad": (verdict("dead-letter"),)}))
    sidecar = start_sidecar(group, service.url)
    client = f"reconsume-{group.group}-{sidecar.status()['instance']}"
    set_producer_rate(group.bootstrap, client, 20_000)
    produce(group.bootstrap, group.main, [Out(b"bad:" + random.randbytes(1_000), partition=0) for _ in range(COUNT)])

    def dead() -> int:
        return len(dump(group.bootstrap, group.dlq))

    sidecar.until(lambda: dead() >= 40, 60, "some are dead")
    assert sidecar.metric("reconsume_refused_records") == 0
    assert [part for part in sidecar.status()["partitions"] if part["refused_copies"] or part["refusal"]] == []
    set_producer_rate(group.bootstrap, client, None)
    sidecar.until(lambda: dead() == COUNT, 30, "all are dead")
