"""A relay passes on what is due, many records at once, as the usual way would each of them (contract 6.1)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.decisions import forward_due
from reconsume.sidecar.core.offset_ranges import OffsetRanges
from reconsume.sidecar.core.outbox import BATCH_FOR_MS
from reconsume.sidecar.core.partition import SETTLED, FetchedRecords
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition, Record
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import Headers
from reconsume.topics.transition_records import Copy
from reconsume.topics.transitions import DeadLetter, Forward, Hop
from tests.sim import samples
from tests.sim.rig import Rig
from tests.sim.samples import WALL, life

LEVEL, READY = Partition("billing-RETRY-1s", 3), Partition("billing-RETRY", 0)
POLICY = replace(samples.policy(), relay=True)
OWN: Headers = [("a", b"1"), ("b", None), ("a", b"\xff")]


def relay() -> Rig:
    rig = Rig(policy=POLICY, retry=True)
    rig.assign(LEVEL)
    return rig


def waiting(offset: int, *, due: int = WALL, appended: int = WALL - 1_000, fault: str = "") -> Record:
    """A record of the level of 1 s: by default it is due just now."""
    told = None if fault else replace(life(2, due), id=f"orders:0:{offset}")
    headers = OWN + render_retry_headers(told or life(), "billing", LEVEL.topic)
    return samples.record(offset, source=LEVEL, timestamp=appended, headers=headers, life=told, fault=fault)


def written(rig: Rig) -> list[Copy]:
    """Everything that is committed within a moment."""
    return [copy for batch in rig.settle() for entry in batch.entries for copy in entry.writes]


def test_what_is_due_is_forwarded_as_it_was_without_an_event_or_a_delivery() -> None:
    rig = relay()
    records = [waiting(offset) for offset in range(5)]
    rig.take(*records)
    copies = written(rig)
    assert [copy.topic for copy in copies] == ["billing-RETRY"] * 5
    for record, copy in zip(records, copies, strict=True):
        assert record.retry_state is not None
        assert (copy.key, copy.value, copy.spread) == (record.key, record.value, LEVEL.number)
        assert copy.headers == OWN + render_retry_headers(record.retry_state, "billing", "billing-RETRY")
    assert rig.history == []
    assert rig.kafka[LEVEL].next == 5
    assert rig.lane.counters.forwarded == sum(rig.lane.counters.lateness.counts) == 5
    assert (rig.lane.room.taken, rig.part(LEVEL).offsets.counts[SETTLED]) == (0, 0)


def test_what_is_not_due_waits_and_is_forwarded_at_its_time() -> None:
    rig = relay()
    rig.take(waiting(0), waiting(1, appended=WALL - 400), waiting(2, due=WALL + 700, appended=WALL - 300))
    assert len(written_after(rig, BATCH_FOR_MS)) == 1
    assert written_after(rig, 599 - BATCH_FOR_MS) == []
    assert written_after(rig, 2 + BATCH_FOR_MS) == ["orders:0:1"]
    assert written_after(rig, 100) == ["orders:0:2"]


def test_lateness_is_counted_from_the_due_time_whether_it_waited_or_not() -> None:
    rig = relay()
    rig.take(waiting(0, due=WALL - 4_000, appended=WALL - 9_000), waiting(1, due=0, appended=WALL - 1_007))
    assert rig.lane.counters.lateness.total == 4_000 + 7
    rig.take(waiting(2, appended=WALL - 600))
    rig.run(400)
    assert (sum(rig.lane.counters.lateness.counts), rig.lane.counters.lateness.total) == (3, 4_007)


def test_runs_that_come_before_a_commit_are_settled_together() -> None:
    rig = relay()
    rig.take(waiting(0), waiting(1))
    rig.take(waiting(2))
    assert rig.part(LEVEL).offsets.counts[SETTLED] == 3
    rig.settle()
    assert (rig.part(LEVEL).offsets.counts[SETTLED], rig.kafka[LEVEL].next) == (0, 3)


def written_after(rig: Rig, ms: int) -> list[str]:
    rig.run(ms)
    ids = [
        entry.decision.retry_state.id for batch in rig.batches for entry in batch.entries if entry.decision.retry_state
    ]
    while rig.batches:
        rig.conclude()
    return ids


def test_one_that_is_far_from_due_hops_and_those_behind_it_go_on() -> None:
    rig = relay()
    rig.take(waiting(0), waiting(1, due=WALL + 60_000), waiting(2))
    decisions = [entry.decision for batch in rig.settle() for entry in batch.entries]
    assert [type(decision) for decision in decisions] == [Forward, Hop, Forward]


def test_a_broken_record_is_a_dead_letter_and_those_behind_it_go_on() -> None:
    rig = relay()
    rig.take(waiting(0), waiting(1, fault="bad-header: RECONSUMETIMES is missing"), waiting(2))
    decisions = [entry.decision for batch in rig.settle() for entry in batch.entries]
    assert [type(decision) for decision in decisions] == [Forward, DeadLetter, Forward]
    assert rig.kafka[LEVEL].next == 3


def test_what_a_predecessor_has_forwarded_is_not_forwarded_again() -> None:
    rig = Rig(policy=POLICY, retry=True)
    rig.assign(LEVEL, resume=Progress(0, frozenset({1, 2})))
    rig.take(*(waiting(offset) for offset in range(4)))
    rig.take(*(waiting(offset) for offset in range(4)))  # and what is handed over twice
    assert [entry.record.offset for batch in rig.settle() for entry in batch.entries] == [0, 3]


def test_what_is_not_committed_is_not_done() -> None:
    rig = relay()
    rig.take(waiting(0), waiting(1))
    rig.run(BATCH_FOR_MS)
    batch = rig.conclude(again=())
    assert rig.part(LEVEL).offsets.first == 0
    assert [entry.record.offset for entry in batch.entries] == [0, 1]
    assert [entry.record.offset for batch in rig.settle() for entry in batch.entries] == [0, 1]


def test_what_is_committed_is_done_and_holds_no_memory() -> None:
    rig = relay()
    rig.take(waiting(0), waiting(1), waiting(2))
    rig.settle()
    part = rig.part(LEVEL)
    assert (part.offsets.first, part.offsets.counts[SETTLED], part.throughput.load, rig.lane.room.taken) == (3, 0, 0, 0)
    assert rig.lane.counters.forwarded == 3


def test_the_answer_for_an_older_assignment_settles_nothing() -> None:
    rig = relay()
    rig.take(waiting(0))
    rig.run(BATCH_FOR_MS)
    rig.assign(LEVEL, epoch=2)
    rig.take(replace(waiting(0), epoch=2))
    rig.conclude()
    part = rig.part(LEVEL)
    assert (part.offsets.first, part.offsets.counts[SETTLED]) == (0, 1)
    assert rig.lane.counters.forwarded == 0
    rig.settle()
    assert (part.offsets.first, part.offsets.counts[SETTLED], part.throughput.load) == (1, 0, 0)


def test_a_relay_seeks_over_what_the_last_owner_has_done() -> None:
    """Given a million done records, then it goes on behind them: it took them one by one."""
    rig = Rig(policy=POLICY, retry=True)
    rig.assign(LEVEL, resume=Progress(0, OffsetRanges([(1, 1_000_000)])))
    rig.take(waiting(0))
    rig.take(*map(waiting, range(1, 100)))
    rig.run(10)
    assert rig.fetches == [("pause", LEVEL), ("resume", LEVEL, 1_000_000, 1)]
    rig.take(waiting(1_000_000), turn=1)
    assert written(rig)
    assert rig.kafka[LEVEL] == Progress(1_000_001)


@pytest.mark.parametrize(
    ("special", "taken"),
    [
        (waiting(2), 5),
        (waiting(2, due=WALL + 1), 2),
        (waiting(2, appended=WALL - 999), 2),
        (waiting(2, fault="bad-header"), 2),
        (replace(waiting(2), retry_state=replace(life(2), topic="strange")), 2),
    ],
    ids=["due now", "due in 1 ms", "appended 999 ms ago", "bad header", "stray"],
)
def test_the_short_way_ends_before_the_first_record_that_needs_the_usual_one(special: Record, taken: int) -> None:
    rig = relay()
    lane, part = rig.lane, rig.part(LEVEL)
    run = FetchedRecords(LEVEL, 1, 0, [waiting(0), waiting(1), special, waiting(3), waiting(4)])
    rest = forward_due(part, run, lane.machines, lane.decisions, rig.now)
    assert list(rest.records) == list(run.records[taken:])
    assert part.offsets.counts[SETTLED] == taken


def test_on_the_ready_topic_the_short_way_takes_what_is_appended_just_now() -> None:
    rig = Rig(policy=POLICY, retry=True)
    rig.assign(READY)
    lane, run = rig.lane, FetchedRecords(READY, 1, 0, [replace(waiting(0, appended=WALL), source=READY)])
    assert not forward_due(rig.part(READY), run, lane.machines, lane.decisions, rig.now).records
