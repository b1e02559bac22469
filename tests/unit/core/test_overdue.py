"""How late a level is: by what the lane has in memory, and by a head that stands while the log's due time passes it."""

from __future__ import annotations

import pytest

from reconsume.sidecar.core.facts import LaneFacts, PartitionFacts
from reconsume.sidecar.core.fetching import RESUME_EARLY_MS
from reconsume.sidecar.core.outcome import COMMITTED, Failed, Rejected, Throttled
from reconsume.sidecar.core.overdue import Standing, overdue
from reconsume.sidecar.core.partition import OUT, Because, Kind, PartitionState, Pause
from reconsume.sidecar.core.progress import Bounds, Progress
from reconsume.sidecar.core.record import Now, Partition, Record
from reconsume.sidecar.core.status import WORDS, PartitionStatus, statuses
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, WALL, life, record

TEN = Partition("billing-RETRY-10s", 0)
EVERY = 10_000
"""ms between two looks."""


class Looked:
    """A retry lane, and the looks at the heads of its partitions."""

    def __init__(self, **options: int) -> None:
        self.rig = Rig(retry=True, **options)  # type: ignore[arg-type]
        self.rig.assign(TEN)
        self.standing = Standing()

    def look(self, head: int | None = None, after: int = EVERY) -> None:
        """Look after so many ms; `head`: the first offset that is not due, None: it is not known."""
        self.rig.run(after)
        heads = {} if head is None else {TEN: head}
        self.standing.looked(heads, self.rig.facts, self.rig.lane.shown.put_off(self.rig.now.steady_ms), self.rig.now)

    def done(self) -> None:
        """The service takes what it has, and Kafka what follows."""
        self.rig.answer(COMMITTED)
        self.rig.run(25)
        self.rig.conclude()

    @property
    def late(self) -> int:
        return overdue(self.rig.facts, self.standing, self.rig.now).get(TEN, 0)

    @property
    def state(self) -> str:
        return self.shown[1]

    @property
    def shown(self) -> tuple[int | None, str]:
        (status,) = statuses(self.rig.facts, self.standing, self.rig.now)
        return status.overdue_for, status.state


def due(offset: int, by: int = 0) -> Record:
    """A record that is overdue by so many ms when the test begins."""
    return record(offset, source=TEN, timestamp=WALL - 10_000 - by, life=life(due_at=WALL - by))


# --- what the lane knows -------------------------------------------------------------------------------------------


def test_what_waits_for_a_place_in_flight_is_late_since_its_due_time() -> None:
    world = Looked(concurrency=1)
    world.rig.take(due(0), due(1, by=3_000))
    world.rig.run(2_000)
    assert world.late == 5_000
    assert world.shown == (5_000, "fetching")


def test_what_the_service_has_is_late_no_more() -> None:
    world = Looked()
    world.rig.take(due(0, by=3_000))
    world.rig.run(60_000)
    assert world.late == 0


def test_what_is_near_is_not_late_before_its_time() -> None:
    world = Looked(concurrency=1)
    world.rig.take(due(0), due(1, by=-1_000))
    world.rig.run(999)
    assert world.late == 0
    world.rig.run(11)
    assert world.late == 10


def test_what_a_stopped_partition_withholds_is_late() -> None:
    world = Looked(concurrency=1)
    world.rig.take(due(0), due(1))
    world.rig.answer(Failed("http-500"))
    world.rig.run(25)
    (entry,) = world.rig.batches[0].entries
    world.rig.answer(Failed("http-500"))
    world.rig.conclude(refused=[(entry, "topic")])
    world.rig.run(5_000)
    assert world.late == 5_025
    assert world.shown == (5_025, "stopped: t: refused")


def test_a_record_whose_dead_letter_kafka_refuses_is_late() -> None:
    world = Looked()
    world.rig.take(due(0))
    world.rig.answer(Rejected("no"))
    world.rig.run(25)
    (entry,) = world.rig.batches[0].entries
    world.rig.conclude(refused=[(entry, "record")])
    world.rig.run(100)
    assert world.late == 125


def test_what_the_service_wants_later_is_not_late_while_it_waits_for_that() -> None:
    world = Looked()
    world.rig.take(due(0))
    world.rig.answer(Throttled(60_000))
    for _ in range(5):
        world.look(head=1)
    assert world.late == 0


def test_a_partition_that_stays_paused_behind_its_time_is_late() -> None:
    world = Looked()
    world.rig.take(due(0, by=-10_000))
    world.rig.wake_at = 1 << 62  # the timer is lost
    world.rig.clock.steady_ms += 10_000 + RESUME_EARLY_MS
    assert world.late == RESUME_EARLY_MS
    assert overdue(world.rig.facts, Standing(), world.rig.now) == {TEN: RESUME_EARLY_MS}


# --- what the heads show -------------------------------------------------------------------------------------------


def test_a_partition_that_is_not_read_although_its_head_is_due_is_late_from_the_second_look_on() -> None:
    world = Looked()
    world.look(head=3)
    assert world.late == 0
    world.look(head=3)
    assert world.late == EVERY
    world.rig.run(1_234)
    assert world.shown == (EVERY + 1_234, "stuck: not read")
    assert world.standing.worst == EVERY


def test_a_stand_is_over_when_the_record_comes() -> None:
    world = Looked()
    world.look(head=1)
    world.look(head=1)
    world.rig.take(due(0))
    assert world.shown == (None, "fetching")
    world.done()
    assert world.shown == (None, "fetching")
    world.look(head=1)
    assert world.standing.worst == 0


def test_a_partition_that_moves_between_two_looks_is_not_stuck() -> None:
    world = Looked()
    for offset in range(5):
        world.look(head=9)
        world.rig.take(due(offset))
        world.done()
    assert world.late == 0


def test_a_head_that_is_not_known_is_no_alarm_and_one_that_was_counts_on() -> None:
    world = Looked()
    world.look()
    world.look()
    assert world.late == 0
    world.look(head=1)
    world.look(head=1)
    assert world.late == EVERY


def test_an_idle_partition_whose_last_offset_is_a_marker_is_not_late() -> None:
    """Given a record, the marker behind it, and the word that the log ends there, then nothing is due."""
    world = Looked()
    world.rig.take(due(0), end=2)
    world.done()
    for _ in range(3):
        world.look(head=2)
    assert world.late == 0


def test_markers_below_a_head_that_is_paused_for_its_time_are_not_late() -> None:
    """Given a record that is done, its marker, and a record that waits, then the marker is no head."""
    world = Looked()
    world.rig.take(due(0), record(2, source=TEN, timestamp=WALL + 90_000, life=life(due_at=WALL + 100_000)))
    world.done()
    assert world.rig.part(TEN).offsets.first == 1
    for _ in range(3):
        world.look(head=2, after=2_000)
    assert world.shown == (None, "not due")


def test_a_slow_delivery_is_not_taken_for_a_stand_not_even_when_its_end_is_being_written() -> None:
    world = Looked()
    world.rig.take(due(0))
    for _ in range(6):
        world.look(head=1)
    assert world.late == 0
    world.rig.answer(Failed("http-500"))
    assert world.late == 0


def test_a_record_that_no_part_of_the_lane_has_any_more_is_found() -> None:
    world = Looked(concurrency=1)
    world.rig.take(due(0), due(1))
    world.done()
    world.rig.whole = False
    world.rig.part(TEN).offsets.counts[OUT] = 0  # a fault of ours has lost it
    world.look(head=2)
    world.look(head=2)
    assert world.shown == (EVERY, "stuck: no outcome")


def test_an_outcome_that_kafka_does_not_commit_is_found() -> None:
    world = Looked()
    world.rig.take(due(0))
    world.rig.answer(Failed("http-500"))
    world.look(head=1)
    world.look(head=1)
    assert world.shown == (EVERY, "stuck: not committed")


def test_a_partition_that_went_and_came_back_unread_stands_on() -> None:
    world = Looked()
    world.look(head=1)
    world.look(head=1)
    world.rig.assign(TEN, epoch=2)
    assert world.late == EVERY


def test_main_topics_are_never_overdue() -> None:
    rig, standing = Rig(concurrency=1), Standing()
    rig.assign(ORDERS)
    rig.take_offsets(range(3))
    for _ in range(3):
        rig.run(EVERY)
        standing.looked({ORDERS: 9}, rig.facts, rig.lane.shown.put_off(rig.now.steady_ms), rig.now)
    assert overdue(rig.facts, standing, rig.now) == {}


def test_what_is_due_in_memory_and_is_not_taken_up_is_late() -> None:
    world = Looked()
    world.rig.take(due(0, by=-1_000))
    world.rig.wake_at = 1 << 62  # the timer is lost
    world.rig.clock.steady_ms += 1_500
    assert world.late == 500


def test_of_what_is_not_delivered_before_the_brokers_take_progress_the_oldest_counts() -> None:
    world = Looked(proves_room=True)
    world.rig.take(due(0), due(1, by=4_000))
    world.rig.run(25)
    assert (world.rig.out_offsets(), world.late) == ([], 4_025)


def test_the_most_overdue_record_of_a_partition_counts() -> None:
    world = Looked(concurrency=1)
    world.rig.take(due(0), due(1, by=3_000), due(2, by=2_000))
    assert world.late == 3_000


def test_a_paused_partition_that_stays_behind_its_time_is_stuck_there() -> None:
    world = Looked()
    world.rig.take(due(0, by=-10_000))
    world.rig.wake_at = 1 << 62  # the timer is lost
    world.look(head=1, after=60_000)
    world.look(head=1)
    assert world.shown == (60_000 + EVERY - 10_000, "stuck: paused")


# --- what `/status` shows of one partition, for each state that it may be in -----------------------------------------


LEVEL = Partition("billing-RETRY-5s", 3)
NOW = 70_000
"""Steady ms."""
PART = PartitionFacts(LEVEL, "5s", 5_000, 40, 40, 2, 0, 6, None, "", closing=False, suspect=False)
"""A partition of a level of 5 s."""


def status_of(part: PartitionFacts) -> PartitionStatus:
    facts = LaneFacts({LEVEL: part}, {}, 6, {})
    (status,) = statuses(facts, Standing(), Now(WALL, NOW))
    return status


def shown(state: str, due: int | None = None, late: int | None = None) -> PartitionStatus:
    return PartitionStatus("billing-RETRY-5s", 3, "5s", state, 40, 2, 6, due, late)


def test_an_open_one_is_shown_with_its_counts() -> None:
    assert status_of(PART) == shown("fetching")


@pytest.mark.parametrize(("at", "left"), [(NOW + 900, 900), (NOW, 0), (NOW - 900, 0)])
def test_one_that_waits_says_for_how_long(at: int, left: int) -> None:
    assert status_of(PART._replace(pause=Pause(41, at, Because.NOT_DUE))) == shown("not due", left)


@pytest.mark.parametrize("because", [because for because in Because if because is not Because.NOT_DUE])
def test_one_that_is_paused_for_another_reason_says_that(because: Because) -> None:
    assert status_of(PART._replace(pause=Pause(41, NOW + 900, because))) == shown(WORDS[because])


def test_what_keeps_it_most_is_told_first() -> None:
    worst = PART._replace(pause=Pause(41, NOW, Because.AT_BOUND), suspect=True)
    assert status_of(worst) == shown("suspect")
    worst = worst._replace(blocked="topic-authorization-failed")
    assert status_of(worst) == shown("stopped: topic-authorization-failed")
    assert status_of(worst._replace(closing=True)) == shown("closing")


def test_a_record_is_due_after_its_level_and_not_before_its_own_time() -> None:
    part = PartitionState(LEVEL, 1, Kind("5s", 5_000), Progress(40), Bounds())
    assert part.due_ms(record(timestamp=WALL)) == WALL + 5_000
    assert part.due_ms(record(timestamp=WALL, life=life(due_at=WALL + 1))) == WALL + 5_000
    assert part.due_ms(record(timestamp=WALL, life=life(due_at=WALL + 9_000))) == WALL + 9_000
