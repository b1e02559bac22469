"""How partitions come and go: what is out is waited for, nothing late is believed, nothing undone is committed."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sidecar.core.batch import Batch
from sidecar.core.outcome import CANCELLED, COMMITTED, Failed, NotSent, Outcome, Rejected, Throttled
from sidecar.core.progress import Progress, decode, encode
from sidecar.core.record import Partition
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, record

BAD = Failed("http-500")
OTHER = Partition("orders", 1)


def begun(*offsets: int, concurrency: int = 2) -> Rig:
    rig = Rig(concurrency=concurrency)
    rig.assign(ORDERS, OTHER)
    rig.take_offsets(offsets)
    return rig


def test_a_revoked_partition_waits_for_what_is_out_and_is_committed_clean() -> None:
    rig = begun(0, 1, 2, 3)
    given_up = rig.release(ORDERS)
    rig.answer()
    assert rig.out_offsets() == [1]  # nothing more is released
    assert not given_up
    rig.answer()
    assert not given_up
    assert rig.conclude().shares[ORDERS].progress == Progress(2, clean=True)
    assert given_up == ["given up"]
    assert ORDERS not in rig.lane.tenure.parts
    assert rig.lane.tenure.load == 0


def test_a_failure_during_the_wait_is_written_before_the_partition_is_given_up() -> None:
    rig = begun(0, 1)
    given_up = rig.release(ORDERS)
    rig.answer(BAD)
    rig.answer()
    rig.run(25)
    batch = rig.conclude()
    assert [entry.record.offset for entry in batch.entries] == [0]
    while rig.batches:
        batch = rig.conclude()
    assert batch.shares[ORDERS].progress == Progress(2, clean=True)
    assert given_up


def test_a_partition_with_nothing_out_is_committed_clean_at_once() -> None:
    rig = begun()
    given_up = rig.release(ORDERS)
    assert rig.conclude().shares[ORDERS].progress == Progress(0, clean=True)
    assert given_up


def test_a_partition_that_is_not_ours_is_given_up_at_once() -> None:
    assert begun().release(Partition("orders", 9))


@pytest.mark.parametrize("outcome", [Throttled(5_000), NotSent("refused"), CANCELLED])
def test_what_was_not_done_at_the_end_is_left_to_the_next_owner(outcome: Outcome) -> None:
    rig = begun(0, 1)
    given_up = rig.release(ORDERS)
    rig.answer(outcome)
    rig.answer()
    assert rig.conclude().shares[ORDERS].progress == Progress(0, frozenset({1}), clean=True)
    assert given_up
    rig.run(60_000)
    assert len(rig.history) == 2


def test_a_partition_is_not_given_up_while_its_last_commit_is_under_way() -> None:
    rig = begun(0)
    rig.take_offsets([0], OTHER)
    given_up = rig.release(ORDERS, OTHER)
    rig.answer()  # orders[0] is idle: its progress goes out
    assert list(rig.batches[0].shares) == [ORDERS]
    rig.answer()  # orders[1] is idle too
    rig.conclude(again=[])  # but the commit came to nothing
    assert ORDERS in rig.lane.tenure.parts
    rig.run(2_000)
    batch = rig.conclude()
    assert batch.shares[ORDERS].progress == Progress(1, clean=True)
    assert batch.shares[OTHER].progress == Progress(1, clean=True)
    assert given_up


def test_each_release_ends_by_itself() -> None:
    rig = begun(0)
    rig.take_offsets([0], OTHER)
    first, second = rig.release(ORDERS), rig.release(OTHER)
    rig.answer(place=1)
    rig.conclude()
    assert (first, second) == ([], ["given up"])
    rig.answer()
    rig.conclude()
    assert first


def test_a_lost_partition_commits_nothing() -> None:
    rig = begun(0, 1, 2)
    rig.answer(BAD)
    rig.answer()
    rig.lane.tenure.lost([ORDERS])
    rig.answer_all(BAD)
    rig.conclude(fenced=[ORDERS])  # what was under way came too late
    rig.run(10_000)
    assert not rig.batches
    assert not rig.kafka
    assert rig.lane.tally.fenced_answers == 1  # the third was sent before the loss
    assert rig.lane.tenure.load == 0


def test_a_loss_during_a_release_ends_it() -> None:
    rig = begun(0)
    given_up = rig.release(ORDERS)
    rig.lane.tenure.lost([ORDERS])
    assert given_up


def test_an_assignment_during_a_release_ends_it() -> None:
    rig = begun(0)
    given_up = rig.release(ORDERS)
    assert rig.lane.tenure.closing
    rig.assign(ORDERS, epoch=2)
    assert given_up
    assert not rig.lane.tenure.closing


def test_a_late_answer_of_an_older_assignment_is_counted_and_dropped() -> None:
    rig = begun(0, 1)
    rig.lane.tenure.lost([ORDERS])
    rig.assign(ORDERS, epoch=2)
    rig.take(record(0, epoch=2))
    late = rig.sent.pop(0)
    late.reply(late.record, COMMITTED, rig.now)
    assert rig.lane.tally.fenced_answers == 1
    assert rig.part().tracker.snapshot() == Progress(0)


def test_records_of_an_older_assignment_are_dropped() -> None:
    rig = begun()
    rig.assign(ORDERS, epoch=2)
    rig.take_offsets([0, 1], epoch=1)
    assert not rig.sent


def test_a_batch_of_an_older_assignment_settles_nothing_in_the_new_one() -> None:
    rig = begun(0)
    rig.answer(BAD)
    rig.run(25)
    rig.lane.tenure.lost([ORDERS])
    rig.assign(ORDERS, epoch=2)
    rig.take(record(0, epoch=2))
    rig.conclude()
    assert (rig.part().unsettled, rig.part().tracker.snapshot()) == (0, Progress(0))
    assert rig.out_offsets() == [0]


def test_a_fenced_partition_is_dropped_and_the_rest_of_the_batch_goes_again() -> None:
    rig = begun(0)
    rig.take_offsets([0], OTHER)
    rig.answer(BAD)
    rig.run(25)
    rig.answer(BAD)
    rig.conclude(again=[])
    rig.run(25)
    rig.conclude(fenced=[ORDERS])
    assert list(rig.lane.tenure.parts) == [OTHER]
    (batch,) = rig.settle()[:1]
    assert [entry.record.source for entry in batch.entries] == [OTHER]
    assert rig.part(OTHER).tracker.snapshot() == Progress(1)
    assert rig.lane.tenure.load == 0


# --- every interleaving ----------------------------------------------------------------------------------------------


class Comings(RuleBasedStateMachine):
    """One partition that comes and goes, answers that come late, commits that happen or not.

    The model: `done` are the offsets that were answered for good. Kafka's progress must never cover another one, and a
    new owner must get every other one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(concurrency=3)
        self.log = [2, 3, 5, 6, 7, 11, 12, 13, 20, 21]
        self.kafka = (2, "")
        self.epoch = 0
        self.sent_at = 0
        self.done: set[int] = set()
        self.written: list[int] = []
        self.given_up: list[str] = []

    @property
    def ours(self) -> bool:
        part = self.rig.lane.tenure.parts.get(ORDERS)
        return part is not None and not part.closing

    @precondition(lambda self: not self.rig.lane.tenure.parts)
    @rule()
    def assigned(self) -> None:
        self.epoch += 1
        resume = decode(*self.kafka)
        self.rig.assign(ORDERS, epoch=self.epoch, resume=resume)
        self.position = resume.next

    @precondition(lambda self: self.ours)
    @rule(count=st.integers(1, 4))
    def fetched(self, count: int) -> None:
        offsets = [offset for offset in self.log if offset >= self.position][:count]
        if offsets:
            self.position = offsets[-1] + 1
            self.rig.take(*(record(offset, epoch=self.epoch) for offset in offsets))

    @precondition(lambda self: self.rig.sent)
    @rule(outcome=st.sampled_from([COMMITTED, BAD, Rejected("x"), Throttled(50), NotSent("x")]), place=st.integers(0, 9))
    def answered(self, outcome: Outcome, place: int) -> None:
        place %= len(self.rig.sent)
        current = self.rig.sent[place].record.epoch == self.epoch and self.rig.lane.tenure.parts
        offset = self.rig.answer(outcome, place).offset
        if current and outcome is COMMITTED:
            self.done.add(offset)

    @precondition(lambda self: self.rig.batches)
    @rule(happened=st.booleans())
    def concluded(self, happened: bool) -> None:
        batch = self.rig.batches[0]
        if batch.shares[ORDERS].epoch != self.epoch or not self.rig.lane.tenure.parts:
            self.rig.conclude(fenced=[ORDERS])
        elif not happened:
            self.rig.conclude(again=[])
        else:
            self._apply(batch)
            self.rig.conclude()

    def _apply(self, batch: Batch) -> None:
        progress = batch.shares[ORDERS].progress
        self.kafka = (progress.next, encode(progress))
        self.written += [entry.record.offset for entry in batch.entries]
        self.done |= set(self.written)

    @rule(ms=st.integers(1, 1_200))
    def time_passes(self, ms: int) -> None:
        self.rig.run(ms)

    @precondition(lambda self: self.ours)
    @rule()
    def revoked(self) -> None:
        self.given_up = self.rig.release(ORDERS)

    @precondition(lambda self: self.rig.lane.tenure.parts)
    @rule()
    def lost(self) -> None:
        self.rig.lane.tenure.lost([ORDERS])

    @invariant()
    def nothing_is_covered_that_is_not_done(self) -> None:
        progress = decode(*self.kafka)
        assert {offset for offset in self.log if progress.covers(offset)} <= self.done

    @invariant()
    def no_copy_is_written_twice(self) -> None:
        assert len(self.written) == len(set(self.written))

    @invariant()
    def a_partition_that_is_gone_weighs_nothing(self) -> None:
        if not self.rig.lane.tenure.parts:
            assert self.rig.lane.tenure.load == 0

    def teardown(self) -> None:
        """Whatever has happened, one more owner gets all the rest done."""
        self.rig.lane.tenure.lost([ORDERS])
        while self.rig.batches:
            self.rig.conclude(fenced=[ORDERS])
        self.rig.sent.clear()
        rest = Rig(concurrency=3)
        resume = decode(*self.kafka)
        rest.assign(ORDERS, epoch=99, resume=resume)
        rest.take(*(record(offset, epoch=99) for offset in self.log if offset >= resume.next))
        rest.answer_all()
        rest.settle()
        assert rest.part().tracker.snapshot() == Progress(22)
        assert {sent.record.offset for sent in rest.history} | self.done == set(self.log)


TestComings = Comings.TestCase
TestComings.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
