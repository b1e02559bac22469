"""A sidecar beside 6 000 partitions of others: it starts, retries, and stays small."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.deadline import until
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import FAIL, OK, by_name

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_500)]
TOPICS, PARTITIONS, AT_ONCE = 300, 20, 100
"""A node makes 30 to 300 partitions a second, and each is an open file: 60 000 would take half an hour, and more files
than most machines allow. tests/unit/kafka/test_large_cluster.py has 200 000, without a broker."""
MADE_WITHIN = 300.0
MOST_MIB = 256
RECORDS = 200


def fill(bootstrap: str) -> None:
    """Create the topics of others."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    names = [f"others-{number}" for number in range(TOPICS)]
    for begin in range(0, TOPICS, AT_ONCE):
        news = [NewTopic(name, PARTITIONS, 1) for name in names[begin : begin + AT_ONCE]]
        for future in admin.create_topics(news, operation_timeout=120, request_timeout=120).values():
            future.result(150)
    # The controller has noted them; until the node has made them it does not list them, and makes nothing else.
    until(lambda: set(names) <= admin.list_topics(timeout=60).topics.keys(), MADE_WITHIN, "all are there", step=1.0)


def test_a_sidecar_in_a_large_cluster_retries_names_nothing_missing_and_stays_small(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group())
    fill(group.bootstrap)
    service = start_service(by_name({"flaky": (FAIL, OK)}))
    sidecar = start_sidecar(group, service.url)
    produce(group.bootstrap, group.main, [Out(b"flaky:%d" % number) for number in range(RECORDS)])
    await_quiet(group, 60)
    assert sidecar.status()["missing_topics"] == []
    log = sidecar.log()
    assert "topics are missing" not in log
    assert "copies-wait" not in log
    lines = Path(f"/proc/{sidecar.pid}/status").read_text().splitlines()
    [peak] = [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
    assert peak / 1024 < MOST_MIB
