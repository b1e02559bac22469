"""Large copies that Kafka refuses: their partition stops, loudly, and every other partition goes on beside them."""

from __future__ import annotations

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.flow.faults.test_missing_topics import states_of
from tests.support.kafka.dense import dense
from tests.support.kafka.group_topics import create_group, set_config
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.proof.checker import check
from tests.support.proof.evidence import collect
from tests.support.service.behaviours import by_name, verdict

LARGE, MANY, GOOD = 700_000, 13, 160


def test_refused_copies_of_nine_megabytes_stop_their_partition_and_no_other(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Given a lane of 4 MiB, whose dead-letter topic takes only small records until an operator has repaired it."""
    group = new_group()
    create_group(group, config={group.dlq: {"max.message.bytes": "100000"}})
    service = start_service(by_name({"dead": (verdict("dead-letter"),)}))
    sidecar = start_sidecar(group, service.url, overrides={"deliver": {"buffer_memory": "4MiB"}})
    produce(group.bootstrap, group.main, [Out(b"dead:%d " % n + dense(LARGE, n), partition=0) for n in range(MANY)])
    sidecar.wait_log("because Kafka refuses copies of its records")
    produce(group.bootstrap, group.main, [Out(b"good:%d" % number, partition=1) for number in range(GOOD)])

    def good() -> int:
        return len(
            [delivery for delivery in service.ledger.deliveries() if (delivery.value or b"").startswith(b"good")]
        )

    sidecar.until(lambda: good() == GOOD, 15, "all records of the other partition are delivered")
    assert "its refused copies take too much memory" in states_of(sidecar)
    assert len(dump(group.bootstrap, group.dlq)) == 0
    set_config(group.bootstrap, group.dlq, "max.message.bytes", "1000000")
    sidecar.until(lambda: len(dump(group.bootstrap, group.dlq)) == MANY, 30, "what was refused and what waited is dead")
    assert sidecar.stop().code == 0
    report = check(collect(group, service.ledger))
    assert (report.committed, report.dead_lettered, report.duplicates) == (GOOD, MANY, 0), report
