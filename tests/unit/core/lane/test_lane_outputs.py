"""Outputs in a lane: in the transaction of their record, weighed until it is done, a failure where refused for good."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.commit_batch import CommitResult, Refusal, RefusedBy
from reconsume.sidecar.core.lane.outputs import with_outputs
from reconsume.sidecar.core.outcome import Committed, Failed, Rejected
from reconsume.sidecar.core.record import HEADER_COST, RECORD_COST, weight_of
from reconsume.topics.outputs import RETRY_OUTPUT_OF
from reconsume.topics.transition_records import Copy
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, policy, record

ONE, TWO = Copy("invoices", b"k", b"v" * 1_000, []), Copy("mail", None, None, [("a", b"1")])


def answered(outcome: Committed | Failed | Rejected, rig: Rig | None = None) -> Rig:
    """One record is out and answered, and its batch is in flight."""
    rig = rig or Rig(policy=policy(retries=1))
    rig.assign(ORDERS)
    rig.take_offsets([0])
    rig.answer(outcome)
    rig.run(2)
    return rig


def refuse(rig: Rig, refusal: Refusal) -> None:
    """Kafka refuses an entry of the batch that is out."""
    rig.lane.committed(CommitResult(rig.batches.pop(0), False, refused=(refusal,)), rig.now)
    rig.check()


def test_outputs_go_with_the_progress_of_their_record_behind_its_copy_and_event() -> None:
    rig = answered(Failed("busy", outputs=(ONE, TWO)))
    (entry,) = rig.batches[0].entries
    assert [copy.topic for copy in entry.writes] == ["billing-RETRY-10s", "billing-RETRY-EVENTS", "invoices", "mail"]
    assert entry.outputs == 2
    stamps = [dict(copy.headers).get(RETRY_OUTPUT_OF) for copy in entry.writes]
    assert stamps == [None, None, b"orders:0:0/0/0#0", b"orders:0:0/0/0#1"]


def test_their_bytes_count_until_the_record_is_done() -> None:
    plain, heavy = Rig(policy=policy()), answered(Committed((ONE,)))
    plain.assign(ORDERS)
    plain.take_offsets([0])
    assert 2_000 < heavy.lane.memory.load - plain.lane.memory.load < 2_500
    heavy.conclude()
    assert heavy.lane.memory.load == 0
    assert heavy.kafka[ORDERS].next == 1


@pytest.mark.parametrize(
    ("about", "where", "fails"),
    [
        ("topic", "invoices", True),
        ("record", "invoices[2]", True),
        ("record", "", True),
        ("partition", "invoices[2]", False),
        ("topic", "billing-RETRY-10s", False),
        ("record", "billing-DLQ[0]", False),
    ],
)
def test_what_kafka_refuses_for_good_is_a_failure_and_else_the_record_waits(
    about: RefusedBy, where: str, fails: bool
) -> None:
    rig = answered(Committed((ONE,)))
    (entry,) = rig.batches[0].entries
    refuse(rig, Refusal(entry, about, "it says so", where))
    assert (len(rig.lane.outbox.refused) == 0) == fails
    rig.run(600)
    (again,) = rig.batches[0].entries
    if fails:
        assert (again.outputs, again.decision.retry_state.reason) == (0, "output-refused: it says so")  # type: ignore[union-attr]
        rig.conclude()
        assert rig.lane.memory.load == 0
    else:
        assert again == entry


def test_a_last_failure_without_its_outputs_is_a_dead_letter() -> None:
    rig = answered(Committed((ONE,)), Rig(policy=replace(policy(), max_reconsume_times=0)))
    (entry,) = rig.batches[0].entries
    refuse(rig, Refusal(entry, "topic", "topic invoices is missing", "invoices"))
    rig.run(600)
    (dead,) = rig.batches[0].entries
    assert dead.writes[0].topic == "billing-DLQ"
    assert dead.decision.retry_state.reason == "output-refused: topic invoices is missing"  # type: ignore[union-attr]


TRACE = b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"


@pytest.mark.parametrize("traced", [True, False])
def test_outputs_carry_the_trace_of_the_attempt_where_attempts_are_traced(traced: bool) -> None:
    traced_policy = replace(policy(), traced=traced)
    for headers, trace in (([("RETRY_TRACEPARENT", TRACE)], TRACE if traced else None), ([], None), (None, None)):
        outputs = with_outputs(replace(record(), headers=headers), (ONE, TWO), traced_policy)[1]
        assert [dict(copy.headers).get("traceparent") for copy in outputs] == [trace, trace]


def test_a_record_weighs_as_much_more_as_its_outputs_with_keys_and_headers() -> None:
    heavy, _ = with_outputs(record(), (ONE, TWO), policy())
    outputs = sum(weight_of(copy.key, copy.value, copy.headers, None) for copy in (ONE, TWO))
    assert heavy.weight == record().weight + outputs
    assert outputs == 2 * RECORD_COST + 1_001 + HEADER_COST + 2
