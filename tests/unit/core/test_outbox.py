"""When the next transaction starts, what it holds, and how often what Kafka refuses is tried (7.1, 7.2, 7.6, 7.7)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.sidecar.core.agenda import Agenda
from reconsume.sidecar.core.commit_batch import CommitResult, Refusal, SettledRecord
from reconsume.sidecar.core.outbox import (
    BATCH_FOR_MS,
    BATCH_MAX,
    BATCH_MOST,
    COMMIT,
    FIRST_TRY_MS,
    LAST_TRY_MS,
    PROGRESS_EVERY_MS,
    Commits,
    Outbox,
    Proof,
)
from reconsume.sidecar.core.outcome import COMMITTED, Failed
from reconsume.sidecar.core.partition import OUT, SETTLED, Kind, PartitionState
from reconsume.sidecar.core.progress import Bounds, LogId, Progress
from reconsume.sidecar.core.record import NEVER, Now, Partition
from reconsume.topics.transitions import Commit
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, record

OTHER = Partition("orders", 1)


def entry(offset: int, source: Partition = ORDERS) -> SettledRecord:
    return SettledRecord(record(offset, source=source), Commit(None), ())


def partition(source: Partition, progress: Progress = Progress(0)) -> PartitionState:  # noqa: B008 - it is a constant
    return PartitionState(source, 1, Kind("main", None), progress, Bounds())


class Outgoing:
    """The commits of two partitions, of whose settled records and times a test says what they are."""

    def __init__(self, *partitions: PartitionState) -> None:
        self.parts = {one.source: one for one in partitions or map(partition, (ORDERS, OTHER))}
        self.outbox, self.agenda = Outbox(), Agenda(lambda _at_ms: None)
        self.commits = Commits(self.parts, self.outbox, self.agenda, Proof.PROVEN)


def taken(out: Outgoing, steady: int) -> list[int]:
    batch = out.commits.take_batch(Now(0, steady))
    return [] if batch is None else [entry.record.offset for entry in batch.entries]


def test_an_entry_waits_a_moment_after_the_end_of_the_last_batch() -> None:
    out = Outgoing()
    out.commits.end_batch(Now(0, 1_000), committed=False)
    out.outbox.pending.append(entry(0))
    assert out.commits.next_at() == 1_000 + BATCH_FOR_MS


def test_under_load_a_full_batch_does_not_wait() -> None:
    out = Outgoing()
    out.commits.end_batch(Now(0, 1_000), committed=False)
    for offset in range(BATCH_MAX):
        out.outbox.pending.append(entry(offset))
    assert out.commits.next_at() == 1_000


def test_nothing_starts_while_a_batch_is_out_or_nothing_is_to_be_done() -> None:
    out = Outgoing()
    assert out.commits.next_at() == NEVER
    assert taken(out, 0) == []
    assert out.commits.in_flight is None
    out.outbox.pending.append(entry(0))
    assert taken(out, 5_000) == [0]
    out.outbox.pending.append(entry(1))
    assert out.commits.next_at() == NEVER


def test_a_batch_has_a_bound_and_keeps_the_order() -> None:
    out = Outgoing()
    for offset in range(BATCH_MOST + 3):
        out.outbox.pending.append(entry(offset))
    assert taken(out, 0) == list(range(BATCH_MOST))
    out.commits.end_batch(Now(0, 30), committed=False)
    assert taken(out, 60) == [BATCH_MOST, BATCH_MOST + 1, BATCH_MOST + 2]


def test_mere_progress_goes_once_a_second() -> None:
    out = Outgoing()
    out.commits.take_batch(Now(0, 10_000))
    assert out.commits.next_at() == NEVER
    for part in out.parts.values():
        out.commits.soon(part)
    assert out.commits.next_at() == 10_000 + PROGRESS_EVERY_MS
    assert out.agenda.time_of(COMMIT) == 10_000 + PROGRESS_EVERY_MS


def test_what_waits_for_its_commit_does_not_take_the_progress_of_others_along() -> None:
    out = Outgoing()
    out.commits.take_batch(Now(0, 10_000))
    out.commits.soon(out.parts[ORDERS])
    out.commits.at_once(out.parts[OTHER])
    assert out.agenda.time_of(COMMIT) == out.commits.next_at() == 0
    batch = out.commits.take_batch(Now(0, 10_100))
    assert batch is not None
    assert set(batch.commits) == {OTHER}
    out.commits.end_batch(Now(0, 10_110), committed=True)
    assert out.commits.next_at() == 10_000 + PROGRESS_EVERY_MS


def test_a_partition_that_is_given_up_waits_for_its_last_answer_and_then_for_no_second() -> None:
    out = Outgoing()
    out.commits.take_batch(Now(0, 10_000))
    part = out.parts[ORDERS]
    part.offsets.begin(0, OUT, record(0))
    part.closing = True
    out.commits.soon(part)
    assert out.commits.next_at() == 10_000 + PROGRESS_EVERY_MS
    part.offsets.finish(0)
    out.commits.soon(part)
    assert out.commits.next_at() == 0


def test_progress_that_kafka_does_not_take_has_a_time_of_its_own_and_stops_no_other() -> None:
    """Given a partition whose progress is refused, then nothing asks for a batch until its try, and then it counts."""
    out = Outgoing()
    out.commits.take_batch(Now(0, 10_000))
    out.outbox.refuse_progress(ORDERS, "not allowed", Now(0, 10_000))
    out.commits.at_once(out.parts[ORDERS])
    assert out.commits.take_batch(Now(0, 10_001)) is None
    assert out.commits.next_at() == 10_000 + FIRST_TRY_MS
    tried = out.commits.take_batch(Now(0, out.commits.next_at()))
    assert tried is not None
    assert (tried.alone, set(tried.commits)) == (True, {ORDERS})
    out.commits.end_batch(Now(0, 12_000), committed=True)
    out.commits.soon(out.parts[ORDERS])
    out.commits.progress_accepted([ORDERS])
    assert out.commits.next_at() <= 12_000 + PROGRESS_EVERY_MS


def test_each_partition_has_its_share_with_what_the_batch_settles() -> None:
    out = Outgoing()
    mine = out.parts
    for source in mine:
        for offset in range(4):
            mine[source].offsets.begin(offset, OUT, record(offset))
    out.outbox.pending.append(entry(0))
    out.outbox.pending.append(entry(2, OTHER))
    batch = out.commits.take_batch(Now(0, 0))
    assert batch is not None
    assert batch.commits[ORDERS].progress == Progress(1)
    assert batch.commits[OTHER].progress == Progress(0, frozenset({2}))


def one_batch(out: Outgoing, fate: str, steady: int) -> list[int]:
    """Take a batch and let it have its fate; the offsets that are in Kafka now."""
    batch = out.commits.take_batch(Now(0, steady))
    if batch is None:
        return []
    out.commits.end_batch(Now(0, steady), committed=False)
    if fate == "again":
        out.outbox.put_back(batch.entries)
    elif fate == "refuse":
        for refused in batch.entries:
            out.outbox.refuse_entry(Refusal(refused, "topic", "t"), Now(0, steady))
    else:
        for written in batch.entries:
            out.outbox.entry_accepted(written)
        return [written.record.offset for written in batch.entries]
    return []


@given(st.lists(st.sampled_from(["add", "done", "again", "refuse", "release", "lose"]), max_size=60))
def test_each_entry_is_written_once_and_none_is_forgotten_but_by_a_rebalance(story: list[str]) -> None:
    out, added, done = Outgoing(), 0, list[int]()
    for steady, step in enumerate([*story, *["done"] * 100]):
        if step == "add":
            out.outbox.pending.append(entry(added, OTHER if added % 3 == 0 else ORDERS))
            added += 1
        elif step == "release":
            out.outbox.forget_refused([OTHER], out.commits.in_flight)
        elif step == "lose":
            out.outbox.drop_partitions([OTHER])
        else:
            done += one_batch(out, step, 6_000 * steady)
    assert len(done) == len(set(done))
    assert {offset for offset in range(added) if offset % 3} <= set(done)
    assert not out.outbox.refused


def refusing(*refusals: Refusal) -> Outgoing:
    """An outbox that holds these, refused at 0 ms."""
    out = Outgoing()
    for refusal in refusals:
        out.outbox.refuse_entry(refusal, Now(0, 0))
    return out


def test_an_entry_that_was_never_refused_lets_no_other_go() -> None:
    out = refusing(Refusal(entry(0), "topic", "missing", "DLQ"))
    out.outbox.entry_accepted(entry(1))
    assert [offset for _, offset in out.outbox.refused] == [0]


def test_a_target_that_takes_one_entry_is_given_all_that_it_refused_at_once() -> None:
    out = refusing(
        Refusal(entry(0), "topic", "missing", "DLQ"),
        Refusal(entry(1, OTHER), "topic", "missing", "DLQ"),
        Refusal(entry(2), "topic", "missing", "5s"),
        Refusal(entry(3), "record", "too large", "DLQ"),
    )
    out.outbox.entry_accepted(entry(0))
    assert taken(out, 1) == [1]
    assert [offset for _, offset in out.outbox.refused] == [2, 3]


def test_a_target_that_took_an_entry_is_asked_at_once_for_what_it_refuses_next() -> None:
    """Given an entry that waited long for its target, then another of that target waits no longer than a first one."""
    out = refusing(*[Refusal(entry(0), "topic", "missing", "DLQ")] * 4)
    out.outbox.entry_accepted(entry(0))
    out.outbox.refuse_entry(Refusal(entry(1), "topic", "missing", "DLQ"), Now(0, 1))
    assert out.commits.next_at() == 1 + FIRST_TRY_MS


@pytest.mark.parametrize("about", ["record", "partition"])
def test_a_topic_that_refuses_less_than_before_is_given_all_that_it_refused_at_once(about: str) -> None:
    """It was missing. Now it refuses one record, or one of its partitions has no leader."""
    out = refusing(*(Refusal(entry(offset), "topic", "missing", "DLQ") for offset in range(3)))
    out.outbox.refuse_entry(Refusal(entry(0), about, "refused", "DLQ[0]"), Now(0, 600))  # type: ignore[arg-type]
    assert [offset for _, offset in out.outbox.refused] == [0]
    assert taken(out, 601) == [1, 2]


def test_a_commit_says_how_wide_the_topic_was_and_when_its_last_record_came() -> None:
    out = Outgoing(partition(ORDERS, Progress(0, width=3)), partition(OTHER, Progress(0, last_at_ms=77)))
    mine = out.parts
    for part in mine.values():
        out.commits.soon(part)
    batch = out.commits.take_batch(Now(0, 0))
    assert batch is not None
    assert batch.commits[ORDERS].progress == Progress(0, width=3)
    assert batch.commits[OTHER].progress == Progress(0, last_at_ms=77)
    assert {part.commit.by_ms for part in mine.values()} == {NEVER}


def test_a_refused_entry_and_the_progress_of_others_take_turns() -> None:
    """Given an entry that is refused each time, then the progress of a partition is not kept back by it for ever."""
    out = refusing(Refusal(entry(0), "record", "too large"))
    mine = out.parts
    mine[OTHER].offsets.begin(0, OUT, record(0))
    mine[OTHER].offsets.finish(0)
    out.commits.soon(mine[OTHER])
    seen = []
    for steady in (10_000, 20_000, 30_000):
        batch = out.commits.take_batch(Now(0, steady))
        assert batch is not None
        seen.append((batch.alone, sorted(batch.commits)))
        out.commits.end_batch(Now(0, steady), committed=False)
        for refused in batch.entries:
            out.outbox.refuse_entry(Refusal(refused, "record", "too large"), Now(0, steady))
    assert seen == [(True, [ORDERS]), (False, [OTHER]), (True, [ORDERS])]


def test_progress_that_nobody_moved_lets_a_refused_entry_go_each_time() -> None:
    out = refusing(Refusal(entry(0), "record", "too large"))
    for steady in (10_000, 20_000):
        assert taken(out, steady) == [0]
        out.commits.end_batch(Now(0, steady), committed=False)
        out.outbox.refuse_entry(Refusal(entry(0), "record", "too large"), Now(0, steady))


def test_a_batch_that_kafka_refuses_without_a_name_is_halved_until_one_is_taken() -> None:
    out = Outgoing()
    for offset in range(40):
        out.outbox.pending.append(entry(offset))
    batch = out.commits.take_batch(Now(0, 0))
    assert batch is not None
    out.commits.end_batch(Now(0, 0), committed=False)
    out.commits.halve(batch)
    out.outbox.put_back(batch.entries)
    assert taken(out, 1_000) == list(range(20))
    out.commits.end_batch(Now(0, 1_000), committed=True)
    for offset in range(40, 100):
        out.outbox.pending.append(entry(offset))
    assert taken(out, 2_000) == list(range(20, 60))


def test_an_entry_that_is_forgotten_is_held_no_more() -> None:
    out = refusing(Refusal(entry(0), "record", "too large"), Refusal(entry(1), "record", "too large"))
    out.outbox.forget_entry(entry(0))
    assert [offset for _, offset in out.outbox.refused] == [1]


# --- progress that Kafka refuses holds up its own partition alone, and is tried until Kafka takes it -----------------


BAD = Failed("http-500")
THIRD = Partition("orders", 2)


def lane(*sources: Partition) -> Rig:
    """A lane with records of each partition at the service."""
    rig = Rig(concurrency=8)
    rig.assign(*sources)
    for source in sources:
        rig.take_offsets(range(2), source)
    return rig


def settle(rig: Rig, ms: int, denied: Iterable[Partition], most: int = 1_000) -> None:
    """Let time pass, while Kafka refuses the progress of some partitions, by name, and more than `most` at once."""
    for _ in range(ms // 50):
        while rig.batches:
            batch = rig.batches[0]
            refused = [source for source in batch.commits if source in denied]
            too_many = len(batch.commits) > most
            rig.conclude(unwritable=refused) if refused or too_many else rig.conclude()
        rig.run(50)


def committed(rig: Rig, source: Partition) -> int:
    """The next offset that Kafka has."""
    return rig.kafka[source].next if source in rig.kafka else 0


@pytest.mark.parametrize("outcome", [COMMITTED, BAD], ids=["done", "failed"])
def test_the_progress_and_the_copies_of_all_others_go_on(outcome: object) -> None:
    rig = lane(ORDERS, OTHER, THIRD)
    rig.answer_all(outcome)  # type: ignore[arg-type]
    settle(rig, 2_000, {ORDERS})
    assert [committed(rig, source) for source in (ORDERS, OTHER, THIRD)] == [0, 2, 2]
    assert rig.part().blocked == "its progress is refused: no right"
    rig.take_offsets(range(2, 4), OTHER)
    rig.answer_all(outcome)  # type: ignore[arg-type]
    settle(rig, 2_000, {ORDERS})
    assert committed(rig, OTHER) == 4


@pytest.mark.parametrize("outcome", [COMMITTED, BAD], ids=["done", "failed"])
def test_what_was_settled_meanwhile_is_in_kafka_once_it_takes_the_progress_again(outcome: object) -> None:
    rig = lane(ORDERS, OTHER)
    rig.answer(BAD)
    settle(rig, 1_500, {ORDERS})
    rig.answer_all(outcome)  # type: ignore[arg-type]
    settle(rig, 20_000, {ORDERS})
    deliveries = len(rig.history)
    settle(rig, LAST_TRY_MS + 100, ())
    assert committed(rig, ORDERS) == 2
    assert (rig.part().blocked, rig.part().offsets.counts[SETTLED], len(rig.history)) == ("", 0, deliveries)
    assert rig.lane.room.load == 0
    rig.take_offsets(range(2, 4))
    rig.answer_all()
    settle(rig, 2_000, ())
    assert committed(rig, ORDERS) == 4


def test_nothing_more_of_the_partition_is_delivered_meanwhile() -> None:
    rig = Rig(concurrency=1)
    rig.assign(ORDERS, OTHER)
    rig.take_offsets(range(3))
    rig.answer()
    settle(rig, 1_500, {ORDERS})
    rig.answer_all()
    settle(rig, 5_000, {ORDERS})
    assert len(rig.history) == 2  # one was out already
    rig.take_offsets(range(3), OTHER)
    rig.answer_all()
    assert len(rig.history) == 5


def test_it_is_tried_ever_less_often_and_never_given_up() -> None:
    rig = lane(ORDERS)
    rig.answer_all()
    tries = []
    for _ in range(60 * 20):
        while rig.batches:
            tries.append(rig.now.steady_ms)
            rig.conclude(unwritable=[ORDERS])
        rig.run(50)
    waits = [after - before for before, after in pairwise(tries)]
    assert waits[0] == FIRST_TRY_MS
    assert set(waits[4:]) == {LAST_TRY_MS}


def test_a_revoked_partition_whose_progress_is_refused_does_not_hold_up_the_rebalance() -> None:
    rig = lane(ORDERS, OTHER)
    rig.answer_all()
    settle(rig, 1_500, {ORDERS})
    given_up = rig.release(ORDERS)
    settle(rig, 6_000, {ORDERS})
    assert given_up == ["given up"]
    assert list(rig.lane.partitions) == [OTHER]


@pytest.mark.parametrize("bad", range(5))
def test_refused_progress_without_a_name_is_found_by_halves(bad: int) -> None:
    sources = [Partition("orders", number) for number in range(5)]
    rig = lane(*sources)
    rig.answer_all()
    for _ in range(200):
        while rig.batches:
            commits = rig.batches[0].commits
            if sources[bad] not in commits:
                rig.conclude()
            elif len(commits) == 1:
                rig.conclude(unwritable=[sources[bad]])
            else:
                rig.conclude(apart=True)
        rig.run(50)
    assert [committed(rig, source) for source in sources] == [0 if n == bad else 2 for n in range(5)]
    assert rig.kafka.get(sources[bad], Progress(0)) == Progress(0)


def test_copies_that_are_refused_too_are_tried_in_turn_and_not_without_a_pause() -> None:
    """Given copies whose topic is missing, when the progress with them is refused as well, then each of them has its
    turn: one was tried again at once, for ever, and the first open record's copy never."""
    rig = Rig(concurrency=8)
    rig.assign(ORDERS)
    rig.take_offsets(range(4))
    for _ in range(3):
        rig.answer(BAD)
    rig.run(50)
    rig.conclude(refused=[(entry, "topic") for entry in rig.batches[0].entries])
    tried = []
    for _ in range(60 * 20):
        while rig.batches:
            tried += [entry.record.offset for entry in rig.batches[0].entries] or [-1]
            assert len(tried) < 100
            rig.conclude(unwritable=[ORDERS])
        rig.run(50)
    assert set(tried) >= {0, 1, 2}


@pytest.mark.parametrize("gone", ["given up", "lost"])
def test_beside_a_partition_that_is_gone_the_others_refused_with_it_are_kept_and_tried_again(gone: str) -> None:
    rig = lane(ORDERS, OTHER, THIRD)
    rig.answer_all()
    rig.run(1_000)
    (batch,) = rig.batches
    assert list(batch.commits) == [ORDERS, OTHER, THIRD]
    if gone == "lost":
        rig.lane.lost([ORDERS])
    else:
        rig.release(ORDERS)
    rig.conclude(unwritable=[ORDERS, OTHER, THIRD])
    assert ORDERS not in rig.lane.partitions
    assert {rig.part(source).blocked for source in (OTHER, THIRD)} == {"its progress is refused: no right"}
    settle(rig, 2_000, ())
    assert [committed(rig, source) for source in (OTHER, THIRD)] == [2, 2]


# --- nothing is delivered before the brokers have taken the longest progress, with a position that -------------------


CALLED_OFF = Progress(3, frozenset({5, 9}), width=2, log=LogId("0a0b0c0d", "deadbeef"), cycle=2)


def unproven(*sources: Partition, resume: Progress = CALLED_OFF) -> Rig:
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
        (replace(CALLED_OFF, clean=True), replace(CALLED_OFF, clean=True)),
        (replace(CALLED_OFF, deaths=2, mark=4, reach=6), replace(CALLED_OFF, deaths=2, mark=4, reach=6)),
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
    assert replace(progress, done=frozenset(progress.done)) == replace(CALLED_OFF, next=6, done=frozenset({9})), (
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
