"""What the doctor says of decisions about waiting records: who made each, and whether it goes on."""

from __future__ import annotations

from reconsume.sidecar.doctor.checks.control_log import decisions
from reconsume.sidecar.doctor.findings import Finding, Status
from reconsume.sidecar.group_policy.decisions import DecisionStatus
from reconsume.topics.decision_record import DecisionRecord

MINUTE = 60_000
RECORD = DecisionRecord("retry-now", "ann", "fixed", 0, (), topic="orders", reason="http-503", key=b"secret")


def found(record: DecisionRecord, minutes: int) -> Finding:
    (one,) = decisions([DecisionStatus("3f9c1ab2", record, True, 40, 2, 1, 3)], minutes * MINUTE)
    return one


def test_no_decision_is_open() -> None:
    assert [one.status for one in decisions([], 0)] == [Status.OK]


def test_an_open_decision_is_named_with_its_author_and_how_far_it_is_and_without_its_key() -> None:
    one = found(RECORD, 5)
    said = "decision 3f9c1ab2 of ann (retry-now: topic orders, reason http-503, one key)"
    assert (one.status, said in one.finding, "secret" in one.finding) == (Status.OK, True, False)
    assert "40 records settled, 1 of 3 partitions finished" in one.finding


def test_one_that_is_open_for_long_is_a_warning_unless_its_rate_asks_for_it() -> None:
    assert (found(RECORD, 11).status, found(RECORD, 11).mend) == (Status.WARN, "reconsume settle --end 3f9c1ab2")
    slow = DecisionRecord("retry-now", "ann", "fixed", 0, (), rate="5/h")
    assert found(slow, 11).status is Status.OK
