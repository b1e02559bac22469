"""When the next transaction starts, and what it holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.commit_batch import Refusal, SettledRecord
from sidecar.core.decide import Commit
from sidecar.core.lane.outbox import FIRST_RETRY, GROUP_FOR, GROUP_MAX, GROUP_MOST, PROGRESS_EVERY, Outbox
from sidecar.core.lane.partition import PartitionState
from sidecar.core.progress import Progress, Tracker
from sidecar.core.record import NEVER, Now, Partition
from tests.sim.samples import ORDERS, record

OTHER = Partition("orders", 1)


def entry(offset: int, source: Partition = ORDERS) -> SettledRecord:
    return SettledRecord(record(offset, source=source), Commit(None), ())


def parts() -> dict[Partition, PartitionState]:
    return {source: PartitionState(source, 1, Tracker(Progress(0)), None, "main") for source in (ORDERS, OTHER)}


def taken(outbox: Outbox, steady: int) -> list[int]:
    batch = outbox.take(parts(), Now(0, steady))
    return [] if batch is None else [entry.record.offset for entry in batch.entries]


def test_an_entry_waits_a_moment_after_the_end_of_the_last_batch() -> None:
    outbox = Outbox()
    outbox.ended(Now(0, 1_000))
    outbox.add(entry(0))
    assert outbox.next_at(False) == 1_000 + GROUP_FOR


def test_under_load_a_full_batch_does_not_wait() -> None:
    outbox = Outbox()
    outbox.ended(Now(0, 1_000))
    for offset in range(GROUP_MAX):
        outbox.add(entry(offset))
    assert outbox.next_at(False) == 1_000


def test_nothing_starts_while_a_batch_is_out_or_nothing_is_to_be_done() -> None:
    outbox = Outbox()
    assert outbox.next_at(False) == NEVER
    assert taken(outbox, 0) == []
    assert outbox.out is None
    outbox.add(entry(0))
    assert taken(outbox, 5_000) == [0]
    outbox.add(entry(1))
    assert outbox.next_at(True) == NEVER


def test_a_batch_has_a_bound_and_keeps_the_order() -> None:
    outbox = Outbox()
    for offset in range(GROUP_MOST + 3):
        outbox.add(entry(offset))
    assert taken(outbox, 0) == list(range(GROUP_MOST))
    outbox.ended(Now(0, 30))
    assert taken(outbox, 60) == [GROUP_MOST, GROUP_MOST + 1, GROUP_MOST + 2]


def test_mere_progress_goes_once_a_second() -> None:
    outbox = Outbox()
    outbox.take({}, Now(0, 10_000))
    assert outbox.next_at(True) == 10_000 + PROGRESS_EVERY


def test_each_partition_has_its_share_with_what_the_batch_settles() -> None:
    outbox, mine = Outbox(), parts()
    for source in mine:
        for offset in range(4):
            mine[source].tracker.begin(offset)
    outbox.add(entry(0))
    outbox.add(entry(2, OTHER))
    batch = outbox.take(mine, Now(0, 0))
    assert batch is not None
    assert batch.commits[ORDERS].progress == Progress(1)
    assert batch.commits[OTHER].progress == Progress(0, frozenset({2}))


def one_batch(outbox: Outbox, fate: str, steady: int) -> list[int]:
    """Take a batch and let it have its fate; the offsets that are in Kafka now."""
    batch = outbox.take(parts(), Now(0, steady))
    if batch is None:
        return []
    outbox.ended(Now(0, steady))
    if fate == "again":
        outbox.again(batch.entries)
    elif fate == "refuse":
        for refused in batch.entries:
            outbox.refuse(Refusal(refused, "topic", "t"), Now(0, steady))
    else:
        for written in batch.entries:
            outbox.accepted(written)
        return [written.record.offset for written in batch.entries]
    return []


@given(st.lists(st.sampled_from(["add", "done", "again", "refuse", "release", "lose"]), max_size=60))
def test_each_entry_is_written_once_and_none_is_forgotten_but_by_a_rebalance(story: list[str]) -> None:
    outbox, added, done = Outbox(), 0, list[int]()
    for steady, step in enumerate([*story, *["done"] * 100]):
        if step == "add":
            outbox.add(entry(added, OTHER if added % 3 == 0 else ORDERS))
            added += 1
        elif step == "release":
            outbox.drop_held([OTHER])
        elif step == "lose":
            outbox.drop([OTHER])
        else:
            done += one_batch(outbox, step, 6_000 * steady)
    assert len(done) == len(set(done))
    assert {offset for offset in range(added) if offset % 3} <= set(done)
    assert not outbox.held


def refusing(*refusals: Refusal) -> Outbox:
    """An outbox that holds these, refused at 0 ms."""
    outbox = Outbox()
    for refusal in refusals:
        outbox.refuse(refusal, Now(0, 0))
    return outbox


def test_an_entry_that_was_never_refused_lets_no_other_go() -> None:
    outbox = refusing(Refusal(entry(0), "topic", "missing", "DLQ"))
    outbox.accepted(entry(1))
    assert [offset for _, offset in outbox.held] == [0]


def test_a_target_that_takes_one_entry_is_given_all_that_it_refused_at_once() -> None:
    outbox = refusing(
        Refusal(entry(0), "topic", "missing", "DLQ"),
        Refusal(entry(1, OTHER), "topic", "missing", "DLQ"),
        Refusal(entry(2), "topic", "missing", "5s"),
        Refusal(entry(3), "record", "too large", "DLQ"),
    )
    outbox.accepted(entry(0))
    assert taken(outbox, 1) == [1]
    assert [offset for _, offset in outbox.held] == [2, 3]


def test_a_target_that_took_an_entry_is_asked_at_once_for_what_it_refuses_next() -> None:
    """Given an entry that waited long for its target, then another of that target waits no longer than a first one."""
    outbox = refusing(*[Refusal(entry(0), "topic", "missing", "DLQ")] * 4)
    outbox.accepted(entry(0))
    outbox.refuse(Refusal(entry(1), "topic", "missing", "DLQ"), Now(0, 1))
    assert outbox.next_at(False) == 1 + FIRST_RETRY


@pytest.mark.parametrize("about", ["record", "place"])
def test_a_topic_that_refuses_less_than_before_is_given_all_that_it_refused_at_once(about: str) -> None:
    """It was missing. Now it refuses one record, or one of its partitions has no leader."""
    outbox = refusing(*(Refusal(entry(offset), "topic", "missing", "DLQ") for offset in range(3)))
    outbox.refuse(Refusal(entry(0), about, "refused", "DLQ[0]"), Now(0, 600))  # type: ignore[arg-type]
    assert [offset for _, offset in outbox.held] == [0]
    assert taken(outbox, 601) == [1, 2]


def test_a_commit_says_how_wide_the_topic_was_and_when_its_last_record_came() -> None:
    outbox, mine = Outbox(), parts()
    mine[ORDERS].width, mine[OTHER].last_at = 3, 77
    for part in mine.values():
        part.dirty = True
    batch = outbox.take(mine, Now(0, 0))
    assert batch is not None
    assert batch.commits[ORDERS].progress == Progress(0, width=3)
    assert batch.commits[OTHER].progress == Progress(0, last_at=77)
    assert not any(part.dirty for part in mine.values())


def test_a_refused_entry_and_the_progress_of_others_take_turns() -> None:
    """Given an entry that is refused each time, then the progress of a partition is not kept back by it for ever."""
    outbox, mine = refusing(Refusal(entry(0), "record", "too large")), parts()
    mine[OTHER].tracker.begin(0)
    mine[OTHER].tracker.finish(0)
    mine[OTHER].dirty = True
    seen = []
    for steady in (10_000, 20_000, 30_000):
        batch = outbox.take(mine, Now(0, steady))
        assert batch is not None
        seen.append((batch.alone, sorted(batch.commits)))
        outbox.ended(Now(0, steady))
        for refused in batch.entries:
            outbox.refuse(Refusal(refused, "record", "too large"), Now(0, steady))
    assert seen == [(True, [ORDERS]), (False, [OTHER]), (True, [ORDERS])]


def test_progress_that_nobody_moved_lets_a_refused_entry_go_each_time() -> None:
    outbox = refusing(Refusal(entry(0), "record", "too large"))
    for steady in (10_000, 20_000):
        assert taken(outbox, steady) == [0]
        outbox.ended(Now(0, steady))
        outbox.refuse(Refusal(entry(0), "record", "too large"), Now(0, steady))


def test_a_batch_that_kafka_refuses_without_a_name_is_halved_until_one_is_taken() -> None:
    outbox = Outbox()
    for offset in range(40):
        outbox.add(entry(offset))
    batch = outbox.take(parts(), Now(0, 0))
    assert batch is not None
    outbox.ended(Now(0, 0))
    outbox.apart(batch)
    outbox.again(batch.entries)
    assert taken(outbox, 1_000) == list(range(20))
    outbox.ended(Now(0, 1_000), committed=True)
    for offset in range(40, 100):
        outbox.add(entry(offset))
    assert taken(outbox, 2_000) == list(range(20, 60))


def test_an_entry_that_is_forgotten_is_held_no_more() -> None:
    outbox = refusing(Refusal(entry(0), "record", "too large"), Refusal(entry(1), "record", "too large"))
    outbox.forget(entry(0))
    assert [offset for _, offset in outbox.held] == [1]
