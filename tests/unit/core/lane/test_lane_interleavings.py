"""Every interleaving of assignments, answers, commits and losses: nothing undone is committed, nothing done twice."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from reconsume.sidecar.core.commit_batch import CommitBatch
from reconsume.sidecar.core.outcome import COMMITTED, Failed, NotSent, Outcome, Rejected, Throttled
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_codec import decode, encode
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, record
from tests.support.rings import EXAMPLES

OUTCOMES: list[Outcome] = [COMMITTED, Failed("http-500"), Rejected("x"), Throttled(50), NotSent("x")]


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
        part = self.rig.lane.ownership.partitions.get(ORDERS)
        return part is not None and not part.closing

    @precondition(lambda self: not self.rig.lane.ownership.partitions)
    @rule()
    def assigned(self) -> None:
        self.epoch += 1
        resume = decode(ORDERS, *self.kafka)
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
    @rule(outcome=st.sampled_from(OUTCOMES), place=st.integers(0, 9))
    def answered(self, outcome: Outcome, place: int) -> None:
        place %= len(self.rig.sent)
        current = self.rig.sent[place].record.epoch == self.epoch and self.rig.lane.ownership.partitions
        offset = self.rig.answer(outcome, place).offset
        if current and outcome is COMMITTED:
            self.done.add(offset)

    @precondition(lambda self: self.rig.batches)
    @rule(happened=st.booleans())
    def concluded(self, happened: bool) -> None:
        batch = self.rig.batches[0]
        if batch.commits[ORDERS].epoch != self.epoch or not self.rig.lane.ownership.partitions:
            self.rig.conclude(fenced=[ORDERS])
        elif not happened:
            self.rig.conclude(again=[])
        else:
            self._apply(batch)
            self.rig.conclude()

    def _apply(self, batch: CommitBatch) -> None:
        progress = batch.commits[ORDERS].progress
        self.kafka = (progress.next, encode(ORDERS, progress))
        self.written += [entry.record.offset for entry in batch.entries]
        self.done |= set(self.written)

    @rule(ms=st.integers(1, 1_200))
    def time_passes(self, ms: int) -> None:
        self.rig.run(ms)

    @precondition(lambda self: self.ours)
    @rule()
    def revoked(self) -> None:
        self.given_up = self.rig.release(ORDERS)

    @precondition(lambda self: self.rig.lane.ownership.partitions)
    @rule()
    def lost(self) -> None:
        self.rig.lane.ownership.lost([ORDERS])

    @invariant()
    def nothing_is_covered_that_is_not_done(self) -> None:
        progress = decode(ORDERS, *self.kafka)
        assert {offset for offset in self.log if progress.covers(offset)} <= self.done

    @invariant()
    def no_copy_is_written_twice(self) -> None:
        assert len(self.written) == len(set(self.written))

    @invariant()
    def a_partition_that_is_gone_weighs_nothing(self) -> None:
        if not self.rig.lane.ownership.partitions:
            assert self.rig.lane.ownership.load == 0

    def teardown(self) -> None:
        """Whatever has happened, one more owner gets all the rest done."""
        self.rig.lane.ownership.lost([ORDERS])
        if self.rig.batches:
            self.rig.conclude(fenced=[ORDERS])
        assert not self.rig.batches, "a lost partition still commits"
        self.rig.sent.clear()
        rest = Rig(concurrency=3)
        resume = decode(ORDERS, *self.kafka)
        rest.assign(ORDERS, epoch=99, resume=resume)
        rest.take(*(record(offset, epoch=99) for offset in self.log if offset >= resume.next))
        rest.answer_all()
        rest.settle()
        assert rest.part().tracker.snapshot() == Progress(22)
        assert {sent.record.offset for sent in rest.history} | self.done == set(self.log)


TestComings = Comings.TestCase
TestComings.settings = settings(max_examples=EXAMPLES, stateful_step_count=40)
