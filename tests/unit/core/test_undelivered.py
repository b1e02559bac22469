"""How long the oldest undelivered record of a partition has waited, by what was read of it and how far its log goes."""

from __future__ import annotations

import pytest

from reconsume.sidecar.core.facts import LaneFacts, PartitionFacts
from reconsume.sidecar.core.overdue import Standing
from reconsume.sidecar.core.partition import Because, Pause
from reconsume.sidecar.core.record import NEVER, Now, Partition
from reconsume.sidecar.core.undelivered import MOST_NOTES, Age, Undelivered, stalled

ORDERS, LEVEL = Partition("orders", 0), Partition("billing-RETRY-10s", 0)
WALL = 1_763_690_000_000


def at(seconds: float) -> Now:
    return Now(WALL + round(seconds * 1000), round(seconds * 1000))


def main(first: int, upto: int | None = None, **more: object) -> PartitionFacts:
    """A main partition that is done below `first`, and read up to `upto`."""
    begun = first if upto is None else upto
    base = PartitionFacts(ORDERS, "main", None, first, begun, 0, 0, 0, None, "", closing=False, suspect=False, epoch=1)
    return base._replace(**more)  # type: ignore[arg-type]  # the fields of a test


def lane(partition: PartitionFacts) -> LaneFacts:
    return LaneFacts({partition.source: partition}, {}, 0, {})


class Watched:
    """One partition that is looked at every ten seconds."""

    def __init__(self, *, rated: bool = False) -> None:
        self.rated = rated
        self.watch = Undelivered(lambda _topic: self.rated)

    def look(self, partition: PartitionFacts, high: int, seconds: float) -> int:
        """Look, and return the age in whole seconds."""
        self.watch.looked({partition.source: high}, lane(partition), at(seconds))
        return self.age(partition, seconds)

    def age(self, partition: PartitionFacts, seconds: float) -> int:
        return self.watch.ages(lane(partition), Standing(), at(seconds))[partition.source] // 1000


def test_a_partition_that_is_read_to_its_end_has_no_age() -> None:
    watched = Watched()
    assert [watched.look(main(5), 5, 0), watched.age(main(5), 60)] == [0, 0]


def test_what_is_in_the_log_and_not_read_counts_from_the_look_that_saw_it_first() -> None:
    """R01: an open transaction of another program keeps records back that the high watermark shows."""
    watched = Watched()
    watched.look(main(5), 5, 0)
    watched.look(main(5), 9, 10)
    watched.look(main(5), 12, 20)
    assert watched.age(main(5), 70) == 60
    assert watched.age(main(9), 70) == 50, "the records up to 9 are done, those behind came ten seconds later"
    assert watched.age(main(12), 70) == 0


def test_a_record_that_is_retried_in_place_makes_its_partition_old_although_it_is_delivered_again_and_again() -> None:
    """R05: the first record of an ordered partition fails forever."""
    watched = Watched()
    failing = main(5, 6, in_flight=1, retrying=1, oldest=5)
    assert [watched.look(failing, 9, seconds) for seconds in (0, 10, 90)] == [0, 10, 90]


def test_a_first_delivery_in_progress_does_not_wait() -> None:
    watched = Watched()
    assert [watched.look(main(5, 6, in_flight=1), 6, seconds) for seconds in (0, 600)] == [0, 0]


@pytest.mark.parametrize("because", [because for because in Because if because is not Because.HELD])
def test_a_paused_partition_grows_old_for_every_reason_but_a_hold(because: Because) -> None:
    watched, paused = Watched(), main(5, pause=Pause(5, NEVER, because))
    assert [watched.look(paused, 9, seconds) for seconds in (0, 100)] == [0, 100]


def test_time_on_hold_does_not_count_and_counting_begins_when_the_hold_is_over() -> None:
    watched, held = Watched(), main(5, pause=Pause(5, NEVER, Because.HELD))
    assert [watched.look(held, 9, seconds) for seconds in (0, 1_000)] == [0, 0]
    assert [watched.look(main(5), 9, seconds) for seconds in (1_001, 1_060)] == [0, 59]


def test_the_age_before_a_hold_of_the_whole_partition_counts_again_once_it_is_over() -> None:
    watched, held = Watched(), main(5, pause=Pause(5, NEVER, Because.HELD))
    assert [watched.look(main(5), 9, seconds) for seconds in (0, 100)] == [0, 100]
    assert [watched.look(held, 9, seconds) for seconds in (100, 500)] == [0, 0]
    assert [watched.look(main(5), 9, seconds) for seconds in (500, 530)] == [100, 130]


FAILS = {"in_flight": 1, "retrying": 1}


def test_a_record_that_fails_in_place_is_as_old_after_a_hold_of_its_key_as_before_it() -> None:
    """Given 90 s of failures and a hold of 400 s, then the age goes on from 90 s when the hold is over."""
    watched = Watched()
    failing, held = main(5, 6, oldest=5, **FAILS), main(5, 6, on_hold=1, oldest_held=5, retrying=1)
    assert [watched.look(failing, 6, seconds) for seconds in (0, 90)] == [0, 90]
    assert [watched.look(held, 6, seconds) for seconds in range(90, 490, 100)] == [0, 0, 0, 0]
    assert [watched.look(failing, 6, seconds) for seconds in (490, 500, 560)] == [90, 100, 160]


def test_the_end_of_another_keys_hold_does_not_make_a_failing_record_young() -> None:
    watched = Watched()
    both = main(5, 9, on_hold=1, oldest_held=6, oldest=5, **FAILS)
    assert [watched.look(both, 9, seconds) for seconds in (0, 90)] == [0, 90]
    assert [watched.look(main(5, 9, oldest=5, **FAILS), 9, seconds) for seconds in (100, 110)] == [100, 110]
    assert watched.look(main(6, 9, oldest=6), 9, 110) == 10, "the other one was held until then"
    assert watched.age(main(6, 9, oldest=6), 140) == 40


def test_a_held_record_far_behind_a_failing_one_leaves_its_age_alone() -> None:
    watched = Watched()
    assert watched.look(main(5, 6, oldest=5, **FAILS), 6, 0) == 0
    far = main(5, 90, on_hold=1, oldest_held=80, oldest=5, **FAILS)
    assert [watched.look(far, 90, seconds) for seconds in (50, 60, 70)] == [50, 60, 70]


def test_what_was_held_behind_the_first_record_leaves_the_time_of_the_hold_out_too() -> None:
    watched = Watched()
    held = main(5, 8, on_hold=3, oldest_held=5)
    assert [watched.look(held, 8, seconds) for seconds in (0, 300)] == [0, 0]
    assert watched.look(main(5, 8, oldest=5), 8, 310) == 0
    assert [watched.look(main(6, 8, oldest=6), 8, seconds) for seconds in (320, 350)] == [10, 40]


def test_a_new_owner_does_not_count_the_time_before_a_hold_that_it_has_found() -> None:
    watched = Watched()
    assert watched.look(main(5, 6, on_hold=1, oldest_held=5), 6, 0) == 0
    released = main(5, 6, oldest=5, oldest_at_ms=WALL - 900_000)
    assert [watched.look(released, 6, seconds) for seconds in (10, 40)] == [0, 30]


def test_the_records_that_a_hold_has_kept_back_from_the_first_begin_at_its_end() -> None:
    watched = Watched()
    watched.look(main(5, 6, on_hold=1, oldest_held=5), 6, 0)
    released = main(5, 6, oldest=5)
    assert [watched.look(released, 6, seconds) for seconds in (1_000, 1_030)] == [0, 30]


def test_waiting_for_a_rate_is_deliberate_but_what_fails_in_place_beside_it_counts() -> None:
    watched = Watched(rated=True)
    assert [watched.look(main(5, 6, oldest=5), 9, seconds) for seconds in (0, 600)] == [0, 0]
    assert watched.age(main(5, 6, oldest=5, retrying=1), 660) == 60
    watched.rated = False
    assert watched.age(main(5, 6, oldest=5), 660) == 60


def test_a_new_owner_begins_with_the_time_of_the_first_open_record_once() -> None:
    """A partition that stalls through a restart loop is as old as its record."""
    watched = Watched()
    stalls = main(5, 6, oldest=5, oldest_at_ms=WALL - 500_000)
    assert watched.look(stalls, 9, 0) == 500
    assert watched.look(main(5, 6, oldest=5, oldest_at_ms=WALL - 900_000), 9, 10) == 510
    assert watched.look(stalls._replace(epoch=2, oldest_at_ms=WALL + 99_000), 9, 20) == 0, "a clock that is ahead"


def test_what_is_not_read_of_a_level_is_late_after_the_levels_delay() -> None:
    watched = Watched()
    level = main(5)._replace(source=LEVEL, level="10s", level_delay_ms=10_000)
    assert [watched.look(level, 6, seconds) for seconds in (0, 10, 70)] == [0, 0, 60]


def test_the_first_record_of_a_key_that_is_due_and_does_not_go_out_is_the_age_of_a_queue() -> None:
    queue = main(5)._replace(level="ordered", level_delay_ms=0, under=Partition("orders", 0), head_due_ms=2_000)
    assert Watched().look(queue, 9, 62) == 60


def test_notes_are_bounded_and_never_make_a_record_older_than_it_is() -> None:
    watched = Watched()
    for second in range(0, 10 * MOST_NOTES, 2):
        watched.look(main(0), second + 1, second)
    end = 10 * MOST_NOTES
    for offset in range(0, end - 2, 7):
        assert watched.age(main(offset), end) <= end - offset + 1


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
