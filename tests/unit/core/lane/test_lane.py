"""The way of one record through a lane: delivered, answered, decided, committed."""

import pytest

from reconsume.sidecar.core.commit_batch import CommitBatch
from reconsume.sidecar.core.outcome import COMMITTED, Committed, Failed, Rejected
from reconsume.sidecar.core.progress import Progress
from reconsume.topics.transitions import Retry
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, policy, record

BAD = Failed("http-500")


def begun(*offsets: int, **options: int) -> Rig:
    rig = Rig(**options)  # type: ignore[arg-type]
    rig.assign(ORDERS)
    rig.take_offsets(offsets)
    return rig


def progress_of(batch: CommitBatch) -> Progress:
    return batch.commits[ORDERS].progress


def test_a_record_is_delivered_at_once_and_in_order() -> None:
    rig = begun(0, 1, 2, 3, 4, 5)
    assert rig.out_offsets() == [0, 1, 2, 3]
    rig.answer()
    assert rig.out_offsets() == [1, 2, 3, 4]


def test_success_is_committed_within_a_second_without_any_failure() -> None:
    rig = begun(0, 1, 2)
    rig.settle()  # the first progress has no second to wait for
    rig.answer_all()
    rig.run(1_000)
    batch = rig.conclude()
    assert (batch.entries, progress_of(batch)) == ((), Progress(3))


def test_progress_is_committed_once_a_second_not_once_a_record() -> None:
    rig = begun(*range(100), concurrency=1)
    seen = []
    for _ in range(100):
        rig.answer()
        rig.run(40)
        while rig.batches:
            seen.append(progress_of(rig.conclude()).next)
    assert len(seen) in (4, 5)
    assert seen == sorted(seen)


def test_once_all_is_committed_the_lane_asks_for_nothing() -> None:
    rig = begun(0, 1, 2)
    rig.answer_all()
    assert rig.settle()
    assert rig.wake_at > 1 << 60


@pytest.mark.parametrize("last", [COMMITTED, BAD, Rejected("no"), Committed()])
def test_memory_is_given_back_when_everything_is_done(last: Committed | Failed | Rejected) -> None:
    rig = begun(*range(20))
    assert rig.lane.ownership.load > 20_000
    rig.answer_all(last)
    rig.settle()
    assert rig.lane.ownership.load == 0
    assert rig.part().load == 0
    assert rig.part().idle


def test_a_failure_is_committed_with_its_copy_and_its_progress_at_once() -> None:
    rig = begun(0, 1)
    rig.answer()
    rig.answer(BAD)
    rig.run(25)
    batch = rig.conclude()
    (entry,) = batch.entries
    assert isinstance(entry.decision, Retry)
    assert [copy.topic for copy in entry.writes] == ["billing-RETRY-10s", "billing-RETRY-EVENTS"]
    assert progress_of(batch) == Progress(2)


def test_a_copy_written_while_an_earlier_record_is_out_is_in_the_set_above() -> None:
    rig = begun(0, 1, 2)
    rig.answer(BAD, 1)
    rig.run(25)
    assert progress_of(rig.conclude()) == Progress(0, frozenset({1}))


def test_a_failed_record_is_not_done_until_its_batch_is_committed() -> None:
    rig = begun(0, 1, 2)
    rig.answer(BAD)
    rig.run(25)
    assert len(rig.batches) == 1  # out, with no answer yet
    rig.answer(COMMITTED)
    rig.run(5_000)
    assert rig.part().tracker.snapshot() == Progress(0, frozenset({1}))
    assert rig.part().unsettled == 1


def test_a_batch_that_did_not_happen_is_committed_again_from_memory() -> None:
    rig = begun(0, 1, 2)
    rig.answer_all(BAD)
    rig.run(25)
    first = rig.conclude(again=[])
    rig.run(1_000)
    second = rig.conclude()
    assert sorted(entry.record.offset for entry in first.entries) == [0]
    assert [entry.record.offset for entry in second.entries] == [0, 1, 2]
    assert len(rig.history) == 3  # and nothing is delivered again for it


def test_only_one_batch_is_out_at_a_time_and_the_next_takes_what_came_meanwhile() -> None:
    rig = begun(*range(8), concurrency=8)
    rig.answer(BAD)
    rig.answer_all(BAD)
    rig.run(10_000)
    assert len(rig.batches) == 1
    rig.conclude()
    rig.run(25)
    assert len(rig.batches[0].entries) == 7


def test_what_the_last_owner_had_done_is_not_delivered_again() -> None:
    rig = Rig()
    rig.assign(ORDERS, resume=Progress(3, frozenset({4, 6})))
    rig.take_offsets([3, 4, 5, 6, 7])
    assert rig.out_offsets() == [3, 5, 7]


def test_an_offset_out_of_bounds_asked_for_is_counted_and_the_ladder_answers() -> None:
    rig = begun(0)
    rig.answer(Failed("retry-asked", delay=1))
    assert rig.lane.counters.odd_requests == 1
    (batch,) = rig.settle()[:1]
    assert batch.entries[0].writes[0].topic == "billing-RETRY-10s"


def test_a_broken_record_goes_to_the_dlq_without_a_delivery() -> None:
    rig = Rig()
    rig.assign(ORDERS)
    rig.take(record(0, fault="headers-unreadable"), record(1))
    assert rig.out_offsets() == [1]
    batch = rig.settle()[0]
    assert batch.entries[0].writes[0].topic == "billing-DLQ"
    assert rig.lane.counters.dead_letters["orders", "headers-unreadable"] == 1


def test_the_counts_are_of_what_is_in_kafka() -> None:
    rig = Rig(policy=policy(retries=0))
    rig.assign(ORDERS)
    rig.take_offsets([0])
    rig.answer(BAD)
    assert not rig.lane.counters.dead_letters
    rig.settle()
    assert rig.lane.counters.dead_letters["orders", "http-500"] == 1
    assert rig.lane.counters.deliveries["orders", "main", "retry"] == 1
