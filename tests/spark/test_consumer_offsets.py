"""What is due of a partition is a prefix: never a record more, never a record twice, none lost."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from reconsume.spark.consumer.offsets import (
    NO_LATER,
    PartitionName,
    Range,
    Reach,
    advance,
    begin,
    due_ends,
    from_json,
    ranges_of,
    renewed,
    shared_out,
    taken_since,
    to_json,
)

A, B, C = ("l-1s", 0), ("l-1s", 1), ("l-2s", 0)
OFFSETS = st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 50), min_size=3, max_size=3)


def test_what_is_due_ends_at_the_first_record_that_is_not() -> None:
    assert due_ends({A: 10, B: 10, C: 10}, {A: 4, B: NO_LATER, C: 12}) == {A: 4, B: 10, C: 10}


def test_a_batch_is_shared_fairly_and_leaves_no_room_unused() -> None:
    start = Reach({A: 0, B: 5, C: 0})
    assert advance(start, {A: 100, B: 7, C: 100}, 42).next == {A: 20, B: 7, C: 20}


@given(OFFSETS, OFFSETS, st.integers(1, 60))
def test_a_batch_never_goes_back_nor_beyond_its_bound_or_what_is_due(
    start: dict[PartitionName, int], ends: dict[PartitionName, int], most: int
) -> None:
    reach = advance(Reach(start), ends, most)
    steps = {place: reach.next[place] - start[place] for place in start}
    room = sum(max(0, ends[place] - start[place]) for place in start)
    assert all(0 <= step <= max(0, ends[place] - start[place]) for place, step in steps.items())
    assert sum(steps.values()) <= min(most, room)
    assert sum(steps.values()) > min(most, room) - len(start)


@given(OFFSETS, st.lists(OFFSETS, max_size=6), st.integers(1, 20))
def test_batches_follow_each_other_without_gap_or_overlap(
    start: dict[PartitionName, int], looks: list[dict[PartitionName, int]], most: int
) -> None:
    reach, read = Reach(start), dict(start)
    for ends in looks:
        after = advance(begin(reach, dict.fromkeys(start, 0)), ends, most)
        for part in ranges_of(from_json(to_json(reach)), from_json(to_json(after)), {}):
            assert part.start == read[part.topic, part.partition]
            read[part.topic, part.partition] = part.end
        reach = after
    assert read == reach.next
    assert reach.dropped == 0


def test_offsets_below_the_logs_start_are_dropped_and_counted_once() -> None:
    reach = begin(begin(Reach({A: 3, B: 9}, dropped=1), {A: 10, B: 4}), {A: 10, B: 4})
    assert reach == Reach({A: 10, B: 9}, dropped=8)
    assert ranges_of(Reach({A: 3, B: 9}), Reach({A: 12, B: 9}), {A: 10, B: 4}) == [Range(*A, 10, 12)]


def test_what_is_taken_after_the_plan_is_counted_beside_what_was_counted_in_it() -> None:
    start, end = Reach({A: 3, B: 0}, dropped=1), Reach({A: 12, B: 2}, dropped=3)
    assert taken_since(start, end, {A: 5, B: 0}) == 0
    assert taken_since(start, end, {A: 9, B: 1}) == 5
    assert taken_since(start, end, {A: 99, B: 99}) == 9


def test_a_new_partition_is_read_from_its_first_record_and_counts_nothing_as_dropped() -> None:
    assert begin(Reach({A: 3}), {A: 0, B: 7}) == Reach({A: 3, B: 7})


def test_a_partition_that_is_out_of_sight_keeps_its_place() -> None:
    assert advance(begin(Reach({A: 3, B: 5}), {A: 0}), {A: 4}, 10).next == {A: 4, B: 5}


def test_a_topic_that_was_made_anew_is_read_from_its_first_record_whatever_its_length() -> None:
    before = Reach({A: 5, B: 7, C: 9}, ids={"l-1s": "old", "l-2s": "same"})
    after = advance(begin(renewed(before, {"l-1s": "new", "l-2s": "same"}), {A: 0, B: 2, C: 0}), {A: 3, B: 9, C: 9}, 99)
    assert after.dropped == 0
    assert ranges_of(before, after, {A: 0, B: 2, C: 0}) == [Range(*A, 0, 3), Range(*B, 2, 9)]
    assert taken_since(before, after, {A: 0, B: 2, C: 0}) == 0
    assert from_json(json.loads(json.dumps(to_json(after)))) == after


def test_a_checkpoint_without_ids_goes_on_and_takes_a_shorter_topic_for_another_one() -> None:
    kept = to_json(Reach({A: 5, C: 9}))
    del kept["ids"]
    before, ids = from_json(kept), {"l-1s": "1", "l-2s": "1"}
    assert renewed(before, ids) == Reach({A: 5, C: 9}, ids=ids)
    assert ranges_of(before, Reach({A: 3, C: 12}, ids=ids), {}) == [Range(*A, 0, 3), Range(*C, 9, 12)]


def test_of_a_log_that_was_cut_nothing_is_read_twice() -> None:
    ids = {"l-1s": "1"}
    assert ranges_of(Reach({A: 5}, ids=ids), Reach({A: 4}, ids=ids), {}) == []


def test_the_same_reach_is_the_same_text_whatever_the_order_it_was_found_in() -> None:
    one, other = Reach({A: 1, B: 2, C: 3}), Reach({C: 3, B: 2, A: 1})
    assert json.dumps(to_json(one)) == json.dumps(to_json(other))
    assert from_json(json.loads(json.dumps(to_json(one)))) == one


def test_ranges_are_shared_out_by_size_over_no_more_tasks_than_asked() -> None:
    ranges = [Range(*A, 0, 90), Range(*B, 0, 40), Range(*C, 0, 40)]
    assert [[part.end for part in task] for task in shared_out(ranges, 2)] == [[90], [40, 40]]
    assert len(shared_out(ranges, 8)) == 3
