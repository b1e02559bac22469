"""When the next transaction starts, and what it holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.core.commit_batch import Refusal, SettledRecord
from reconsume.sidecar.core.lane.commits import BATCH_MOST, PROGRESS_EVERY_MS, Commits
from reconsume.sidecar.core.lane.outbox import BATCH_FOR_MS, BATCH_MAX, FIRST_TRY_MS, Outbox
from reconsume.sidecar.core.lane.partition import LanePartition
from reconsume.sidecar.core.progress import Progress, ProgressTracker
from reconsume.sidecar.core.record import NEVER, Now, Partition
from reconsume.topics.transitions import Commit
from tests.sim.samples import ORDERS, record

OTHER = Partition("orders", 1)


def entry(offset: int, source: Partition = ORDERS) -> SettledRecord:
    return SettledRecord(record(offset, source=source), Commit(None), ())


def parts() -> dict[Partition, LanePartition]:
    return {source: LanePartition(source, 1, ProgressTracker(Progress(0)), None, "main") for source in (ORDERS, OTHER)}


class Outgoing:
    """The commits of two partitions, of whose settled records and times a test says what they are."""

    def __init__(self, outbox: Outbox | None = None) -> None:
        self.parts, self.outbox = parts(), outbox or Outbox()
        self.woken: list[int] = []
        self.commits = Commits(self.parts, self.outbox, self.woken.append)


def taken(out: Outgoing, steady: int) -> list[int]:
    batch = out.commits.take(Now(0, steady))
    return [] if batch is None else [entry.record.offset for entry in batch.entries]


def test_an_entry_waits_a_moment_after_the_end_of_the_last_batch() -> None:
    out = Outgoing()
    out.commits.ended(Now(0, 1_000), committed=False)
    out.outbox.add(entry(0))
    assert out.commits.next_at() == 1_000 + BATCH_FOR_MS


def test_under_load_a_full_batch_does_not_wait() -> None:
    out = Outgoing()
    out.commits.ended(Now(0, 1_000), committed=False)
    for offset in range(BATCH_MAX):
        out.outbox.add(entry(offset))
    assert out.commits.next_at() == 1_000


def test_nothing_starts_while_a_batch_is_out_or_nothing_is_to_be_done() -> None:
    out = Outgoing()
    assert out.commits.next_at() == NEVER
    assert taken(out, 0) == []
    assert out.commits.in_flight is None
    out.outbox.add(entry(0))
    assert taken(out, 5_000) == [0]
    out.outbox.add(entry(1))
    assert out.commits.next_at() == NEVER


def test_a_batch_has_a_bound_and_keeps_the_order() -> None:
    out = Outgoing()
    for offset in range(BATCH_MOST + 3):
        out.outbox.add(entry(offset))
    assert taken(out, 0) == list(range(BATCH_MOST))
    out.commits.ended(Now(0, 30), committed=False)
    assert taken(out, 60) == [BATCH_MOST, BATCH_MOST + 1, BATCH_MOST + 2]


def test_mere_progress_goes_once_a_second() -> None:
    out = Outgoing()
    out.commits.take(Now(0, 10_000))
    assert out.commits.next_at() == NEVER
    for part in out.parts.values():
        out.commits.soon(part)
    assert out.commits.next_at() == 10_000 + PROGRESS_EVERY_MS
    assert out.woken == [10_000 + PROGRESS_EVERY_MS]


def test_what_waits_for_its_commit_does_not_take_the_progress_of_others_along() -> None:
    out = Outgoing()
    out.commits.take(Now(0, 10_000))
    out.commits.soon(out.parts[ORDERS])
    out.commits.at_once(out.parts[OTHER])
    assert out.woken[-1] == out.commits.next_at() == 0
    batch = out.commits.take(Now(0, 10_100))
    assert batch is not None
    assert set(batch.commits) == {OTHER}
    out.commits.ended(Now(0, 10_110), committed=True)
    assert out.commits.next_at() == 10_000 + PROGRESS_EVERY_MS


def test_a_partition_that_is_given_up_waits_for_its_last_answer_and_then_for_no_second() -> None:
    out = Outgoing()
    out.commits.take(Now(0, 10_000))
    part = out.parts[ORDERS]
    part.sent()
    part.close()
    out.commits.soon(part)
    assert out.commits.next_at() == 10_000 + PROGRESS_EVERY_MS
    part.answered()
    out.commits.soon(part)
    assert out.commits.next_at() == 0


def test_progress_that_kafka_does_not_take_has_a_time_of_its_own_and_stops_no_other() -> None:
    """Given a partition whose progress is refused, then nothing asks for a batch until its try, and then it counts."""
    out = Outgoing()
    out.commits.take(Now(0, 10_000))
    out.outbox.unwritable.refuse(ORDERS, "not allowed", 10_000)
    out.commits.at_once(out.parts[ORDERS])
    assert out.commits.take(Now(0, 10_001)) is None
    assert out.commits.next_at() == out.outbox.unwritable.next_at()
    tried = out.commits.take(Now(0, out.commits.next_at()))
    assert tried is not None
    assert (tried.alone, set(tried.commits)) == (True, {ORDERS})
    out.commits.ended(Now(0, 12_000), committed=True)
    out.commits.soon(out.parts[ORDERS])
    out.commits.progress_accepted([ORDERS])
    assert out.commits.next_at() <= 12_000 + PROGRESS_EVERY_MS


def test_each_partition_has_its_share_with_what_the_batch_settles() -> None:
    out = Outgoing()
    mine = out.parts
    for source in mine:
        for offset in range(4):
            mine[source].tracker.begin(offset)
    out.outbox.add(entry(0))
    out.outbox.add(entry(2, OTHER))
    batch = out.commits.take(Now(0, 0))
    assert batch is not None
    assert batch.commits[ORDERS].progress == Progress(1)
    assert batch.commits[OTHER].progress == Progress(0, frozenset({2}))


def one_batch(out: Outgoing, fate: str, steady: int) -> list[int]:
    """Take a batch and let it have its fate; the offsets that are in Kafka now."""
    batch = out.commits.take(Now(0, steady))
    if batch is None:
        return []
    out.commits.ended(Now(0, steady), committed=False)
    if fate == "again":
        out.outbox.put_back(batch.entries)
    elif fate == "refuse":
        for refused in batch.entries:
            out.outbox.refuse(Refusal(refused, "topic", "t"), Now(0, steady))
    else:
        for written in batch.entries:
            out.outbox.accepted(written)
        return [written.record.offset for written in batch.entries]
    return []


@given(st.lists(st.sampled_from(["add", "done", "again", "refuse", "release", "lose"]), max_size=60))
def test_each_entry_is_written_once_and_none_is_forgotten_but_by_a_rebalance(story: list[str]) -> None:
    out, added, done = Outgoing(), 0, list[int]()
    for steady, step in enumerate([*story, *["done"] * 100]):
        if step == "add":
            out.outbox.add(entry(added, OTHER if added % 3 == 0 else ORDERS))
            added += 1
        elif step == "release":
            out.outbox.drop_refused([OTHER], out.commits.in_flight)
        elif step == "lose":
            out.outbox.drop([OTHER])
        else:
            done += one_batch(out, step, 6_000 * steady)
    assert len(done) == len(set(done))
    assert {offset for offset in range(added) if offset % 3} <= set(done)
    assert not out.outbox.refused


def refusing(*refusals: Refusal) -> Outgoing:
    """An outbox that holds these, refused at 0 ms."""
    out = Outgoing()
    for refusal in refusals:
        out.outbox.refuse(refusal, Now(0, 0))
    return out


def test_an_entry_that_was_never_refused_lets_no_other_go() -> None:
    out = refusing(Refusal(entry(0), "topic", "missing", "DLQ"))
    out.outbox.accepted(entry(1))
    assert [offset for _, offset in out.outbox.refused] == [0]


def test_a_target_that_takes_one_entry_is_given_all_that_it_refused_at_once() -> None:
    out = refusing(
        Refusal(entry(0), "topic", "missing", "DLQ"),
        Refusal(entry(1, OTHER), "topic", "missing", "DLQ"),
        Refusal(entry(2), "topic", "missing", "5s"),
        Refusal(entry(3), "record", "too large", "DLQ"),
    )
    out.outbox.accepted(entry(0))
    assert taken(out, 1) == [1]
    assert [offset for _, offset in out.outbox.refused] == [2, 3]


def test_a_target_that_took_an_entry_is_asked_at_once_for_what_it_refuses_next() -> None:
    """Given an entry that waited long for its target, then another of that target waits no longer than a first one."""
    out = refusing(*[Refusal(entry(0), "topic", "missing", "DLQ")] * 4)
    out.outbox.accepted(entry(0))
    out.outbox.refuse(Refusal(entry(1), "topic", "missing", "DLQ"), Now(0, 1))
    assert out.commits.next_at() == 1 + FIRST_TRY_MS


@pytest.mark.parametrize("about", ["record", "partition"])
def test_a_topic_that_refuses_less_than_before_is_given_all_that_it_refused_at_once(about: str) -> None:
    """It was missing. Now it refuses one record, or one of its partitions has no leader."""
    out = refusing(*(Refusal(entry(offset), "topic", "missing", "DLQ") for offset in range(3)))
    out.outbox.refuse(Refusal(entry(0), about, "refused", "DLQ[0]"), Now(0, 600))  # type: ignore[arg-type]
    assert [offset for _, offset in out.outbox.refused] == [0]
    assert taken(out, 601) == [1, 2]


def test_a_commit_says_how_wide_the_topic_was_and_when_its_last_record_came() -> None:
    out = Outgoing()
    mine = out.parts
    mine[ORDERS].width, mine[OTHER].last_at_ms = 3, 77
    for part in mine.values():
        out.commits.soon(part)
    batch = out.commits.take(Now(0, 0))
    assert batch is not None
    assert batch.commits[ORDERS].progress == Progress(0, width=3)
    assert batch.commits[OTHER].progress == Progress(0, last_at_ms=77)
    assert not any(part.uncommitted for part in mine.values())


def test_a_refused_entry_and_the_progress_of_others_take_turns() -> None:
    """Given an entry that is refused each time, then the progress of a partition is not kept back by it for ever."""
    out = refusing(Refusal(entry(0), "record", "too large"))
    mine = out.parts
    mine[OTHER].tracker.begin(0)
    mine[OTHER].tracker.finish(0)
    out.commits.soon(mine[OTHER])
    seen = []
    for steady in (10_000, 20_000, 30_000):
        batch = out.commits.take(Now(0, steady))
        assert batch is not None
        seen.append((batch.alone, sorted(batch.commits)))
        out.commits.ended(Now(0, steady), committed=False)
        for refused in batch.entries:
            out.outbox.refuse(Refusal(refused, "record", "too large"), Now(0, steady))
    assert seen == [(True, [ORDERS]), (False, [OTHER]), (True, [ORDERS])]


def test_progress_that_nobody_moved_lets_a_refused_entry_go_each_time() -> None:
    out = refusing(Refusal(entry(0), "record", "too large"))
    for steady in (10_000, 20_000):
        assert taken(out, steady) == [0]
        out.commits.ended(Now(0, steady), committed=False)
        out.outbox.refuse(Refusal(entry(0), "record", "too large"), Now(0, steady))


def test_a_batch_that_kafka_refuses_without_a_name_is_halved_until_one_is_taken() -> None:
    out = Outgoing()
    for offset in range(40):
        out.outbox.add(entry(offset))
    batch = out.commits.take(Now(0, 0))
    assert batch is not None
    out.commits.ended(Now(0, 0), committed=False)
    out.commits.halve(batch)
    out.outbox.put_back(batch.entries)
    assert taken(out, 1_000) == list(range(20))
    out.commits.ended(Now(0, 1_000), committed=True)
    for offset in range(40, 100):
        out.outbox.add(entry(offset))
    assert taken(out, 2_000) == list(range(20, 60))


def test_an_entry_that_is_forgotten_is_held_no_more() -> None:
    out = refusing(Refusal(entry(0), "record", "too large"), Refusal(entry(1), "record", "too large"))
    out.outbox.forget(entry(0))
    assert [offset for _, offset in out.outbox.refused] == [1]
