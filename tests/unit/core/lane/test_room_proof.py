"""Nothing is delivered before the brokers have taken the longest progress, with a position that changes nothing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.commit_batch import CommitResult
from reconsume.sidecar.core.progress import LogId, Progress
from reconsume.sidecar.core.record import Partition
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS

OTHER = Partition("orders", 1)
LEFT = Progress(3, frozenset({5, 9}), width=2, log=LogId("0a0b0c0d", "deadbeef"), cycle=2, notes=True)


def unproven(*sources: Partition, resume: Progress = LEFT) -> Rig:
    """A lane that has just got partitions, each with two records."""
    rig = Rig(concurrency=8, proves_room=True)
    for source in sources:
        rig.assign(source, resume=resume)
        rig.take_offsets([resume.next, resume.next + 1], source)
    rig.run(1)
    return rig


@pytest.mark.parametrize(
    ("left", "position"),
    [
        (replace(LEFT, clean=True), replace(LEFT, clean=True)),
        (replace(LEFT, deaths=2, mark=4, reach=6), replace(LEFT, deaths=2, mark=4, reach=6)),
        (Progress(3, ours=False), Progress(3, clean=True)),  # its owner before was no sidecar, so none has crashed
    ],
)
def test_the_first_commit_is_the_position_as_it_was_taken_over(left: Progress, position: Progress) -> None:
    rig = unproven(ORDERS, OTHER, resume=left)
    (batch,) = rig.batches
    assert (batch.padded, batch.entries, list(batch.commits)) == (True, (), [ORDERS])
    assert batch.commits[ORDERS].progress == position


def test_nothing_is_delivered_before_and_all_afterwards() -> None:
    rig = unproven(ORDERS, OTHER)
    rig.run(5_000)
    assert (rig.sent, len(rig.batches)) == ([], 1), "nothing else is committed meanwhile"
    rig.conclude()
    assert sorted(rig.out_offsets()) == [3, 3, 4, 4]
    rig.answer_all()
    progress = rig.settle()[-1].commits[ORDERS].progress
    assert replace(progress, done=frozenset(progress.done)) == replace(LEFT, next=6, done=frozenset({9})), (
        "and nothing is dropped of what the last owner has said"
    )


def test_where_the_brokers_refuse_it_nothing_is_delivered_or_tried_again() -> None:
    rig = unproven(ORDERS)
    rig.lane.committed(CommitResult(rig.batches.pop(), committed=False, too_long=True), rig.now)
    rig.run(60_000)
    assert (rig.sent, rig.batches) == ([], [])


def test_a_partition_that_goes_to_another_owner_meanwhile_leaves_the_proof_to_the_next_one() -> None:
    rig = unproven(ORDERS, OTHER)
    rig.conclude(fenced=[ORDERS])
    rig.run(1)
    (batch,) = rig.batches
    assert (batch.padded, list(batch.commits)) == (True, [OTHER])
    rig.conclude()
    assert rig.out_offsets() == [3, 4]


def test_a_position_that_kafka_refuses_for_another_reason_is_proved_by_another_partition() -> None:
    rig = unproven(ORDERS, OTHER)
    rig.conclude(unwritable=[ORDERS])
    rig.run(1)
    assert list(rig.batches[0].commits) == [OTHER]
    rig.conclude()
    assert [sent.record.source for sent in rig.sent] == [OTHER, OTHER], "the refused one stays apart"


def test_partitions_that_come_later_need_no_proof() -> None:
    rig = unproven(ORDERS)
    rig.conclude()
    rig.answer_all()
    rig.assign(OTHER)
    rig.take_offsets([0], OTHER)
    assert rig.out_offsets() == [0]
