"""Rigs whose partitions come from owners that died, and the few steps that their tests are made of."""

from __future__ import annotations

from collections.abc import Iterable

from reconsume.sidecar.core.commit_batch import CommitBatch
from reconsume.sidecar.core.outcome import COMMITTED, Failed, Outcome
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, policy

BAD = Failed("http-500")
OTHER = Partition("orders", 1)
READY = Partition("billing-RETRY", 0)
WINDOW = 32


def rig_of(deaths: int = 3, *, concurrency: int = 4, beside: Rig | None = None) -> Rig:
    return Rig(policy=policy(deaths=deaths), retry=beside is not None, concurrency=concurrency, beside=beside)


def died(deaths: int, mark: int | None = None, first: int = 0) -> Progress:
    """What an owner leaves that was the successor of so many dead ones, less one, and dies too."""
    return Progress(first, deaths=deaths - 1, mark=mark)


def taken_up(progress: Progress, *offsets: int, most: int = 3, concurrency: int = 4) -> Rig:
    rig = rig_of(most, concurrency=concurrency)
    rig.assign(ORDERS, resume=progress)
    rig.take_offsets(offsets)
    return rig


def commit(rig: Rig) -> CommitBatch:
    """Let the batch go out that wants to, and commit it."""
    rig.run(2)
    return rig.conclude()


def progress_of(batch: CommitBatch) -> Progress:
    return batch.commits[ORDERS].progress


def work(rig: Rig, ms: int) -> None:
    """Answer and commit whatever comes, for so long."""
    for _ in range(ms // 250):
        rig.answer_all()
        rig.run(250)
        while rig.batches:
            rig.conclude()


def one_by_one(rig: Rig, offsets: Iterable[int], outcome: Outcome = COMMITTED) -> None:
    """See each record marked and then delivered alone; a commit takes the mark of the one before away."""
    for offset in offsets:
        batch = commit(rig)
        if progress_of(batch).mark is None:
            batch = commit(rig)
        assert progress_of(batch).mark == offset
        assert rig.out_offsets() == [offset]
        rig.answer(outcome)
