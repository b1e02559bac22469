"""How late a level is: by what the lane has in memory, and by a head that stands while the log's due time passes it."""

from __future__ import annotations

from reconsume.sidecar.core.lane.delay_queue import RESUME_EARLY_MS
from reconsume.sidecar.core.outcome import COMMITTED, Failed, Rejected, Throttled
from reconsume.sidecar.core.overdue import Standing, overdue
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.core.status import statuses
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
    assert world.rig.part(TEN).tracker.first == 1
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
    world.rig.part(TEN).in_flight = 0  # a fault of ours has lost it
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


def test_of_what_a_stopped_partition_withholds_the_oldest_counts() -> None:
    world = Looked(concurrency=2)
    world.rig.take(due(0), due(1))
    world.rig.answer(Failed("http-500"))
    world.rig.whole = False
    world.rig.lane._waiting.withhold(due(2, by=4_000))
    world.rig.run(25)
    assert world.late == 4_025


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
