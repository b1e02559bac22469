"""Broadcast: whatever comes of a delivery, nothing is written, nothing is retried; only the pace still holds back."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.outcome import COMMITTED, Failed, NotSent, Outcome, Rejected, Throttled
from reconsume.sidecar.core.progress import Progress
from tests.sim import samples
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, record

POLICY = replace(samples.policy(retries=0), broadcast=True)
FAIL = Failed("http-500", "no")


def rig_of(records: int, concurrency: int = 4) -> Rig:
    rig = Rig(policy=POLICY, concurrency=concurrency)
    rig.assign(ORDERS)
    rig.take_offsets(range(records))
    return rig


@pytest.mark.parametrize(
    "outcome",
    [
        COMMITTED,
        FAIL,
        Failed("timeout", label="timeout"),
        Failed("retry-asked", asked=True, delay=5_000),
        Failed("retry-asked", asked=True, level=-1),
        Rejected("bad-sku"),
    ],
)
def test_whatever_the_service_says_the_record_is_done(outcome: Outcome) -> None:
    rig = rig_of(1)
    rig.answer(outcome)
    batches = rig.settle()
    assert rig.kafka[ORDERS] == Progress(1)
    assert not [entry.writes for batch in batches for entry in batch.entries if entry.writes]
    assert len(rig.history) == 1


def test_a_record_that_cannot_be_read_is_done_without_a_dead_letter() -> None:
    rig = Rig(policy=POLICY)
    rig.assign(ORDERS)
    rig.take(record(fault="headers-unreadable"))
    assert not [entry.writes for batch in rig.settle() for entry in batch.entries if entry.writes]
    assert rig.lane.counters.bad_headers == 1


def test_a_failure_is_counted() -> None:
    rig = rig_of(1)
    rig.answer(FAIL)
    assert rig.lane.counters.deliveries == {("orders", "main", "retry"): 1}


def test_a_refused_connection_holds_the_record_until_the_service_is_back() -> None:
    rig = rig_of(1)
    rig.answer(NotSent("connection-refused"))
    assert rig.sent == []
    rig.run(10_000)
    assert rig.out_offsets() == [0]
    rig.answer()
    assert len(rig.history) == 2


def test_a_record_that_was_throttled_comes_again() -> None:
    rig = rig_of(1)
    rig.answer(Throttled(300))
    rig.run(300)
    assert rig.out_offsets() == [0]


def test_a_probe_that_fails_is_done_and_the_next_record_is_the_next_probe() -> None:
    """The service has seen it: to deliver it again would be a retry."""
    rig = Rig(policy=POLICY, concurrency=1, failures=3)
    rig.assign(ORDERS)
    rig.take_offsets(range(6))
    for _ in range(3):
        rig.answer(FAIL)
    assert rig.sent == [], "an outage"
    rig.run(200)
    assert rig.out_offsets() == [3]
    rig.answer(FAIL)
    assert rig.sent == []
    rig.run(1_000)
    assert rig.out_offsets() == [4]
    rig.answer_all()
    assert [sent.record.offset for sent in rig.history] == [0, 1, 2, 3, 4, 5]
