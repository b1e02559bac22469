"""Topics that are not there: what needs them waits and is loud, everything else flows, and no restart is needed."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics, create_group, create_specs, specs_of
from tests.support.kafka.topic_io import SECONDS, Out, dump, produce
from tests.support.proof.checker import check
from tests.support.proof.evidence import collect
from tests.support.rings import inner
from tests.support.service.behaviours import FAIL, OK, by_name, verdict
from tests.support.sidecar.process import SidecarProcess

SCRIPT = by_name({"flaky": (FAIL, OK), "far": (verdict("retry; level=2"), OK), "dead": (verdict("dead-letter"),)})
GOOD = 40


def create_missing(group: GroupTopics, topic: str) -> None:
    """What an operator does who was told that a topic is missing."""
    create_specs(group.bootstrap, [spec for spec in specs_of(group) if spec.name == topic])


def states_of(sidecar: SidecarProcess) -> list[str]:
    """The state of each partition, as `/status` shows it."""
    return [partition["refusal"] for partition in sidecar.status()["partitions"]]


@pytest.mark.parametrize("missing", inner("level", ["level", "dlq"]))
def test_a_missing_topic_holds_the_partition_that_needs_it_alone_until_it_is_created(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, missing: str
) -> None:
    group = new_group()
    topic = group.names.level(2_000, group.main) if missing == "level" else group.dlq
    needs = b"far:" if missing == "level" else b"dead:"
    create_group(group, leave_out=[topic])
    service = start_service(SCRIPT)
    sidecar = start_sidecar(group, service.url)
    pid = sidecar.pid
    produce(group.bootstrap, group.main, [Out(needs, partition=0)])
    sidecar.wait_log(f"records wait for topics that are missing, or not for this user to see: {topic}")
    others = [Out(b"good:%d" % number, partition=1) for number in range(GOOD)]
    produce(group.bootstrap, group.main, [*others, Out(b"flaky:", b"k", partition=1)])
    sidecar.until(lambda: len(service.ledger.taken()) == GOOD + 1, 10, "the other partition flows, retries too")
    assert f"topic {topic} is missing, or not for this user to see" in states_of(sidecar)
    assert sidecar.metric('reconsume_transactions_total{result="refused"}') > 0
    later = [Out(b"good:later %d" % number, partition=0) for number in range(GOOD)]
    produce(group.bootstrap, group.main, later)
    assert topic not in AdminClient({"bootstrap.servers": group.bootstrap}).list_topics(timeout=SECONDS).topics

    create_missing(group, topic)
    total = 2 * GOOD + (2 if missing == "level" else 1)
    sidecar.until(lambda: len(service.ledger.taken()) == total, 15, "the stopped partition goes on")
    sidecar.until(lambda: len(dump(group.bootstrap, topic)) == 1, 10, "the refused record is where it had to go")
    assert sidecar.pid == pid
    assert sidecar.stop().code == 0
    report = check(collect(group, service.ledger))
    assert (report.duplicates, report.waiting) == (0, 0), report
    assert report.dead_lettered == (1 if missing == "dlq" else 0)


def test_a_main_topic_that_is_missing_at_the_start_is_named_and_consumed_once_it_is_created(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = new_group(mains=2)
    there, missing = group.mains
    create_group(group, leave_out=[missing])
    service = start_service(SCRIPT)
    sidecar = start_sidecar(group, service.url)
    produce(group.bootstrap, there, [b"good:%d" % number for number in range(GOOD)])
    sidecar.until(lambda: len(service.ledger.taken()) == GOOD, 15, "the topic that is there flows")
    assert missing in sidecar.wait_log("topics are missing, or not for this user to see: ")
    assert sidecar.status()["missing_topics"] == [missing]
    create_missing(group, missing)
    produce(group.bootstrap, missing, [*(b"good:%d" % number for number in range(GOOD)), b"flaky:"])
    sidecar.until(lambda: len(service.ledger.taken()) == 2 * GOOD + 1, 20, "the new topic flows, its retries too")
    assert sidecar.stop().code == 0
    report = check(collect(group, service.ledger))
    assert (report.committed, report.duplicates, report.retries) == (2 * GOOD + 1, 0, 1)
