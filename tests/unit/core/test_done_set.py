"""A done set as bytes: the form that other versions read, and the most that is written or read."""

from __future__ import annotations

import base64
import zlib

import pytest

from reconsume.sidecar.core.done_set import LONGEST_COUNT, MOST_BYTES, MOST_DISTANCE, parse_done, render_done
from reconsume.sidecar.core.offset_ranges import OffsetRanges
from reconsume.sidecar.core.progress_bounds import SPAN

START = 1_000


def content_of(text: str | None) -> bytes:
    """The bytes of a text."""
    assert text
    return zlib.decompress(base64.urlsafe_b64decode(text))


def text_of(content: bytes) -> str:
    return base64.urlsafe_b64encode(zlib.compress(content)).decode()


def done(*ranges: tuple[int, int]) -> OffsetRanges:
    """The set of these ranges, from `START` on."""
    return OffsetRanges((START + first, START + end) for first, end in ranges)


@pytest.mark.parametrize(
    ("ranges", "content"),
    [
        ([(1, 2)], "02"),
        ([(0, 7)], "7f"),
        ([(0, 8)], "ff"),
        ([(8, 9)], "0001"),
        ([(1, 3), (7, 9), (15, 16)], "8681"),
        ([(3, 16)], "f8ff"),
        ([(3, 29)], "f8ffff1f"),
    ],
)
def test_near_is_a_bit_for_each_offset_the_lowest_first(ranges: list[tuple[int, int]], content: str) -> None:
    text = render_done(START, done(*ranges), far=False)
    assert content_of(text).hex() == content
    assert parse_done(START, text or "", far=False) == done(*ranges)


@pytest.mark.parametrize(
    ("ranges", "content"),
    [
        ([(1, 2)], "000101"),
        ([(300, 301), (302, 303)], "00ac0205"),
        ([(SPAN - 1, SPAN)], "00ff7f01"),  # within SPAN there are no pairs
        ([(SPAN, SPAN + 1)], "0080800101"),
        ([(1, 3), (SPAN, SPAN + 1)], "010102fd7f01"),
        ([(1, 3), (130, 260), (SPAN + 5, SPAN + 7)], "0201027f8201817e03"),
        ([(1, 3), (8_200, 8_201), (SPAN + 7, SPAN + 8)], "010102854001" + 1_022 * "00" + "80"),
        ([(1, 3), (8_000, 40_000)], "020102bd3e80fa0100"),  # the last range begins below the bitmap
    ],
)
def test_far_are_pairs_of_counts_and_a_bitmap_of_the_rest(ranges: list[tuple[int, int]], content: str) -> None:
    text = render_done(START, done(*ranges), far=True)
    assert content_of(text).hex() == content
    assert parse_done(START, text or "", far=True) == done(*ranges)


def test_every_second_offset_of_a_span_is_written_in_both_forms() -> None:
    """The far form is written for such a set if a mark is far: in pairs it would be too long, and be left out."""
    every_second = OffsetRanges.of(range(START, START + SPAN, 2))
    for far in (False, True):
        assert parse_done(START, render_done(START, every_second, far=far) or "", far=far) == every_second


@pytest.mark.parametrize(
    ("far", "last", "length"),
    [(False, SPAN - 1, SPAN // 8), (False, SPAN, None), (True, SPAN - 1, SPAN // 8 + 2)],
)
def test_what_no_version_reads_is_not_written(far: bool, last: int, length: int | None) -> None:
    text = render_done(START, done((0, 1), (last, last + 1)), far=far)
    assert (text is None) == (length is None)
    assert length is None or len(content_of(text)) == length


@pytest.mark.parametrize(("pairs", "is_written"), [(1_029, True), (1_030, False)])
def test_pairs_are_written_up_to_the_longest_that_is_read(pairs: int, is_written: bool) -> None:
    """Given so many ranges far below the last one, which cost two bytes each; six more are for the last one."""
    far_ranges = [(4 * number, 4 * number + 3) for number in range(pairs)]
    text = render_done(START, done(*far_ranges, (8 * SPAN, 8 * SPAN + 1)), far=True)
    assert (text is not None) is is_written
    assert text is None or len(content_of(text)) == 2 * pairs + 6 == MOST_BYTES


BITMAP = b"\xff" * (SPAN // 8)
SIX = b"\xff" * (LONGEST_COUNT - 1)
"""All but the last byte of the longest count."""


def counts(*numbers: int) -> bytes:
    """Numbers as counts of seven bits a byte, the lowest first."""
    data = bytearray()
    for number in numbers:
        while number > 127:
            data.append(128 | number & 127)
            number >>= 7
        data.append(number)
    return bytes(data)


@pytest.mark.parametrize(
    ("content", "far", "last"),
    [
        (BITMAP, False, SPAN - 1),
        (BITMAP + b"\x01", False, None),
        (counts(0, 5) + BITMAP, True, 5 + SPAN - 1),
        (counts(0, 5) + BITMAP + b"\x01", True, None),
        (counts(0, MOST_DISTANCE) + b"\x01", True, MOST_DISTANCE),
        (counts(0, MOST_DISTANCE + 1) + b"\x01", True, None),
        (counts(1, MOST_DISTANCE - 1, 1, 0), True, MOST_DISTANCE - 1),
        (counts(1, MOST_DISTANCE, 1, 0), True, None),
        (counts(1, 1, MOST_DISTANCE, 0), True, None),
        (counts(2, 3, 2, 4, 1, 0), True, 9),
        (counts(1, 3) + b"\x82\x80\x80\x00" + counts(0), True, 4),  # a count may be longer than it must
        (counts(1, 3) + b"\x82\x80\x80\x80\x80\x80\x00" + counts(0), True, 4),
        (counts(1, 3) + b"\x82\x80\x80\x80\x80\x80\x80\x00" + counts(0), True, None),
        (counts(1) + SIX + b"\x01" + counts(1, 0), True, 2**43 - 1),
        (counts(1) + SIX + b"\x03" + counts(1, 0), True, None),  # more than an offset can be
        (counts(1, 3, 2), True, None),
        (counts(MOST_BYTES + 1), True, None),
    ],
)
def test_more_than_can_be_is_read_as_broken(content: bytes, far: bool, last: int | None) -> None:
    found = parse_done(START, text_of(content), far=far)
    assert (None if found is None else found.end - 1) == (None if last is None else START + last)


WHOLE = text_of(b"\x00\x01\x01")


@pytest.mark.parametrize("text", [text_of(b""), "é", "a", f"{WHOLE[:4]}!{WHOLE[4:]}", f"{WHOLE}!"])
def test_a_text_that_is_none_of_ours_is_broken(text: str) -> None:
    assert [parse_done(START, text, far=far) for far in (False, True)] == [None, None]


def test_an_empty_set_is_no_text() -> None:
    for far in (False, True):
        assert render_done(START, OffsetRanges(), far=far) == ""
        assert parse_done(START, "", far=far) == OffsetRanges()
