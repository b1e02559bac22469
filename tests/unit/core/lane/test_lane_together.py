"""The outcomes of a batch: what many answers at once come to is what they would come to one by one."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.core.outcome import COMMITTED, Failed, NotSent, Outcome, Rejected, Throttled
from reconsume.sidecar.core.pace.pace import PROBE_HANGS_MS, State
from reconsume.sidecar.core.record import Partition, Record
from tests.sim import samples
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS
from tests.sim.suspect_rigs import commit, died, taken_up

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
    assert rig.part().tracker.first == 3
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
    rig.lane.ownership.lost([ORDERS])
    rig.assign(ORDERS, epoch=2)
    rig.take_offsets(range(2), epoch=2)
    tell(rig, lambda _record: COMMITTED)
    assert rig.lane.counters.fenced_answers == 2
    assert rig.gate.in_flight == 0
    assert rig.part().tracker.first == 2
    assert rig.part().in_flight == 0


def test_no_place_is_filled_while_failures_are_told() -> None:
    rig = Rig(concurrency=3)
    rig.assign(ORDERS)
    rig.take_offsets(range(8))
    filled: list[int] = []
    tell(rig, lambda record: filled.append(len(rig.sent)) or FAILED)  # type: ignore[func-returns-value]
    assert filled == [0, 0, 0]
    assert rig.out_offsets() == [3, 4, 5]


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
    assert suspicion.suspects == {0, 1, 2, 3}
    tell(rig, lambda _record: COMMITTED)
    assert suspicion.suspects.isdisjoint(range(4))
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
    assert [rig.part(source).tracker.first for source in sources] == [4, 4]
    rig.take_offsets([4, 5], sources[0])
    rig.take_offsets([4], sources[1])
    rig.lane.ownership.lost(sources)
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
                rig.part().tracker.snapshot(),
                rig.lane.ownership.load,
                dict(rig.lane.counters.deliveries),
                dict(retry.lane.counters.deliveries),
                len(rig.lane.outbox) + sum(len(batch.entries) for batch in rig.batches),
            )
        )
    assert ends[0] == ends[1]
