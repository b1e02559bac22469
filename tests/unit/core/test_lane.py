"""The way of a record through a lane: alone and together, on every instance, in any order of events (1.1, 7.1)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from reconsume.sidecar.core.commit_batch import CommitBatch
from reconsume.sidecar.core.outcome import COMMITTED, Committed, Failed, NotSent, Outcome, Rejected, Throttled
from reconsume.sidecar.core.pace.pace import PROBE_HANGS_MS, State
from reconsume.sidecar.core.partition import SETTLED
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_codec import decode, encode
from reconsume.sidecar.core.record import Partition, Record
from reconsume.topics.transitions import Retry
from tests.sim import samples
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, policy, record
from tests.sim.suspect_rigs import commit, died, taken_up
from tests.support.rings import EXAMPLES

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
    batch = rig.conclude()  # nothing was to be committed for a second, so the first answer waits for no other
    assert (batch.entries, progress_of(batch)) == ((), Progress(1))
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
    assert rig.lane.room.taken > 20_000
    rig.answer_all(last)
    rig.settle()
    assert rig.lane.room.taken == 0
    assert rig.part().throughput.load == 0
    assert rig.part().is_idle


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
    assert rig.part().offsets.snapshot() == Progress(0, frozenset({1}))
    assert rig.part().offsets.counts[SETTLED] == 1


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


# --- broadcast: whatever comes of a delivery, nothing is written, nothing is retried; only the pace ------------------


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


# --- the outcomes of a batch: what many answers at once come to is what they would come to one by one ----------------


FAILED = Failed("http-500")


def tell(rig: Rig, outcome_of: Callable[[Record], Outcome]) -> None:
    """Answer all that is out as one batch."""
    told, rig.sent = rig.sent, []

    def all_of_them() -> None:
        for sent in told:
            sent.reply(sent.record, outcome_of(sent.record), rig.now)

    rig.gate.answer_together(all_of_them, rig.now)


def test_a_batch_that_is_taken_is_done_and_its_places_are_filled_after_all_is_told() -> None:
    rig = Rig(concurrency=3)
    rig.assign(ORDERS)
    rig.take_offsets(range(8))
    filled: list[int] = []
    tell(rig, lambda record: filled.append(len(rig.sent)) or COMMITTED)  # type: ignore[func-returns-value]
    assert filled == [0, 0, 0]
    assert rig.out_offsets() == [3, 4, 5]
    assert (rig.gate.in_flight, rig.part().in_flight) == (3, 3)
    assert rig.part().offsets.first == 3
    assert rig.lane.counters.deliveries[ORDERS.topic, "main", "commit"] == 3


def test_what_is_taken_of_a_partition_that_is_given_up_lets_it_go() -> None:
    rig = Rig(concurrency=3)
    rig.assign(ORDERS)
    rig.take_offsets(range(3))
    given_up = rig.release(ORDERS)
    tell(rig, lambda _record: COMMITTED)
    assert rig.batches, "the rebalance waits for its last commit"
    rig.settle()
    assert given_up == ["given up"]
    assert rig.kafka[ORDERS].next == 3


def test_what_is_taken_for_an_older_assignment_is_counted_and_dropped() -> None:
    rig = Rig(concurrency=4)
    rig.assign(ORDERS)
    rig.take_offsets(range(2))
    rig.lane.ownership.lose_partitions([ORDERS])
    rig.assign(ORDERS, epoch=2)
    rig.take_offsets(range(2), epoch=2)
    tell(rig, lambda _record: COMMITTED)
    assert rig.lane.counters.fenced_answers == 2
    assert rig.gate.in_flight == 0
    assert rig.part().offsets.first == 2
    assert rig.part().in_flight == 0


def test_no_place_is_filled_while_failures_are_told() -> None:
    rig = Rig(concurrency=3)
    rig.assign(ORDERS)
    rig.take_offsets(range(8))
    filled: list[int] = []
    tell(rig, lambda record: filled.append(len(rig.sent)) or FAILED)  # type: ignore[func-returns-value]
    assert filled == [0, 0, 0]
    assert rig.out_offsets() == [3, 4, 5]


# --- a round of responses: each counts on its own, and their slots are filled after the last one ---------------------


def answer_round(rig: Rig, outcome_of: Callable[[Record], Outcome]) -> None:
    """Answer all that is out, as responses that came together."""
    answered, rig.sent = rig.sent, []

    def tell_all() -> None:
        for sent in answered:
            sent.reply(sent.record, outcome_of(sent.record), rig.now)

    rig.gate.answer_round(tell_all, lambda: rig.now)
    rig.check()


@pytest.mark.parametrize("outcome", [COMMITTED, FAILED])
def test_the_slots_of_a_round_are_filled_after_the_last_response(outcome: Outcome) -> None:
    rig = begun(*range(8), concurrency=3)
    filled: list[int] = []
    answer_round(rig, lambda record: filled.append(len(rig.sent)) or outcome)  # type: ignore[func-returns-value]
    assert filled == [0, 0, 0]
    assert rig.out_offsets() == [3, 4, 5]
    assert rig.gate.in_flight == 3


def test_failures_of_a_round_with_successes_between_them_begin_no_outage() -> None:
    """Given an outage after three failures in a row, when every other response of a round fails, then there is none;
    when all fail, there is one."""
    rig = begun(*range(24), concurrency=8, failures=3)
    answer_round(rig, lambda record: FAILED if record.offset % 2 else COMMITTED)
    assert rig.gate.pace.state is State.OPEN
    answer_round(rig, lambda _record: FAILED)
    assert rig.gate.pace.state is State.OUTAGE


def test_a_probe_that_goes_when_all_is_told_is_looked_after() -> None:
    """Given an outage with nothing ready, when what was out comes back, then one of it goes, and is not waited for
    for ever."""
    rig = Rig(concurrency=2)
    rig.assign(ORDERS)
    rig.take_offsets(range(2))
    rig.gate.pace.note(samples.record(99), NotSent("connection-refused"), rig.now)
    rig.run(100)
    rig.lane.tick(rig.now)
    assert (rig.gate.pace.state, len(rig.sent)) == (State.PROBING, 2)
    tell(rig, lambda _record: NotSent("connection-refused"))
    assert len(rig.sent) == 1
    assert rig.wake_at <= rig.now.steady_ms + PROBE_HANGS_MS


def test_a_slow_start_counts_every_record_of_a_batch() -> None:
    """Given two places of eight after an outage, when both are taken, then each of the two has added its credit."""
    rig = Rig(concurrency=8)
    rig.gate.pace.limit = 2
    rig.assign(ORDERS)
    rig.take_offsets(range(8))
    tell(rig, lambda _record: COMMITTED)
    assert rig.gate.pace.limit == 4


def test_a_batch_that_is_taken_clears_its_suspects() -> None:
    """Given a partition whose last owner crashed, then an answer to a batch clears each of its records."""
    rig = taken_up(died(1), *range(6))
    commit(rig)
    suspicion = rig.part().suspicion
    assert suspicion is not None
    assert suspicion.suspects.open.keys() == {0, 1, 2, 3}
    tell(rig, lambda _record: COMMITTED)
    assert not suspicion.suspects.open
    commit(rig)
    assert rig.out_offsets() == [4, 5]


def test_batches_of_two_partitions_count_for_each() -> None:
    rig = Rig(concurrency=9)
    sources = [Partition("orders", number) for number in range(2)]
    rig.assign(*sources)
    for turn in range(2):
        for source in sources:
            rig.take_offsets([2 * turn, 2 * turn + 1], source)
        tell(rig, lambda _record: COMMITTED)
    assert rig.lane.counters.deliveries == {("orders", "main", "commit"): 8}
    assert [rig.part(source).offsets.first for source in sources] == [4, 4]
    rig.take_offsets([4, 5], sources[0])
    rig.take_offsets([4], sources[1])
    rig.lane.ownership.lose_partitions(sources)
    tell(rig, lambda _record: COMMITTED)
    assert rig.lane.counters.fenced_answers == 3


listed = st.lists(
    st.sampled_from([COMMITTED, COMMITTED, FAILED, Failed("retry-asked", asked=True), Rejected("no")]),
    min_size=1,
    max_size=12,
)
alike = st.builds(
    lambda one, size: [one] * size, st.sampled_from([COMMITTED, FAILED, Throttled(100)]), st.integers(1, 12)
)


@given(listed | alike, st.integers(0, 3))
def test_together_comes_to_what_one_by_one_comes_to(told: list[Outcome], gap: int) -> None:
    """Given a list of verdicts or one for all, of main records and of retries, then nothing differs but the cost."""
    ends = []
    for many in (True, False):
        rig = Rig(concurrency=len(told) + 2)
        retry = Rig(retry=True, beside=rig)
        rig.assign(ORDERS)
        rig.take_offsets(n * (gap + 1) for n in range(len(told)))
        ready = Partition(retry.policy.names.ready, 0)
        retry.assign(ready)
        retry.take(samples.record(source=ready, life=samples.life()))
        for one in (rig, retry):
            wanted = {sent.record.offset: told[place % len(told)] for place, sent in enumerate(one.sent)}
            if many:
                tell(one, lambda record, wanted=wanted: wanted[record.offset])  # type: ignore[misc]
            else:
                for _ in range(len(one.sent)):
                    one.answer(wanted[one.sent[0].record.offset])
        ends.append(
            (
                rig.gate.in_flight,
                (rig.gate.pace.state, rig.gate.pace.limit, rig.gate.pace.answers.others),
                rig.part().offsets.snapshot(),
                rig.lane.room.taken,
                dict(rig.lane.counters.deliveries),
                dict(retry.lane.counters.deliveries),
                len(rig.lane.machines.outbox.pending) + sum(len(batch.entries) for batch in rig.batches),
            )
        )
    assert ends[0] == ends[1]


# --- every interleaving of assignments, answers, commits and losses: nothing undone is committed ---------------------


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
        part = self.rig.lane.partitions.get(ORDERS)
        return part is not None and not part.closing

    @precondition(lambda self: not self.rig.lane.partitions)
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
        current = self.rig.sent[place].record.epoch == self.epoch and self.rig.lane.partitions
        offset = self.rig.answer(outcome, place).offset
        if current and outcome is COMMITTED:
            self.done.add(offset)

    @precondition(lambda self: self.rig.batches)
    @rule(happened=st.booleans())
    def concluded(self, happened: bool) -> None:
        batch = self.rig.batches[0]
        if batch.commits[ORDERS].epoch != self.epoch or not self.rig.lane.partitions:
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

    @precondition(lambda self: self.rig.lane.partitions)
    @rule()
    def lost(self) -> None:
        self.rig.lane.ownership.lose_partitions([ORDERS])

    @invariant()
    def nothing_is_covered_that_is_not_done(self) -> None:
        progress = decode(ORDERS, *self.kafka)
        assert {offset for offset in self.log if progress.covers(offset)} <= self.done

    @invariant()
    def no_copy_is_written_twice(self) -> None:
        assert len(self.written) == len(set(self.written))

    @invariant()
    def a_partition_that_is_gone_weighs_nothing(self) -> None:
        if not self.rig.lane.partitions:
            assert self.rig.lane.room.taken == 0

    def teardown(self) -> None:
        """Whatever has happened, one more owner gets all the rest done."""
        self.rig.lane.ownership.lose_partitions([ORDERS])
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
        assert rest.part().offsets.snapshot() == Progress(22)
        assert {sent.record.offset for sent in rest.history} | self.done == set(self.log)


TestComings = Comings.TestCase
TestComings.settings = settings(max_examples=EXAMPLES, stateful_step_count=40)
