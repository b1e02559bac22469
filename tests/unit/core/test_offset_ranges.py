"""Offsets as ranges are sets like any other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.core.offset_ranges import OffsetRanges

OFFSETS = st.frozensets(st.integers(0, 60), max_size=40)


@given(OFFSETS, OFFSETS, st.integers(0, 60), st.integers(0, 60))
def test_they_say_what_a_set_says(one: frozenset[int], two: frozenset[int], first: int, end: int) -> None:
    left, right = OffsetRanges.of(one), OffsetRanges.of(two)
    assert (left == one, hash(left) == hash(OffsetRanges.of(one)), list(left), len(left)) == (
        True,
        True,
        sorted(one),
        len(one),
    )
    assert (left == right) == (one == two)
    assert (left | right, left & right, left - right) == (one | two, one & two, one - two)
    assert left.within(first, end) == {offset for offset in one if first <= offset < end}
    assert [offset for offset in range(-1, 62) if offset in left] == sorted(one)
    assert left.end == (max(one) + 1 if one else 0)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12))
def test_ranges_that_touch_or_overlap_are_one(ranges: list[tuple[int, int]]) -> None:
    found = OffsetRanges(sorted(ranges))
    assert set(found) == {offset for first, end in ranges for offset in range(first, end)}
    assert all(first < end for first, end in found.ranges)
    assert all(one[1] < two[0] for one, two in zip(found.ranges, found.ranges[1:], strict=False))


@given(OFFSETS, st.integers(-1, 61))
def test_the_end_of_a_range_is_the_first_offset_behind_it(offsets: frozenset[int], at: int) -> None:
    end = OffsetRanges.of(offsets).end_of(at)
    if at not in offsets:
        assert end is None
    else:
        assert end == next(offset for offset in range(at, 62) if offset not in offsets)


def test_equal_sets_are_one_key_however_they_were_made_and_say_their_ranges() -> None:
    one, two = OffsetRanges.of((1, 2, 3, 7)), OffsetRanges([(1, 3), (2, 4), (7, 8)])
    assert {one: "a"} == {two: "a"}
    assert hash(one) != hash(OffsetRanges([(1, 4)]))
    assert repr(one) == "OffsetRanges([(1, 4), (7, 8)])"
