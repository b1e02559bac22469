"""What the doctor says of holds: each with its author, and those that may outlive what they hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from reconsume.sidecar.doctor.checks.control_log import holds
from reconsume.sidecar.doctor.findings import Finding, Status
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.topics.acls import GroupShape
from reconsume.topics.hold_record import HoldHeard, HoldRecord
from reconsume.topics.names import Names
from reconsume.topics.policy_record import InstanceHeard, ObeysTold, SubscriptionRecord
from tests.support.control_log import state_of

HOUR = 3_600_000
GROUP = GroupShape(Names("billing"), ("orders", "refunds"), (10_000,))
KEPT = {"orders": {"retention.ms": "7200000"}, "refunds": {"retention.ms": "-1"}}


class Configured:
    """A cluster that tells the settings of topics."""

    def settings(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        return {name: KEPT[name] for name in names}


def found(*records: HoldRecord) -> list[Finding]:
    there = (HoldHeard(f"h{number}", record) for number, record in enumerate(records))
    return holds(cast(Cluster, Configured()), state_of(*there, now_ms=HOUR), GROUP, HOUR)


def test_nothing_is_held() -> None:
    assert [one.status for one in found()] == [Status.OK]
    assert [one.status for one in found(HoldRecord(0, HOUR, "x", "ann", all=True))] == [Status.OK], "it has ended"
    assert [one.status for one in found(HoldRecord(0, 2 * HOUR, "x", "ann", all=True, released_by="bob"))] == [
        Status.OK
    ]


def test_a_hold_is_named_with_its_author_and_its_reason() -> None:
    (one,) = found(HoldRecord(0, 2 * HOUR, "the ledger", "ann", topic="refunds"))
    assert one.status is Status.WARN
    assert one.finding == "ann has held topic=refunds for 1h, 1h are left: the ledger"
    assert one.mend == "reconsume release h0"


def test_a_hold_that_lasts_longer_than_a_topic_keeps_its_records_is_a_warning_of_its_own() -> None:
    hold = HoldRecord(0, 3 * HOUR, "x", "ann", all=True)
    _, other = found(hold)
    assert other.finding.startswith("orders keeps its records for 2h: what hold h0 keeps back may be deleted")
    assert len(found(HoldRecord(0, 3 * HOUR, "x", "ann", level="10s"))) == 1
    assert len(found(HoldRecord(0, 3 * HOUR, "x", "ann", key=b"k"))) == 2


def test_an_instance_that_does_not_obey_a_hold_is_a_failure() -> None:
    hold = HoldHeard("h0", HoldRecord(0, 2 * HOUR, "x", "ann", topic="refunds"))
    beats = [
        InstanceHeard(name, SubscriptionRecord({}, 0, obeys=ObeysTold(1, ids)))
        for name, ids in (("pod-0", ("h0",)), ("pod-1", ()))
    ]
    state = state_of(hold, *beats, at=HOUR, now_ms=HOUR)
    _, other = holds(cast(Cluster, Configured()), state, GROUP, HOUR)
    assert other.status is Status.FAIL
    assert other.finding == "pod-1 did not confirm hold h0, and may deliver what it holds"


def test_without_the_topic_nothing_is_known() -> None:
    (one,) = holds(cast(Cluster, Configured()), None, GROUP, HOUR)
    assert one.status is Status.NOT_CHECKED
