"""What follows for the records of a partition from how much metadata the brokers take."""

from __future__ import annotations

import pytest

from reconsume.sidecar.core.progress_bounds import LONGEST, SPAN, Bounds


@pytest.mark.parametrize(
    ("most", "window", "far_bytes"),
    [
        (LONGEST, 8_192, 1_000),
        (2_919, 8_192, 1_000),  # the longest that we write
        (2_917, 8_184, 1_000),
        (2_800, 7_832, 979),
        (1_024, 2_504, 313),
        (192, 8, 1),
        (191, 8, 1),
        (190, 0, 0),
        (124, 0, 0),
        (0, 0, 0),
    ],
)
def test_window_and_far_offsets_share_what_the_brokers_take(most: int, window: int, far_bytes: int) -> None:
    bounds = Bounds(far=True, span=500, skip=7).within(most)
    assert bounds == Bounds(far=True, span=500, skip=7, window=window, far_bytes=far_bytes, most=most)
    assert {type(bounds.window), type(bounds.far_bytes)} == {int}, "they bound offsets and bytes"


def test_bounds_follow_the_present_brokers_alone() -> None:
    assert Bounds().within(100).within(LONGEST) == Bounds().within(10 * LONGEST)._replace(most=LONGEST)
    assert Bounds().within(LONGEST) == Bounds() == (False, SPAN, SPAN // 2, 1_000, 4_096, 4_096)


@pytest.mark.parametrize(("most", "tight"), [(LONGEST - 1, True), (LONGEST, False), (2 * LONGEST, False)])
def test_only_less_than_kafkas_default_is_tight(most: int, tight: bool) -> None:
    assert Bounds(most=most).tight is tight
