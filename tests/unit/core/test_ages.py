"""How long the oldest record of a partition has waited: by how far its log is due, and by what the lane has of it."""

from __future__ import annotations

import pytest

from reconsume.sidecar.core.ages import MOST_NOTES, Age, Ages, LogEnds, Wait, stalled
from reconsume.sidecar.core.facts import LaneFacts, PartitionFacts, RecordCounts, ResetLeft, reset_left_of
from reconsume.sidecar.core.outcome import COMMITTED, Failed, Rejected, Throttled
from reconsume.sidecar.core.partition import Kind
from reconsume.sidecar.core.reasons import DELIBERATE, NotDelivered, NotFetched
from reconsume.sidecar.core.record import Now, Partition, Record
from reconsume.sidecar.core.why import PartitionWaits, Waiting
from reconsume.topics.position_ranges import PartitionResets, ResetRange
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, WALL, life, record

TEN = Partition("billing-RETRY-10s", 0)
EVERY = 10_000
"""ms between two looks."""
D, F = NotDelivered, NotFetched


def at(seconds: float) -> Now:
    return Now(WALL + round(seconds * 1000), round(seconds * 1000))


# --- a main partition, by the high watermarks ----------------------------------------------------------------------


def main(
    first: int, unread: int | None = None, oldest: Waiting | None = None, kept: Waiting | None = None
) -> PartitionFacts:
    """A main partition that is done below `first`, and is to be read from `unread` on."""
    rest = Waiting(first if unread is None else unread, D.UNREAD)
    return PartitionFacts(ORDERS, Kind("main", None), first, PartitionWaits(rest, oldest, kept))


def lane(partition: PartitionFacts) -> LaneFacts:
    return LaneFacts({partition.source: partition})


class Watched:
    """One partition that is looked at every ten seconds."""

    def __init__(self) -> None:
        self.ages = Ages()

    def look(self, partition: PartitionFacts, high: int, seconds: float) -> int:
        """Look, and return the age in whole seconds."""
        self.ages.note_ends(LogEnds({partition.source: high}), lane(partition), at(seconds))
        return self.age(partition, seconds)

    def age(self, partition: PartitionFacts, seconds: float) -> int:
        return self.wait(partition, seconds).waited_ms // 1000

    def wait(self, partition: PartitionFacts, seconds: float) -> Wait:
        return self.ages.waits(lane(partition), at(seconds))[partition.source]


def test_a_partition_that_is_read_to_its_end_has_no_age() -> None:
    watched = Watched()
    assert [watched.look(main(5), 5, 0), watched.age(main(5), 60)] == [0, 0]


def test_what_is_in_the_log_and_not_read_counts_from_the_look_that_saw_it_first() -> None:
    watched = Watched()
    watched.look(main(5), 5, 0)
    watched.look(main(5), 9, 10)
    watched.look(main(5), 12, 20)
    assert watched.age(main(5), 70) == 60
    assert watched.age(main(9), 70) == 50, "the records up to 9 are done, those behind came ten seconds later"
    assert watched.age(main(12), 70) == 0


def test_what_a_reset_delivers_again_has_no_age_for_an_hour() -> None:
    """Given a range up to 100 that was put into cycle 1 at the beginning, of which all below 40 is done."""
    moved = PartitionResets("5e6f7a8b", 1, (ResetRange(10, 100, 1, WALL),), ("r1",))
    left = reset_left_of(moved, 40)
    assert left == ResetLeft(60, WALL + 3_600_000)
    watched, partition = Watched(), main(40)._replace(reset_left=left)
    watched.look(partition, 500, 0)
    assert watched.age(partition, 3_599) == 0
    assert watched.wait(partition, 3_599).reason is D.UNREAD, "why it is not delivered is shown all the same"
    assert watched.age(partition, 3_601) == 3_601
    assert reset_left_of(moved, 100) is None, "the last record of the range is done"
    assert reset_left_of(PartitionResets("5e6f7a8b"), 0) is None


def test_an_open_transaction_and_a_missing_leader_are_why_a_partition_is_not_fetched() -> None:
    """R01: an open transaction of another program keeps records back that the high watermark shows."""
    ages, facts = Ages(), lane(main(5))
    ages.note_ends(LogEnds({ORDERS: 9}, {ORDERS: 5}), facts, at(0))
    assert ages.waits(facts, at(10))[ORDERS][1:3] == (D.UNREAD, F.TRANSACTION)
    ages.note_ends(LogEnds({ORDERS: 9}, {ORDERS: 9}), facts, at(10))
    assert ages.waits(facts, at(10))[ORDERS][1:3] == (D.UNREAD, None), "it is just being read"
    ages.note_ends(LogEnds({ORDERS: 9}, {ORDERS: 9}, {ORDERS}), facts, at(20))
    assert ages.waits(facts, at(20))[ORDERS].not_fetched is F.NO_LEADER
    waits = main(5).waits._replace(not_fetched=F.DISTANCE)
    paused = main(5)._replace(waits=waits)
    assert ages.waits(lane(paused), at(20))[ORDERS].not_fetched is F.DISTANCE, "what the lane does comes first"


def test_a_record_that_is_retried_in_place_makes_its_partition_old_although_it_is_delivered_again_and_again() -> None:
    """R05: the first record of an ordered partition fails forever."""
    watched, failing = Watched(), main(5, 6, Waiting(5, D.RETRIED))
    assert [watched.look(failing, 9, seconds) for seconds in (0, 10, 90)] == [0, 10, 90]


def test_a_first_delivery_in_progress_does_not_wait() -> None:
    watched, out = Watched(), main(5, 6)._replace(counts=RecordCounts(in_flight=1))
    assert [watched.look(out, 6, seconds) for seconds in (0, 600)] == [0, 0]
    assert watched.wait(out, 600) == Wait(0, None, None, 5, is_sent=True)


@pytest.mark.parametrize("reason", NotDelivered)
def test_a_record_that_waits_grows_old_for_every_reason_but_the_deliberate_ones(reason: NotDelivered) -> None:
    watched, waiting = Watched(), Waiting(5, reason)
    is_kept = reason in DELIBERATE
    part = main(5, 9, kept=waiting) if is_kept else main(5, 9, waiting)
    assert [watched.look(part, 9, seconds) for seconds in (0, 100)] == [0, 0 if is_kept else 100]
    assert watched.wait(part, 100).reason is reason


HELD = Waiting(5, D.HELD)


@pytest.mark.parametrize("reason", sorted(DELIBERATE))
def test_no_time_counts_in_which_all_that_waits_of_a_main_partition_waits_deliberately(reason: NotDelivered) -> None:
    """Contract 12.10. Given a record that waits for a slot after it has waited deliberately for a minute."""
    watched = Watched()
    assert [watched.look(main(5, 6, kept=Waiting(5, reason)), 6, seconds) for seconds in (0, 60)] == [0, 0]
    assert [watched.look(main(5, 6, Waiting(5, D.PACE)), 6, seconds) for seconds in (60, 70)] == [0, 10]


def test_the_age_goes_on_after_a_hold_from_what_it_was_before_it() -> None:
    """Given 90 s of failures and a hold of 400 s, then the age goes on from 90 s when the hold is over."""
    watched, failing = Watched(), main(5, 6, Waiting(5, D.RETRIED))
    assert [watched.look(failing, 6, seconds) for seconds in (0, 90)] == [0, 90]
    assert [watched.look(main(5, 6, kept=HELD), 6, seconds) for seconds in range(90, 490, 100)] == [0, 0, 0, 0]
    assert [watched.look(failing, 6, seconds) for seconds in (490, 500, 560)] == [90, 100, 160]


def test_a_held_record_beside_a_failing_one_leaves_its_age_alone_and_does_not_make_it_young_at_its_end() -> None:
    watched, failing = Watched(), Waiting(5, D.RETRIED)
    assert [watched.look(main(5, 9, failing, Waiting(4, D.HELD)), 9, seconds) for seconds in (0, 90)] == [0, 90]
    assert [watched.look(main(5, 9, failing), 9, seconds) for seconds in (100, 110)] == [100, 110]


def test_what_was_held_leaves_the_time_of_the_hold_out_and_so_does_what_was_held_behind_it() -> None:
    watched = Watched()
    assert [watched.look(main(5, 8, kept=HELD), 8, seconds) for seconds in (0, 300)] == [0, 0]
    assert watched.look(main(5, 8, Waiting(5, D.PACE)), 8, 310) == 0
    assert [watched.look(main(6, 8, Waiting(6, D.PACE)), 8, seconds) for seconds in (320, 350)] == [10, 40]


def test_a_new_owner_does_not_count_the_time_before_a_hold_that_it_has_found() -> None:
    watched = Watched()
    assert watched.look(main(5, 6, kept=HELD), 6, 0) == 0
    released = main(5, 6, Waiting(5, D.PACE, WALL - 900_000))
    assert [watched.look(released, 6, seconds) for seconds in (10, 40)] == [0, 30]


def test_a_new_owner_begins_with_the_time_of_the_first_open_record_once() -> None:
    """A partition that stalls through a restart loop is as old as its record."""
    watched = Watched()
    assert watched.look(main(5, 6, Waiting(5, D.PACE, WALL - 500_000)), 9, 0) == 500
    assert watched.look(main(5, 6, Waiting(5, D.PACE, WALL - 900_000)), 9, 10) == 510
    ahead = Watched()
    assert ahead.look(main(5, 6, Waiting(5, D.PACE, WALL + 99_000)), 9, 0) == 0, "a clock that is ahead"


def test_notes_are_bounded_and_never_make_a_record_older_than_it_is() -> None:
    watched = Watched()
    for second in range(0, 10 * MOST_NOTES, 2):
        watched.look(main(0), second + 1, second)
    end = 10 * MOST_NOTES
    for offset in range(0, end - 2, 7):
        assert watched.age(main(offset), end) <= end - offset + 1


def test_the_notes_of_a_longer_log_say_nothing_of_a_shorter_one() -> None:
    watched = Watched()
    assert [watched.look(main(0), 9, seconds) for seconds in (0, 100)] == [0, 100]
    assert [watched.look(main(0), 3, seconds) for seconds in (110, 120)] == [0, 10]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ((299, 250), []),
        ((300, 250), [0]),
        ((300, 301), [1, 0]),
        ((60, 9, 0), [0]),
        ((59, 9), []),
        ((60, 10), []),
        ((60,), []),
        ((299,), []),
    ],
)
def test_a_partition_stands_after_five_minutes_or_after_one_if_it_is_alone(
    seconds: tuple[int, ...], expected: list[int]
) -> None:
    ages = [Age(Partition("orders", number), waited * 1000) for number, waited in enumerate(seconds)]
    assert [age.source.number for age in stalled(ages)] == expected


# --- a level: what the lane has in memory, and the first offsets that are not due ------------------------------------


class Level:
    """A retry lane, and the looks at the heads of its partitions."""

    def __init__(self, **options: int) -> None:
        self.rig = Rig(retry=True, **options)  # type: ignore[arg-type]
        self.rig.assign(TEN)
        self.ages = Ages()

    def look(self, head: int | None = None, after: int = EVERY) -> None:
        """Look after so many ms; `head`: the first offset that is not due, None: it is not known."""
        self.rig.run(after)
        self.ages.note_heads({} if head is None else {TEN: head}, self.rig.facts, self.rig.now)

    def done(self) -> None:
        """The service takes what it has, and Kafka what follows."""
        self.rig.answer(COMMITTED)
        self.rig.run(25)
        self.rig.conclude()

    @property
    def shown(self) -> tuple[int, NotDelivered | None]:
        """For how many ms the oldest record waits, and why."""
        wait = self.ages.waits(self.rig.facts, self.rig.now)[TEN]
        return wait.waited_ms, wait.reason

    @property
    def not_fetched(self) -> NotFetched | None:
        return self.ages.waits(self.rig.facts, self.rig.now)[TEN].not_fetched


def due(offset: int, by: int = 0) -> Record:
    """A record that is overdue by so many ms when the test begins."""
    return record(offset, source=TEN, timestamp=WALL - 10_000 - by, life=life(due_at=WALL - by))


def test_what_waits_for_a_slot_is_late_since_its_due_time() -> None:
    world = Level(concurrency=1)
    world.rig.take(due(0), due(1, by=3_000), due(2, by=2_000))
    world.rig.run(2_000)
    assert world.shown == (5_000, D.PACE)


def test_what_the_service_has_waits_no_more() -> None:
    world = Level()
    world.rig.take(due(0, by=3_000))
    world.rig.run(60_000)
    assert world.shown == (0, None)


def test_what_is_near_does_not_wait_before_its_time() -> None:
    world = Level(concurrency=1)
    world.rig.take(due(0), due(1, by=-1_000))
    world.rig.run(999)
    assert world.shown == (0, D.NOT_DUE)
    world.rig.run(11)
    assert world.shown == (10, D.PACE)


def test_what_a_refusing_topic_keeps_back_is_late() -> None:
    world = Level(concurrency=1)
    world.rig.take(due(0), due(1))
    world.rig.answer(Failed("http-500"))
    world.rig.run(25)
    (entry,) = world.rig.batches[0].entries
    world.rig.answer(Failed("http-500"))
    world.rig.conclude(refused=[(entry, "topic")])
    world.rig.run(5_000)
    assert world.shown == (5_025, D.REFUSED)
    assert world.not_fetched is F.REFUSED


def test_a_record_whose_dead_letter_kafka_refuses_is_late() -> None:
    world = Level()
    world.rig.take(due(0))
    world.rig.answer(Rejected("no"))
    world.rig.run(25)
    (entry,) = world.rig.batches[0].entries
    world.rig.conclude(refused=[(entry, "record")])
    world.rig.run(100)
    assert world.shown == (125, D.REFUSED)


def test_what_the_service_wants_later_is_not_late_while_it_waits_for_that() -> None:
    world = Level()
    world.rig.take(due(0))
    world.rig.answer(Throttled(60_000))
    for _ in range(5):
        world.look(head=1)
    assert world.shown == (0, D.NOT_DUE)


def test_a_partition_that_stays_paused_behind_its_time_is_late_from_the_second_look_on() -> None:
    world = Level()
    world.rig.take(due(0, by=-10_000))
    assert (world.shown, world.not_fetched) == ((0, None), F.NOT_DUE)
    world.rig.wake_at = 1 << 62  # the timer is lost
    world.look(head=1, after=60_000)
    world.look(head=1)
    assert (world.shown, world.not_fetched) == ((EVERY, D.UNREAD), F.NOT_DUE)


def test_a_partition_that_is_not_read_although_its_head_is_due_is_late_from_the_second_look_on() -> None:
    world = Level()
    world.look(head=1)
    assert world.shown == (0, D.UNREAD)
    world.look(head=1)
    assert world.shown == (EVERY, D.UNREAD)
    assert world.ages.overdue_ms == EVERY
    world.rig.run(1_234)
    assert world.shown == (EVERY + 1_234, D.UNREAD)
    world.rig.take(due(0))
    assert world.shown == (0, None), "it comes, and is delivered"
    world.done()
    world.look(head=1)
    assert world.ages.overdue_ms == 0


def test_a_partition_that_moves_between_two_looks_is_as_late_as_its_next_record() -> None:
    world = Level()
    for offset in range(5):
        world.look(head=9 + offset)
        world.rig.take(due(offset))
        world.done()
    assert world.shown[0] == 4 * (EVERY + 25) + 25, "what is due since the first look has not come yet"


def test_a_head_that_is_not_known_says_nothing_and_one_that_was_counts_on() -> None:
    world = Level()
    world.look()
    world.look()
    assert world.shown == (0, None)
    world.look(head=1)
    world.look()
    assert world.shown == (EVERY, D.UNREAD)


def test_an_idle_partition_whose_last_offset_is_a_marker_is_not_late() -> None:
    """Given a record, the marker behind it, and the word that the log ends there, then nothing is due."""
    world = Level()
    world.rig.take(due(0), end=2)
    world.done()
    for _ in range(3):
        world.look(head=2)
    assert world.shown == (0, None)


def test_markers_below_a_head_that_is_paused_for_its_time_are_not_late() -> None:
    """Given a record that is done, its marker, and a record that waits, then the marker is no head."""
    world = Level()
    world.rig.take(due(0), record(2, source=TEN, timestamp=WALL + 90_000, life=life(due_at=WALL + 100_000)))
    world.done()
    assert world.rig.part(TEN).offsets.first == 1
    for _ in range(3):
        world.look(head=2, after=2_000)
    assert world.shown == (0, None)


def test_an_outcome_that_kafka_does_not_commit_is_late() -> None:
    world = Level()
    world.rig.take(due(0))
    for _ in range(6):
        world.look(head=1)
    assert world.shown == (0, None), "a slow delivery does not wait"
    world.rig.answer(Failed("http-500"))
    world.rig.run(EVERY)
    assert world.shown == (6 * EVERY + EVERY, D.UNCOMMITTED)


def test_what_is_not_delivered_before_the_brokers_take_progress_is_late() -> None:
    world = Level(proves_room=True)
    world.rig.take(due(0, by=4_000))
    world.rig.run(25)
    assert (world.rig.out_offsets(), world.shown) == ([], (4_025, D.UNPROVEN))
