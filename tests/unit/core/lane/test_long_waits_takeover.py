"""A partition is taken over with its queue: what waits is known before a record goes out, and both go together."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reconsume.sidecar.core.lane.long_waits import KEEP_MS
from reconsume.sidecar.core.lane.partition import AssignedPartition, Because, FetchedRecords
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition
from tests.sim import samples
from tests.sim.ladder_rig import QUEUE, WAITS, LadderRig, behind, waiting
from tests.sim.samples import ORDERS

OTHER = Partition("orders", 1)
OTHER_QUEUE = Partition(QUEUE.topic, 1)


def because(rig: LadderRig) -> Because | None:
    pause = rig.part().paused
    return None if pause is None else pause.because


def waits_for_queue(rig: LadderRig) -> bool:
    """Whether the main partition waits for its queue, and what is handed over does not go out."""
    rig.take(samples.record(0, key=b"x"))
    return because(rig) is Because.QUEUE_UNREAD and not rig.sent


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
    assert QUEUE not in rig.lane.ownership.partitions
    rig.open(epoch=2)
    OLD[what](rig)
    assert because(rig) is Because.QUEUE_UNREAD


def test_what_is_read_before_the_progress_is_known_is_dropped() -> None:
    rig = LadderRig()
    rig.begin()
    rig.put(waiting(0))
    rig.look()
    assert because(rig) is Because.QUEUE_UNREAD
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
    assert rig.part(QUEUE).tracker.next == 1


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
    assert rig.lane.memory.load == 0


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
    assert rig.lane.ownership.partitions == {}
    assert rig.reader.closed == [QUEUE]
    rig.answer()
    assert rig.lane.counters.fenced_answers == 1
    rig.run(KEEP_MS)
    assert rig.batches == []
    assert rig.lane.memory.load == 0


def test_a_queue_whose_commit_is_fenced_goes_with_its_main_partition() -> None:
    rig = LadderRig()
    rig.begin()
    rig.open()
    rig.look()
    rig.run(1_000)
    rig.conclude(fenced=[QUEUE])
    assert rig.lane.ownership.partitions == {}


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
