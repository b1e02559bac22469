"""What Kafka will not take: a topic stops its partitions until it is mended, a record holds only itself."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.commit_batch import CommitResult, Refusal, SettledRecord
from reconsume.sidecar.core.outbox import FIRST_TRY_MS, LAST_TRY_MS, MOST_REFUSED
from reconsume.sidecar.core.outcome import COMMITTED, EXPIRED, Failed, Outcome, Rejected
from reconsume.sidecar.core.partition import SETTLED
from reconsume.sidecar.core.policy import InPlace
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.core.room import REFUSED_SHARE
from reconsume.topics.retry_order import Order
from tests.sim import samples
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, WALL, life, record

BAD, REFUSED = Failed("http-500"), Rejected("no")
OTHER = Partition("orders", 1)


def refused(rig: Rig, about: str) -> list[SettledRecord]:
    """Fail what is first out, and let Kafka refuse all of its batch."""
    rig.answer(BAD)
    rig.run(25)
    entries = list(rig.batches[0].entries)
    rig.conclude(refused=[(entry, about) for entry in entries])
    return entries


def stopped(*more: Partition, offsets: int = 6) -> Rig:
    """A lane whose partition `orders[0]` was stopped because of a topic."""
    rig = Rig(concurrency=2)
    rig.assign(ORDERS, *more)
    rig.take_offsets(range(offsets))
    refused(rig, "topic")
    return rig


def test_a_refused_topic_stops_the_partition_and_withholds_what_was_fetched() -> None:
    rig = stopped()
    rig.answer_all()
    assert len(rig.history) == 3  # the third was out when the batch came back
    assert rig.fetches == [("pause", ORDERS)]
    assert (rig.wait().reason, rig.facts.partitions[ORDERS].refusal) == ("refused", "t: refused")


def test_a_refused_topic_stops_no_other_partition() -> None:
    rig = stopped(OTHER)
    rig.answer()
    rig.take_offsets(range(3), OTHER)
    rig.answer_all()
    assert [sent.record.offset for sent in rig.history if sent.record.source == OTHER] == [0, 1, 2]
    rig.settle()
    assert rig.part(OTHER).offsets.snapshot() == Progress(3)


def test_all_partitions_go_on_at_once_when_the_topic_is_mended() -> None:
    rig = stopped(OTHER)
    rig.take_offsets(range(3), OTHER)
    rig.answer_all(BAD)
    rig.run(25)
    rig.conclude(refused=[(entry, "topic") for entry in rig.batches[0].entries])
    assert [part.blocked != "" for part in rig.lane.partitions.values()] == [True, True]
    rig.run(FIRST_TRY_MS)
    (tried,) = rig.conclude().entries
    assert tried.record.offset == 0
    assert [part.blocked for part in rig.lane.partitions.values()] == ["", ""]
    rig.answer_all()
    rig.settle()
    rig.take_offsets(range(6), ORDERS)
    rig.take_offsets(range(3), OTHER)
    rig.answer_all()
    rig.settle()
    assert rig.part(ORDERS).offsets.snapshot() == Progress(6)
    assert rig.part(OTHER).offsets.snapshot() == Progress(3)
    assert len(rig.history) == 9  # nothing was delivered a second time
    assert rig.lane.room.taken == 0


def test_what_is_redriven_to_a_missing_queue_waits_alone_and_what_else_lies_there_goes_on() -> None:
    """The letters of another main topic may have their queue, and each letter holds its own key alone."""
    rules, ready = samples.policy(topics=("orders", "bills"), queued=True), Partition("billing-RETRY", 0)
    rig, letter = Rig(retry=True, policy=rules), life(order=Order(7, 1), redrives=1)
    rig.assign(ready)
    rig.take(record(0, source=ready, life=letter))
    rig.run(25)
    rig.conclude(refused=[(entry, "topic") for entry in rig.batches[0].entries], where="billing-ORDERED-orders")
    assert not rig.part(ready).blocked
    rig.take(record(1, source=ready, life=replace(letter, id="bills:0:8", topic="bills", order=Order(8, 1))))
    rig.run(25)
    (entry,) = rig.conclude().entries
    assert entry.writes[0].topic == "billing-ORDERED-bills"
    rig.run(FIRST_TRY_MS)
    rig.settle()
    assert rig.part(ready).offsets.snapshot() == Progress(2)


def test_what_a_stopped_partition_had_in_memory_is_let_go_and_fetched_again() -> None:
    """Its records would take the room of all other partitions, for as long as the topic is missing."""
    rig = stopped()
    rig.answer_all()
    assert not rig.sent
    assert rig.lane.room.load == sum(
        one.refusal.entry.record.weight for one in rig.lane.machines.outbox.refused.values()
    )
    assert rig.lane.room.taken == 0  # they have a place beside the room
    rig.run(FIRST_TRY_MS)
    rig.conclude()
    assert ("resume", ORDERS, 3, 1) in rig.fetches
    rig.take_offsets(range(3, 6))
    assert rig.out_offsets() == [3, 4]


def test_what_another_partition_had_in_memory_is_not_let_go() -> None:
    rig = Rig(concurrency=1)
    rig.assign(ORDERS, OTHER)
    rig.take_offsets(range(4))
    rig.take_offsets(range(3), OTHER)
    refused(rig, "topic")
    assert set(rig.part().offsets.to_reread()) == {2, 3}  # 1 was out
    assert not set(rig.part(OTHER).offsets.to_reread())
    rig.answer_all()
    assert [sent.record.offset for sent in rig.history if sent.record.source == OTHER] == [0, 1, 2]
    assert rig.part().throughput.load == rig.lane.room.load == record().weight  # of the one that is refused


def test_what_waits_for_its_time_in_a_stopped_partition_is_let_go_too() -> None:
    rig, level = Rig(retry=True), Partition("billing-RETRY-10s", 0)
    rig.assign(level)
    first, *later = (record(n, source=level, timestamp=WALL - 10_000 + 900 * n, life=life()) for n in range(3))
    rig.take(first, *later)
    refused(rig, "topic")
    assert set(rig.part(level).offsets.to_reread()) == {1, 2}
    assert rig.lane.room.load == first.weight
    rig.run(5_000)
    assert len(rig.history) == 1


def test_a_record_that_is_retried_in_place_is_not_let_go_for_its_count_is_kept_nowhere_else() -> None:
    rig = Rig(policy=replace(samples.policy(), in_place=InPlace(700, None)), order="key")
    rig.assign(ORDERS)
    rig.take(*(record(offset, key=b"%d" % offset) for offset in range(2)))
    rig.answer(BAD)
    rig.answer(REFUSED)
    rig.run(25)
    rig.conclude(refused=[(rig.batches[0].entries[0], "topic")])
    assert not set(rig.part().offsets.to_reread())
    rig.run(FIRST_TRY_MS)
    rig.conclude()
    rig.run(700)
    assert [(sent.record.offset, sent.record.times) for sent in rig.sent] == [(0, 1)]


def test_a_refused_entry_is_tried_again_alone_and_ever_less_often() -> None:
    rig = stopped(offsets=1)
    times = []
    for _ in range(6):
        before = rig.now.steady_ms
        while not rig.batches or not rig.batches[0].entries:
            while rig.batches:
                rig.conclude()
            rig.run(1)
        assert rig.batches[0].alone
        times.append(rig.now.steady_ms - before)
        rig.conclude(refused=[(rig.batches[0].entries[0], "topic")])
    assert times == [FIRST_TRY_MS, 1_000, 2_000, 4_000, LAST_TRY_MS, LAST_TRY_MS]


def test_a_record_that_is_too_large_holds_only_itself() -> None:
    rig = Rig(concurrency=2)
    rig.assign(ORDERS)
    rig.take_offsets(range(6))
    refused(rig, "record")
    rig.answer_all()
    assert len(rig.history) == 6
    assert not rig.fetches
    while rig.batches:
        rig.conclude()
    rig.run(400)
    assert rig.part().offsets.snapshot() == Progress(0, frozenset(range(1, 6)))


def test_a_refused_record_does_not_hold_up_the_others_of_its_batch() -> None:
    rig = Rig(concurrency=8)
    rig.assign(ORDERS)
    rig.take_offsets(range(8))
    rig.answer(BAD)
    rig.answer_all(BAD)
    rig.conclude()
    rig.run(25)
    large = next(entry for entry in rig.batches[0].entries if entry.record.offset == 3)
    rig.conclude(refused=[(large, "record")])
    rig.run(25)
    rig.conclude()
    assert rig.part().offsets.snapshot() == Progress(3, frozenset({4, 5, 6, 7}))


def test_a_topic_that_was_mended_but_finds_this_record_too_large_lets_the_partition_go_on() -> None:
    rig = stopped()
    rig.answer_all()
    rig.run(FIRST_TRY_MS)
    rig.conclude(refused=[(rig.batches[0].entries[0], "record")])
    assert rig.part().blocked == ""
    rig.take_offsets(range(3, 6))
    rig.answer_all()
    assert len(rig.history) == 6


def test_many_refused_records_do_not_keep_the_progress_of_others_out_of_kafka() -> None:
    rig = Rig(concurrency=600)
    rig.assign(ORDERS, OTHER)
    rig.take_offsets(range(600))
    rig.answer_all(BAD)
    committed = worst = 0
    for next_offset in range(1_000):
        rig.run(20)
        rig.take_offsets([next_offset], OTHER)
        rig.answer_all()
        if not rig.batches:
            continue
        if entries := rig.batches[0].entries:  # each takes its time: more are due than there is time for
            rig.conclude(refused=[(entry, "record") for entry in entries])
        else:
            committed = rig.conclude().commits[OTHER].progress.next
        worst = max(worst, next_offset - committed)
    assert worst <= 1_200 // 20


def test_an_entry_whose_lone_try_came_to_nothing_is_written_once() -> None:
    rig = stopped(OTHER, offsets=1)
    written = 0
    for fail in [True] * 5 + [False] * 40:
        rig.run(FIRST_TRY_MS)
        if rig.batches and fail:
            rig.conclude(again=[])
        elif rig.batches:
            written += len(rig.conclude().entries)
    assert written == 1
    assert rig.part().offsets.counts[SETTLED] == 0
    assert rig.lane.room.taken == 0


# --- the memory of what is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize("about", ["topic", "partition", "record"])
@pytest.mark.parametrize(("size", "many"), [(1_500_000, 13), (100_000, 200), (7_000_000, 4)])
def test_refused_copies_of_one_partition_leave_the_room_to_all_others(about: str, size: int, many: int) -> None:
    """Given the room of the defaults, then each of 160 good records is delivered as soon as it is there."""
    rig, position = Rig(concurrency=256, room=16 << 20), 0
    rig.assign(ORDERS, OTHER)
    for good in range(160):
        if not rig.lane.room.is_full_with(0) and rig.part().paused is None and position < many:
            rig.take(record(position, value=b"x" * size))
            position += 1
        assert not rig.lane.room.is_full_with(0)
        rig.take_offsets([good], OTHER)
        assert rig.part(OTHER).paused is None
        while rig.sent:
            rig.answer(COMMITTED if rig.sent[0].record.source == OTHER else REFUSED)
        rig.run(100)
        while rig.batches:
            batch = rig.batches[0]
            rig.conclude(refused=[(entry, about) for entry in batch.entries])
    assert rig.part().blocked
    assert len([sent for sent in rig.history if sent.record.source == OTHER]) == 160
    assert rig.lane.room.load <= (16 << 20) + (16 << 20) // REFUSED_SHARE + size
    while rig.lane.machines.outbox.refused:  # the operator has repaired it
        rig.settle()
    rig.run(LAST_TRY_MS)
    assert (rig.part().blocked, rig.part().paused, rig.lane.room.load) == ("", None, 0)
    done = {sent.record.offset for sent in rig.history if sent.record.source == ORDERS}
    assert rig.part().offsets.first == len(done), "what was let go is fetched again"


def test_each_partition_with_refused_copies_has_a_share_and_more_of_them_make_it_smaller() -> None:
    rig, size = Rig(concurrency=64, room=16 << 20), 900_000
    sources = [Partition("orders", number) for number in range(8)]
    rig.assign(*sources)
    for source in sources[:7]:
        rig.take(record(0, source=source, value=b"x" * size))
        rig.answer(REFUSED)
        rig.run(25)
        while rig.batches:
            rig.conclude(refused=[(entry, "record") for entry in rig.batches[0].entries])
    blocked = [source.number for source in sources if rig.part(source).blocked]
    assert blocked == list(range(7)), "together they have more than half of the bytes for refused copies"
    while rig.batches or len(rig.lane.machines.outbox.refused) > 4:
        rig.run(25)
        while rig.batches:
            rig.conclude()
    assert [source.number for source in sources if rig.part(source).blocked] == []


def test_a_partition_that_is_stopped_and_goes_on_is_told_with_the_number_of_its_copies() -> None:
    rig = stopped()
    rig.answer_all()
    assert rig.told == [("blocked", ORDERS, 1, 0)]
    rig.run(FIRST_TRY_MS)
    rig.conclude()
    assert rig.told[1:] == [("unblocked", ORDERS, 0, 3)]


@pytest.mark.parametrize("about", ["partition", "record"])
def test_a_partition_goes_on_when_its_topic_refuses_less_than_before(about: str) -> None:
    """The topic was missing, and is there now: a partition of it has no leader yet, or the record is too large."""
    rig = stopped(OTHER)
    rig.answer_all()
    rig.run(FIRST_TRY_MS)
    rig.conclude(refused=[(rig.batches[0].entries[0], about)])
    assert rig.part().blocked == ""
    assert rig.part().paused is None


def test_a_topic_that_is_there_again_does_not_free_a_partition_that_waits_for_another_one() -> None:
    rig = Rig(concurrency=2)
    rig.assign(ORDERS, OTHER)
    for source in (ORDERS, OTHER):
        rig.take_offsets([0], source)
        rig.answer(BAD)
        rig.run(25)
        batch = rig.batches.pop(0)
        refusal = Refusal(batch.entries[0], "topic", "missing", f"level of {source}")
        rig.lane.committed(CommitResult(batch, False, refused=(refusal,)), rig.now)
    rig.run(FIRST_TRY_MS)
    assert rig.batches[0].entries[0].record.source == ORDERS
    rig.conclude()
    assert (rig.part(ORDERS).blocked, rig.part(OTHER).blocked) == ("", "missing")


# --- at a rebalance --------------------------------------------------------------------------------------------------


def test_a_held_entry_does_not_hold_up_a_rebalance() -> None:
    rig = stopped()
    rig.answer_all()
    given_up = rig.release(ORDERS)
    rig.conclude()
    assert rig.kafka[ORDERS] == Progress(0, frozenset({1, 2}), clean=True)
    assert given_up
    assert rig.lane.room.taken == 0


def test_an_entry_that_is_refused_while_its_partition_is_given_up_does_not_hold_it_up() -> None:
    rig = Rig(concurrency=1)
    rig.assign(ORDERS)
    rig.take_offsets([0])
    rig.answer(BAD)
    rig.run(25)
    given_up = rig.release(ORDERS)
    rig.conclude(refused=[(rig.batches[0].entries[0], "topic")])
    assert rig.conclude().commits[ORDERS].progress == Progress(0, clean=True)
    assert given_up
    assert not rig.lane.machines.outbox.refused


def test_a_held_entry_that_is_being_tried_as_its_partition_is_given_up_is_waited_for() -> None:
    rig = stopped(offsets=1)
    rig.run(FIRST_TRY_MS)
    assert rig.batches[0].alone
    given_up = rig.release(ORDERS)
    assert not given_up
    rig.conclude()
    if rig.batches:
        rig.conclude()
    assert given_up
    assert rig.lane.room.taken == 0


def test_a_held_entry_that_is_refused_again_as_its_partition_is_given_up_is_left_to_the_next_owner() -> None:
    rig = stopped(offsets=1)
    rig.run(FIRST_TRY_MS)
    given_up = rig.release(ORDERS)
    rig.conclude(refused=[(rig.batches[0].entries[0], "topic")])
    assert rig.conclude().commits[ORDERS].progress == Progress(0, clean=True)
    assert given_up


def test_a_held_entry_of_a_partition_that_was_lost_is_never_written() -> None:
    rig = stopped(offsets=1)
    rig.run(FIRST_TRY_MS)
    rig.lane.ownership.lose_partitions([ORDERS])
    rig.conclude(again=[])
    rig.assign(ORDERS, epoch=2)
    assert not rig.settle()
    assert not rig.lane.machines.outbox.refused


def test_a_partition_that_takes_nothing_holds_only_the_records_that_go_there() -> None:
    """A level partition without a leader: the other records of the source partition go on."""
    rig = Rig(concurrency=2)
    rig.assign(ORDERS)
    rig.take_offsets(range(6))
    refused(rig, "partition")
    rig.answer_all()
    assert len(rig.history) == 6
    assert rig.part().blocked == ""


def test_with_too_many_refused_records_a_partition_stops_and_others_go_on() -> None:
    rig = Rig(concurrency=2 * MOST_REFUSED)
    rig.assign(ORDERS, OTHER)
    rig.take_offsets(range(3 * MOST_REFUSED))
    for _ in range(MOST_REFUSED + 1):
        rig.answer(BAD)
    rig.run(25)
    while rig.batches:
        rig.conclude(refused=[(entry, "partition") for entry in rig.batches[0].entries])
        rig.run(25)
    assert rig.part().blocked == "too many of its copies are refused"
    rig.take_offsets(range(5), OTHER)
    rig.answer_all()
    assert len([sent for sent in rig.history if sent.record.source == OTHER]) == 5


def test_where_nothing_can_go_one_record_is_tried_for_all() -> None:
    """Each try costs the committer a second, in which nothing else is committed."""
    rig = Rig(concurrency=8)
    rig.assign(ORDERS)
    rig.take_offsets(range(8))
    for _ in range(8):
        rig.answer(BAD)
    tried = []
    for _ in range(200):
        rig.run(100)
        while rig.batches:
            entries = rig.batches[0].entries
            tried += [(rig.now.steady_ms, len(entries))] if entries else []
            rig.conclude(refused=[(entry, "partition") for entry in entries])
    assert tried[0][1] + tried[1][1] == 8
    assert {size for _, size in tried[2:]} == {1}
    assert len(tried) < 20, "in 20 s, with a pause of up to 5 s between two"


def test_a_batch_that_kafka_refuses_without_a_name_is_sent_apart() -> None:
    rig = Rig(concurrency=8)
    rig.assign(ORDERS)
    rig.take_offsets(range(8))
    for _ in range(8):
        rig.answer(BAD)
    sizes = []
    rig.run(25)
    for _ in range(40):
        while rig.batches:
            batch = rig.batches.pop(0)
            sizes += [len(batch.entries)] if batch.entries else []
            bad = [entry for entry in batch.entries if entry.record.offset == 5]
            if not bad:
                rig.lane.committed(CommitResult(batch, committed=True, done=batch.entries), rig.now)
            elif len(batch.entries) == 1:
                refusal = Refusal(bad[0], "record", "refused")
                rig.lane.committed(CommitResult(batch, committed=False, refused=(refusal,)), rig.now)
            else:
                rig.lane.committed(CommitResult(batch, committed=False, again=batch.entries, apart=True), rig.now)
        rig.run(25)
    assert max(sizes) > min(sizes) == 1
    assert rig.part().offsets.snapshot() == Progress(5, frozenset({6, 7}))


def test_with_as_many_refused_records_as_may_be_held_a_partition_goes_on() -> None:
    rig = Rig(concurrency=2 * MOST_REFUSED)
    rig.assign(ORDERS, OTHER)
    for source in (ORDERS, OTHER):
        rig.take_offsets(range(MOST_REFUSED), source)
    rig.answer_all(BAD)
    rig.run(25)
    while rig.batches and not rig.batches[0].alone:
        rig.conclude(refused=[(entry, "partition") for entry in rig.batches[0].entries])
        rig.run(25)
    assert len(rig.lane.machines.outbox.refused) == 2 * MOST_REFUSED
    assert [rig.part(source).blocked for source in (ORDERS, OTHER)] == ["", ""]


def test_a_partition_that_has_stopped_goes_on_once_a_quarter_of_what_it_may_hold_is_free() -> None:
    """At one bound it would stop and be sought anew for every copy."""
    rig = Rig(concurrency=2 * MOST_REFUSED)
    rig.assign(ORDERS)
    rig.take_offsets(range(MOST_REFUSED + 1))
    rig.answer_all(BAD)
    rig.run(25)
    while len(rig.lane.machines.outbox.refused) <= MOST_REFUSED:
        rig.conclude(refused=[(entry, "record") for entry in rig.batches[0].entries])
        rig.run(25)
    blocked = {MOST_REFUSED + 1: rig.part().blocked}
    while rig.lane.machines.outbox.refused:
        rig.run(25)
        while rig.batches:  # one at a time, as each of them is large
            rig.conclude()
            blocked[len(rig.lane.machines.outbox.refused)] = rig.part().blocked
    assert {count for count, why in blocked.items() if why} == set(range(MOST_REFUSED * 3 // 4 + 1, MOST_REFUSED + 2))


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [(BAD, BAD.reason), (REFUSED, REFUSED.reason), (EXPIRED, "lease-expired")],
    ids=["to be retried", "to be dead", "lease expired"],
)
def test_an_attempt_that_failed_is_counted_by_its_reason(outcome: Outcome, reason: str) -> None:
    rig = Rig()
    rig.assign(ORDERS)
    rig.take_offsets([0])
    rig.answer(outcome)
    assert rig.lane.counters.failures.by_cause == {("orders", reason): 1}


def test_a_lost_partition_takes_the_bytes_of_its_refused_copies_with_it() -> None:
    rig = Rig(concurrency=8)
    rig.assign(ORDERS, OTHER)
    for source in (ORDERS, OTHER):
        rig.take_offsets(range(4), source)
    rig.answer_all(BAD)
    rig.run(25)
    while rig.batches:
        rig.conclude(refused=[(entry, "partition") for entry in rig.batches[0].entries])
        rig.run(25)
    before = rig.lane.room.refused_bytes.total()
    rig.lane.ownership.lose_partitions([ORDERS])
    assert rig.lane.room.refused_bytes.total() == before // 2
    rig.lane.room.check()
