"""Failing records wait in a queue topic, in the order of their keys, over any number of owners (contract 5.5, 5.6)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reconsume.sidecar.core.commit_batch import CommitBatch
from reconsume.sidecar.core.copy_reads import KEEP_MS
from reconsume.sidecar.core.order import OrderBy
from reconsume.sidecar.core.outcome import NotSent, Outcome, Postponed, Rejected, Throttled
from reconsume.sidecar.core.partition import AssignedPartition, FetchedRecords
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.reasons import NotFetched
from reconsume.sidecar.core.record import Partition
from reconsume.topics.events import Event, State, decode_event
from reconsume.topics.retry_order import Order
from tests.sim import samples
from tests.sim.ladder_rig import FAIL, QUEUE, WAITS, LadderRig, behind, copies_of, rules, states_of, waiting
from tests.sim.samples import ORDERS


def rig_of(*keys: bytes | None, **more: object) -> LadderRig:
    """A lane that owns a partition whose queue is empty, and was handed records with these keys."""
    rig = LadderRig(**more)  # type: ignore[arg-type]
    rig.take_over()
    rig.settle()
    if keys:
        rig.arrive(*keys)
    return rig


def events_of(rig: LadderRig, batch: CommitBatch) -> list[tuple[State, int]]:
    writes = [copy for entry in batch.entries for copy in entry.writes if copy.topic == rig.policy.names.events]
    read = [decode_event(copy.value) for copy in writes]
    return [(event.state, event.times) for event in read if isinstance(event, Event)]


def committed(rig: LadderRig, ms: int = 20) -> CommitBatch:
    rig.run(ms)
    return rig.conclude()


def test_the_copy_of_a_failure_is_in_the_transaction_of_the_progress_that_its_record_ends() -> None:
    rig = rig_of(b"a", b"a", b"b")
    rig.fail(0)
    due = rig.now.wall_ms + WAITS[0]
    batch = committed(rig)
    (state,) = states_of(batch, rig.policy)
    assert (state.times, state.due_at, state.order, state.behind) == (1, due, Order(0), False)
    assert batch.commits[ORDERS].progress == Progress(1)
    assert events_of(rig, batch) == [(State.WAITING_RETRY, 1)]


def test_what_stands_behind_a_failure_is_written_behind_it_uncounted_and_undelivered() -> None:
    rig = rig_of(b"a", b"a", b"a", b"b")
    rig.fail(0)
    committed(rig)
    batch = committed(rig)
    assert [(s.times, s.behind, s.order) for s in states_of(batch, rig.policy)] == [
        (0, True, Order(1)),
        (0, True, Order(2)),
    ]
    assert batch.commits[ORDERS].progress == Progress(3)
    assert events_of(rig, batch) == []
    assert rig.out() == [3]


def test_a_record_that_comes_later_goes_behind_what_waits_of_its_key_and_others_go_out() -> None:
    rig = rig_of(b"a")
    rig.fail(0)
    rig.flow()
    rig.arrive(b"a", b"b", b"a")
    assert rig.out() == [2]
    batch = committed(rig)
    assert [state.order for state in states_of(batch, rig.policy)] == [Order(1), Order(3)]
    rig.take_it(2)
    rig.settle()
    assert rig.kafka[ORDERS] == Progress(4), "the progress of the main topic goes on"


def test_a_key_is_blocked_from_the_decision_on_and_not_from_the_commit() -> None:
    rig = rig_of(b"a")
    rig.fail(0)
    rig.arrive(b"a")
    assert rig.out() == []
    rig.flow()
    assert [record.retry_state.behind for record in rig.log.values() if record.retry_state] == [False, True]


def test_a_head_is_read_and_delivered_once_it_is_due_and_no_earlier() -> None:
    rig = rig_of(b"a")
    rig.fail(0)
    due = rig.now.steady_ms + WAITS[0]
    rig.flow()
    rig.run(due - rig.now.steady_ms - 1)
    assert rig.reader.wanted == []
    rig.run(1)
    assert rig.reader.wanted == [0]
    assert rig.sent == []
    rig.bring()
    assert [(sent.record.source, sent.record.times, sent.at) for sent in rig.sent] == [(QUEUE, 1, due)]


def test_a_retry_that_succeeds_ends_with_its_event_and_its_mark_and_the_next_of_its_key_goes_out() -> None:
    rig = rig_of(b"a", b"a", b"a")
    rig.fail(0)
    rig.flow()
    rig.flow(WAITS[0])
    rig.take_it(0)
    batch = committed(rig)
    assert events_of(rig, batch) == [(State.COMMIT, 1)]
    assert (batch.commits[QUEUE].progress, batch.commits[QUEUE].under) == (Progress(1), ORDERS)
    assert rig.reader.wanted == [1]
    rig.bring()
    assert rig.out() == [1]


def test_one_that_waited_behind_and_succeeds_has_nothing_to_write_but_its_mark() -> None:
    rig = rig_of(b"a", b"a", b"a")
    rig.fail(0)
    rig.flow()
    rig.flow(WAITS[0])
    rig.take_it(0)
    rig.flow()
    for offset in (1, 2):
        rig.take_it(offset)
        rig.flow()
    assert not any(batch.entries for batch in rig.settle())
    assert rig.queue() == Progress(3)
    assert [sent.record.times for sent in rig.history] == [0, 1, 0, 0]
    assert rig.lane.room.load == 0


def test_a_retry_that_fails_again_is_written_at_the_end_and_what_waits_behind_it_goes_on_waiting() -> None:
    rig = rig_of(b"a", b"a")
    rig.fail(0)
    rig.flow()
    rig.flow(WAITS[0])
    rig.fail(0)
    due = rig.now.wall_ms + WAITS[1]
    batch = committed(rig)
    (state,) = states_of(batch, rig.policy)
    assert (state.times, state.due_at, state.order) == (2, due, Order(0))
    assert batch.commits[QUEUE].progress == Progress(1), "the old copy is done by the same transaction"
    rig.flow()
    assert rig.out() == []
    rig.flow(WAITS[1])
    assert rig.out() == [0]
    rig.take_it(0)
    rig.flow()
    assert rig.out() == [1]


@pytest.mark.parametrize("outcome", [FAIL, Rejected("no")])
def test_a_dead_letter_frees_its_key(outcome: Outcome) -> None:
    rig = rig_of(b"a", b"a", policy=rules(retries=1))
    rig.fail(0)
    rig.flow()
    rig.flow(WAITS[0])
    rig.fail(0, outcome)
    batch = committed(rig)
    assert events_of(rig, batch) == [(State.DLQ, 1)]
    assert [copy.topic for copy in batch.entries[0].writes] == [rig.policy.names.dlq("orders"), rig.policy.names.events]
    rig.flow()
    assert rig.out() == [1]


def test_a_dead_letter_of_a_main_record_blocks_nothing() -> None:
    rig = rig_of(b"a", b"a")
    rig.fail(0, Rejected("no"))
    assert copies_of(committed(rig)) == []
    assert rig.out() == [1]


@pytest.mark.parametrize("outcome", [Throttled(500), Postponed(500), NotSent("refused")])
def test_what_is_no_attempt_holds_the_key_and_counts_nothing(outcome: Outcome) -> None:
    rig = rig_of(b"a", b"a", failures=None)
    rig.fail(0)
    rig.flow()
    rig.flow(WAITS[0])
    rig.fail(0, outcome)
    rig.arrive(b"a")
    rig.flow(600)
    rig.run(60_000 if not rig.sent else 0)
    assert [(sent.record.times, sent.record.source) for sent in rig.sent] == [(1, QUEUE)]
    rig.take_it(0)
    rig.flow()
    assert rig.out() == [1]


def test_a_record_without_a_key_waits_alone() -> None:
    rig = rig_of(None, None)
    rig.fail(0)
    rig.arrive(None)
    rig.flow()
    assert len(rig.log) == 1
    assert rig.out() == [1, 2]


@pytest.mark.parametrize(("by", "out"), [("key", [1]), ("partition", [])])
def test_by_partition_all_later_records_wait_behind_a_failure(by: OrderBy, out: list[int]) -> None:
    rig = rig_of(b"a", order=by)
    rig.fail(0)
    rig.flow()
    rig.arrive(b"b", b"a")
    assert rig.out() == out
    rig.flow()
    assert len(rig.log) == 3 - len(out)


def test_by_partition_what_waits_goes_out_one_after_the_other() -> None:
    rig = rig_of(b"a", b"b", None, order="partition")
    rig.fail(0)
    rig.flow()
    rig.flow(WAITS[0])
    for offset in (0, 1, 2):
        assert rig.out() == [offset]
        rig.take_it(offset)
        rig.flow()


def test_heads_of_several_keys_are_out_at_once() -> None:
    rig = rig_of(b"a", b"b", b"c")
    for offset in (0, 1, 2):
        rig.fail(offset)
    rig.flow()
    rig.flow(WAITS[0])
    assert sorted(rig.out()) == [0, 1, 2]


def test_a_main_record_goes_out_again_once_nothing_of_its_key_waits() -> None:
    rig = rig_of(b"a")
    rig.fail(0)
    rig.flow()
    rig.flow(WAITS[0])
    rig.take_it(0)
    rig.arrive(b"a")
    assert rig.out() == [], "its key is free only when the end is in Kafka"
    rig.flow()
    assert rig.out() == [1]


def test_a_copy_that_is_read_before_its_commit_is_known_counts_once() -> None:
    rig = rig_of(b"a")
    rig.fail(0)
    rig.run(20)
    rig.reach_kafka()
    rig.look()
    rig.flow()
    rig.flow(WAITS[0])
    assert [(sent.record.offset, sent.record.times) for sent in rig.sent] == [(0, 1)]
    rig.take_it(0)
    rig.settle()
    assert rig.queue() == Progress(1)


# --- A partition is taken over with its queue: what waits is known before a record goes out, and both go -------------


OTHER = Partition("orders", 1)
OTHER_QUEUE = Partition(QUEUE.topic, 1)


def because(rig: LadderRig) -> NotFetched | None:
    pause = rig.part().paused
    return None if pause is None else pause.because


def waits_for_queue(rig: LadderRig) -> bool:
    """Whether the main partition waits for its queue, and what is handed over does not go out."""
    rig.take(samples.record(0, key=b"x"))
    return because(rig) is NotFetched.QUEUE_UNREAD and not rig.sent


def test_a_main_partition_waits_until_its_queue_was_read_up_to_its_end() -> None:
    rig = LadderRig()
    rig.begin()
    assert rig.reader.opened == [(QUEUE, 1)]
    assert rig.fetches == [("pause", ORDERS)]
    assert waits_for_queue(rig)
    rig.put(waiting(3))
    rig.put(waiting(4), key=b"b")
    rig.open()
    assert waits_for_queue(rig)
    rig.look(most=1, caught_up=False)
    assert waits_for_queue(rig)
    rig.look()
    assert rig.fetches == [("pause", ORDERS), ("resume", ORDERS, 0, 1)]


def test_a_main_partition_goes_on_where_its_last_owner_left_it() -> None:
    rig = LadderRig()
    rig.take_over(main=Progress(17))
    assert rig.fetches[-1] == ("resume", ORDERS, 17, 1)


def test_without_a_queue_topic_a_main_partition_begins_at_once() -> None:
    rig = LadderRig()
    rig.begin()
    rig.queues.absent(QUEUE, 1, rig.now)
    assert rig.fetches[-1] == ("resume", ORDERS, 0, 1)
    rig.arrive(b"a", b"a")
    rig.take_it(0)
    assert rig.out() == [1]


def test_an_end_that_is_told_while_the_partition_is_read_changes_nothing() -> None:
    rig = LadderRig()
    rig.take_over()
    rig.queues.absent(QUEUE, 1, rig.now)
    rig.look()
    assert len(rig.fetches) == 2


OLD: dict[str, Callable[[LadderRig], None]] = {
    "opened": lambda rig: rig.queues.opened(AssignedPartition(QUEUE, 1, Progress(0)), rig.now),
    "absent": lambda rig: rig.queues.absent(QUEUE, 1, rig.now),
    "another queue": lambda rig: rig.queues.absent(OTHER_QUEUE, 2, rig.now),
    "read": lambda rig: rig.queues.read(FetchedRecords(QUEUE, 1, 0, [], 0), rig.now, caught_up=True),
    "fetched": lambda rig: rig.queues.fetched(QUEUE, 1, 0, None, rig.now),
}


@pytest.mark.parametrize("what", OLD)
def test_what_comes_for_an_assignment_that_is_over_means_nothing(what: str) -> None:
    rig = LadderRig()
    rig.take_over()
    rig.begin(epoch=2)
    OLD[what](rig)
    assert waits_for_queue(rig)
    assert QUEUE not in rig.lane.partitions
    rig.open(epoch=2)
    OLD[what](rig)
    assert because(rig) is NotFetched.QUEUE_UNREAD


def test_what_is_read_before_the_progress_is_known_is_dropped() -> None:
    rig = LadderRig()
    rig.begin()
    rig.put(waiting(0))
    rig.look()
    assert because(rig) is NotFetched.QUEUE_UNREAD
    rig.open()
    rig.look()
    assert because(rig) is None
    rig.arrive(b"a")
    assert rig.out() == []


def test_a_queue_that_is_opened_a_second_time_keeps_what_was_read() -> None:
    rig = LadderRig()
    rig.begin()
    rig.put(waiting(3))
    rig.open()
    rig.look()
    rig.queues.opened(AssignedPartition(QUEUE, 1, Progress(0)), rig.now)
    assert rig.part(QUEUE).offsets.next == 1


def test_two_partitions_wait_for_their_own_queues() -> None:
    rig = LadderRig()
    rig.lane.assigned([AssignedPartition(source, 1, Progress(0)) for source in (ORDERS, OTHER)], rig.now)
    assert rig.reader.opened == [(QUEUE, 1), (OTHER_QUEUE, 1)]
    rig.queues.absent(OTHER_QUEUE, 1, rig.now)
    assert [fetch for fetch in rig.fetches if fetch[0] == "resume"] == [("resume", OTHER, 0, 1)]


# --- it is given up -------------------------------------------------------------------------------------------------


def test_a_partition_that_is_revoked_before_its_queue_is_known_is_given_up_at_once() -> None:
    rig = LadderRig()
    rig.begin()
    given_up = rig.release(ORDERS)
    rig.settle()
    assert given_up == ["given up"]
    assert rig.reader.closed == [QUEUE]


def test_a_partition_that_is_being_given_up_begins_nothing_of_its_queue() -> None:
    rig = LadderRig()
    rig.begin()
    rig.open()
    rig.put(waiting(0))
    given_up = rig.release(ORDERS)
    rig.look()
    assert rig.reader.wanted == []
    rig.settle()
    assert given_up == ["given up"]


def test_a_record_that_is_read_while_its_partition_is_given_up_does_not_go_out() -> None:
    rig = LadderRig()
    rig.begin(main=Progress(9))
    rig.put(waiting(0))
    rig.open()
    rig.look()
    assert rig.reader.wanted == [0]
    given_up = rig.release(ORDERS)
    rig.bring()
    assert rig.sent == []
    rig.settle()
    assert given_up == ["given up"]
    assert rig.queue() == Progress(0, clean=True)


def test_a_revoked_partition_waits_for_what_is_out_of_its_queue_and_for_its_commit() -> None:
    rig = LadderRig()
    rig.begin(main=Progress(9))
    rig.put(waiting(0))
    rig.put(behind(1))
    rig.open()
    rig.look()
    rig.flow()
    given_up = rig.release(ORDERS)
    rig.settle()
    assert given_up == []
    rig.take_it(0)
    rig.settle()
    assert given_up == ["given up"]
    assert rig.out() == [], "the next of its key is the new owner's"
    assert (rig.kafka[ORDERS].clean, rig.queue()) == (True, Progress(1, clean=True))
    assert rig.lane.room.load == 0


@pytest.mark.parametrize("lost", [ORDERS, QUEUE])
def test_a_partition_and_its_queue_are_lost_together(lost: Partition) -> None:
    rig = LadderRig()
    rig.begin(main=Progress(9))
    rig.put(waiting(0))
    rig.open()
    rig.look()
    rig.flow()
    rig.lane.lost([lost])
    rig.check()
    assert rig.lane.partitions == {}
    assert rig.reader.closed == [QUEUE]
    rig.answer()
    assert rig.lane.counters.fenced_answers == 1
    rig.run(KEEP_MS)
    assert rig.batches == []
    assert rig.lane.room.load == 0


def test_a_queue_whose_commit_is_fenced_goes_with_its_main_partition() -> None:
    rig = LadderRig()
    rig.begin()
    rig.open()
    rig.look()
    rig.run(1_000)
    rig.conclude(fenced=[QUEUE])
    assert rig.lane.partitions == {}


def test_what_was_to_be_written_behind_its_key_is_the_next_owners() -> None:
    rig = LadderRig()
    rig.begin()
    rig.put(waiting(0, due_in=90_000))
    rig.open(Progress(0))
    rig.look()
    rig.arrive(b"a", b"a")
    rig.lane.lost([ORDERS])
    while rig.batches:
        rig.conclude(fenced=rig.batches[0].commits)
    rig.begin(epoch=2)
    rig.open(epoch=2)
    rig.look()
    rig.arrive(b"a", b"a")
    rig.flow()
    assert [record.retry_state.id for record in rig.log.values() if record.retry_state] == ["orders:0:0", "orders:0:1"]


def test_a_new_owner_delivers_what_waits_where_the_last_one_left_it() -> None:
    rig = LadderRig()
    rig.take_over()
    rig.arrive(b"a", b"a", b"b")
    rig.fail(0)
    rig.take_it(2)
    rig.flow(1_000)
    given_up = rig.release(ORDERS)
    rig.settle()
    assert given_up == ["given up"]
    rig.take_over(rig.queue(), main=rig.kafka[ORDERS], epoch=2)
    assert rig.kafka[ORDERS].next == 3
    rig.flow(WAITS[0])
    for offset in (0, 1):
        assert rig.out() == [offset]
        rig.take_it(offset)
        rig.flow()
