"""Progress as text: each number in its place, what is left out, and how much of a done set is named."""

from __future__ import annotations

import base64
import zlib
from itertools import pairwise
from random import Random

import pytest

from reconsume.sidecar.core.done_set import MOST_DISTANCE, render_done
from reconsume.sidecar.core.offset_ranges import NONE, OffsetRanges
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_bounds import SPAN
from reconsume.sidecar.core.progress_codec import MOST_AT, Length, decode, encode, encode_with, unread

WITHOUT_LIMIT = Length(1_000_000, 1_000_000)


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progress(7), "rc1o."),
        (Progress(7, clean=True), "rc1c."),
        (Progress(SPAN + 10), "rc1o."),
        (Progress(7, deaths=2, mark=7, reach=6), "rc1o..2.0.0"),
        (Progress(7, deaths=10_000, mark=6, reach=5), "rc1o..9999"),
        (Progress(7, mark=12, reach=13), "rc1o...5.7"),
        (Progress(7, mark=7 + SPAN, reach=6 + SPAN), "rc1o...16384.16384"),
        (Progress(7, mark=8 + SPAN), "rc2o...16385"),
        (Progress(7, reach=7 + SPAN), "rc2o....16385"),
        (Progress(7, mark=7 + MOST_DISTANCE), "rc2o...9999999999999"),
        (Progress(7, mark=8 + MOST_DISTANCE), "rc1o."),
        (Progress(7, reach=6 + MOST_DISTANCE), "rc2o....9999999999999"),
        (Progress(7, reach=7 + MOST_DISTANCE), "rc1o."),
        (Progress(7, width=0, last_at_ms=0), "rc1o.....0.0"),
        (Progress(7, width=99_999, last_at_ms=MOST_AT), "rc1o.....99999.9999999999999"),
        (Progress(7, width=100_000, last_at_ms=MOST_AT + 1), "rc1o.....99999"),
        (Progress(7, last_at_ms=-1), "rc1o."),
    ],
)
def test_each_number_has_its_place_and_empty_ones_at_the_end_are_left_out(progress: Progress, text: str) -> None:
    assert encode(progress) == text
    assert encode(progress, "stamp") == text + "." * (7 - text.count(".")) + "stamp"


def test_what_is_filled_up_behind_a_done_set_makes_way_for_the_numbers_of_a_crash() -> None:
    length, body = WITHOUT_LIMIT._replace(spare=9), render_done(7, OffsetRanges([(8, 9)]), far=False)
    plain, crashed = Progress(7, {8}), Progress(7, {8}, deaths=12, mark=8, reach=9)
    assert encode_with(plain, NONE, "s", length) == f"rc1o.{body}......s._________"
    assert encode_with(crashed, NONE, "s", length) == f"rc1o.{body}.12.1.3...s._____"
    assert encode_with(Progress(7), NONE, "s", length) == "rc1o.......s", "without a done set there is nothing to keep"


NEAR = OffsetRanges.of(Random(1).sample(range(10, 1_500), 700))
SOME = NEAR.first_ranges(3)


@pytest.mark.parametrize(
    ("kept", "most", "ceiling", "named"),
    [
        (NONE, 0, 0, NEAR),
        (NONE, -1, 0, None),
        (NEAR, -1, 0, NEAR),  # what must be named is tried with what brokers may take
        (SOME, -1, 0, None),
    ],
)
def test_all_is_named_where_there_is_room(
    kept: OffsetRanges, most: int, ceiling: int, named: OffsetRanges | None
) -> None:
    """`most` and `ceiling`: more than the length of the whole text. None: fewer, with `once` behind them."""
    progress = Progress(5, NEAR)
    whole = encode(progress)
    text = encode_with(progress, kept, "", Length(len(whole) + most, len(whole) + ceiling), "once")
    assert text is not None
    assert (text == whole) is (named is not None)
    assert text.endswith(".once") is (named is None)


def test_without_room_for_what_must_be_named_there_is_no_text() -> None:
    progress = Progress(5, NEAR)
    least = encode_with(Progress(5, SOME), NONE, "", WITHOUT_LIMIT)
    assert least is not None
    assert encode_with(progress, SOME, "", Length(0, len(least))) == least
    assert encode_with(progress, SOME, "", Length(0, len(least) - 1)) is None
    assert encode_with(progress, NONE, "", Length(0, len("rc1o.") - 1)) == encode(progress, most=4) == ""
    assert encode(progress, most=5) == "rc1o."


@pytest.mark.parametrize("ranges", [2, 3, 5, 9])
def test_of_a_few_ranges_the_most_are_named_that_fit(ranges: int) -> None:
    random = Random(ranges)
    ends = sorted(random.sample(range(2**30, 2**42), 2 * ranges))
    done = OffsetRanges(list(pairwise(ends))[::2])
    kept = done.within(*done.ranges[ranges // 2])
    texts = [encode(Progress(0, done.first_ranges(count).union(kept)), most=4_096) for count in range(ranges + 1)]
    lengths = list(map(len, texts))
    assert lengths == sorted(lengths), "the test is about texts that grow with each range"
    for most in range(lengths[0], lengths[-1]):
        best = max(count for count, length in enumerate(lengths) if length <= most)
        assert encode_with(Progress(0, done), kept, "", Length(most, most)) == texts[best]


@pytest.mark.parametrize(("text", "deaths"), [("0" * 12 + "5", 5), ("0" * 13 + "5", 0), ("9999", 9_999), ("10000", 0)])
def test_a_number_has_thirteen_digits_at_most(text: str, deaths: int) -> None:
    assert decode(7, f"rc1o..{text}") == Progress(7, deaths=deaths)


@pytest.mark.parametrize(("form", "is_broken"), [("rc1o", False), ("rc2o", True)])
def test_a_done_set_is_judged_by_its_form(form: str, is_broken: bool) -> None:
    bitmap = base64.urlsafe_b64encode(zlib.compress(b"\x80")).decode()  # a count without its end
    assert bool(unread(f"{form}.{bitmap}")) is is_broken
