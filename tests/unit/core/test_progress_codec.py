"""Progress as text: what is written is read again, at its own position alone, and nothing else is believed."""

from __future__ import annotations

import base64
import zlib
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.sidecar.core.offset_ranges import OffsetRanges
from reconsume.sidecar.core.progress import SPAN, LogId, Progress, is_recreated
from reconsume.sidecar.core.progress_codec import (
    LONGEST,
    LONGEST_COUNT,
    MOST_AT,
    MOST_BYTES,
    MOST_CYCLE,
    MOST_DEATHS,
    MOST_DISTANCE,
    MOST_WIDTH,
    decode,
    encode,
    misplaced,
    unread,
)
from reconsume.sidecar.core.record import Partition

HERE, START = Partition("orders", 3), 1_000
PLACE = "3-1000-e52ffdee"
LOG = LogId.of("5L6g3nShT-eMCtK--X86sw", "M6OUn4+TR62zRSDg/A1pTQ")


def written(**parts: Any) -> str:
    """The metadata of progress at `START`."""
    return encode(HERE, Progress(START, **parts))


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({}, f"rc1..{PLACE}"),
        ({"clean": True}, f"rc1.c.{PLACE}"),
        ({"clean": True, "notes": True}, f"rc1.cn.{PLACE}"),
        ({"log": LogId("0a0b0c0d", "deadbeef")}, f"rc1..{PLACE}-0a0b0c0d-deadbeef"),
        ({"deaths": 2, "mark": START, "reach": START - 1}, f"rc1..{PLACE}..2.0.0"),
        ({"deaths": 10_000, "mark": START - 1, "reach": START - 2}, f"rc1..{PLACE}..9999"),
        ({"mark": START + 5, "reach": START + 6}, f"rc1..{PLACE}...5.7"),
        ({"mark": START + MOST_DISTANCE}, f"rc1..{PLACE}...{MOST_DISTANCE}"),
        ({"mark": START + 1 + MOST_DISTANCE}, f"rc1..{PLACE}"),
        ({"reach": START + MOST_DISTANCE}, f"rc1..{PLACE}"),
        ({"width": 0, "last_at_ms": 0}, f"rc1..{PLACE}.....0.0"),
        ({"width": 100_000, "last_at_ms": MOST_AT + 1}, f"rc1..{PLACE}.....99999"),
        ({"last_at_ms": -1}, f"rc1..{PLACE}"),
        ({"cycle": 12}, f"rc1..{PLACE}.......12"),
    ],
)
def test_each_part_has_its_place_and_empty_ones_at_the_end_are_left_out(parts: dict[str, Any], text: str) -> None:
    assert written(**parts) == text


def progresses() -> st.SearchStrategy[Progress]:
    """Progress with any of its parts."""

    def build(first: int, distances: set[int], **parts: Any) -> Progress:
        return Progress(first, OffsetRanges.of(first + one for one in distances), **parts)

    return st.builds(
        build,
        st.integers(0, 2**60),
        st.sets(st.integers(1, SPAN - 1) | st.integers(SPAN, 9 * SPAN), max_size=60),
        clean=st.booleans(),
        notes=st.booleans(),
        deaths=st.integers(0, 9_999),
        width=st.none() | st.integers(0, 99_999),
        last_at_ms=st.none() | st.integers(0, MOST_AT),
        log=st.none() | st.just(LOG),
        cycle=st.integers(0, 9_999_999),
    )


@settings(deadline=None)
@given(progresses(), st.none() | st.integers(0, 9 * SPAN), st.none() | st.integers(-1, 9 * SPAN), st.integers(0, 900))
def test_what_is_written_is_read_and_only_at_its_own_position(
    progress: Progress, mark: int | None, reach: int | None, spaces: int
) -> None:
    """`spaces`: that many are filled in behind the text."""
    first = progress.next
    made = replace(
        progress, mark=None if mark is None else first + mark, reach=None if reach is None else first + reach
    )
    text = encode(HERE, made) + " " * spaces
    assert decode(HERE, first, text) == made
    assert (unread(text), misplaced(HERE, first, text)) == ("", "")
    for source, offset, why in (
        (HERE, first + 1, f"at offset {first}, and is at offset {first + 1}"),
        (Partition("orders", 4), first, "for partition 3"),
        (Partition("west.orders", 3), first, "another topic"),
    ):
        assert decode(source, offset, text) == Progress(offset, ours=False)
        assert why in misplaced(source, offset, text)


def test_only_the_same_cluster_with_another_topic_id_says_that_a_topic_was_recreated() -> None:
    again, elsewhere = LogId.of("5L6g3nShT-eMCtK--X86sw", "another"), LogId.of("another", "another")
    assert is_recreated(LOG, again)
    assert not any(is_recreated(*pair) for pair in ((LOG, LOG), (LOG, elsewhere), (LOG, None), (None, LOG)))


@pytest.mark.parametrize("metadata", [None, "", "x", "rc", "rcx.y", "other.rc3", "consumer-1", written(deaths=1)])
def test_nothing_is_said_of_what_is_read_and_of_what_is_not_ours(metadata: str | None) -> None:
    assert unread(metadata) == ""


@pytest.mark.parametrize("metadata", ["rc2.c.abc", "rc3", "rc12.", "rc1c.", "rc2 "])
def test_a_form_of_a_newer_version_is_named_and_means_nothing_done(metadata: str) -> None:
    form = metadata.partition(".")[0].strip()
    assert unread(metadata) == f"a newer version of Reconsume wrote it, in the form {form!r}"
    assert decode(HERE, 100, metadata) == Progress(100, ours=False)


def test_a_form_is_named_with_twelve_characters_at_most() -> None:
    assert unread("rc3" + "x" * 30) == f"a newer version of Reconsume wrote it, in the form {'rc3xxxxxxxxx'!r}"


@pytest.mark.parametrize("place", ["", "3-1000", "3-1000-e52ffdee-", "3-1000-c9b57cca-0a0b0c0d", "x-1-c9b57cca"])
def test_progress_that_does_not_name_its_position_is_believed_nowhere(place: str) -> None:
    assert "for which position" in unread(f"rc1.c.{place}")
    assert decode(HERE, START, f"rc1.c.{place}") == Progress(START, ours=False)


def test_a_broken_done_set_is_named_and_the_offset_counts_all_the_same() -> None:
    assert unread(f"rc1.c.{PLACE}.!..3") == "its done set is broken"
    assert decode(HERE, START, f"rc1.c.{PLACE}.!.3") == Progress(START, clean=True, deaths=3)


@pytest.mark.parametrize(("text", "deaths"), [("0" * 12 + "5", 5), ("0" * 13 + "5", 0), ("9999", 9_999), ("10000", 0)])
def test_a_number_has_thirteen_digits_at_most(text: str, deaths: int) -> None:
    assert decode(HERE, START, f"rc1..{PLACE}..{text}") == Progress(START, deaths=deaths)


# --- the done set ----------------------------------------------------------------------------------------------------


def done(*ranges: tuple[int, int]) -> OffsetRanges:
    """The set of these ranges, from `START` on."""
    return OffsetRanges((START + first, START + end) for first, end in ranges)


def content_of(ranges: OffsetRanges) -> bytes:
    """The bytes of a done set as it is written."""
    return zlib.decompress(base64.urlsafe_b64decode(written(done=ranges).split(".")[3]))


def read(content: bytes) -> OffsetRanges | None:
    """The done set that these bytes say; None if they are broken."""
    text = f"rc1..{PLACE}.{base64.urlsafe_b64encode(zlib.compress(content)).decode()}"
    found = OffsetRanges.of(decode(HERE, START, text).done)
    return None if unread(text) else found


@pytest.mark.parametrize(
    ("ranges", "content"),
    [
        ([(1, 2)], "000101"),
        ([(300, 301), (302, 303)], "00ac0205"),
        ([(1, 3), (7, 9), (15, 16)], "0001c340"),
        ([(SPAN - 1, SPAN)], "00ff7f01"),  # within SPAN there are no pairs
        ([(SPAN, SPAN + 1)], "0080800101"),
        ([(1, 3), (SPAN, SPAN + 1)], "010102fd7f01"),
        ([(1, 3), (130, 260), (SPAN + 5, SPAN + 7)], "0201027f8201817e03"),
        ([(1, 3), (8_200, 8_201), (SPAN + 7, SPAN + 8)], "010102854001" + 1_022 * "00" + "80"),
        ([(1, 3), (8_000, 40_000)], "020102bd3e80fa0100"),  # the last range begins below the bitmap
    ],
)
def test_a_done_set_is_pairs_of_counts_and_a_bitmap_of_the_rest(ranges: list[tuple[int, int]], content: str) -> None:
    assert content_of(done(*ranges)).hex() == content
    assert read(bytes.fromhex(content)) == done(*ranges)


def test_every_second_offset_of_a_span_is_written() -> None:
    every_second = OffsetRanges.of(range(START + 1, START + SPAN, 2))
    assert read(content_of(every_second)) == every_second


@pytest.mark.parametrize(("pairs", "is_whole"), [(1_029, True), (1_030, False)])
def test_of_more_than_is_read_the_furthest_are_left_out_and_no_two_texts_are_the_same(
    pairs: int, *, is_whole: bool
) -> None:
    """Given so many ranges far below the last one, which cost two bytes each; six more are for the last one. No bound
    of ours lets that happen: only forged metadata does."""
    ranges = done(*((4 * number + 1, 4 * number + 4) for number in range(pairs)), (8 * SPAN, 8 * SPAN + 1))
    first, second = written(done=ranges), written(done=ranges)
    found = OffsetRanges.of(decode(HERE, START, first).done)
    assert found == (ranges if is_whole else ranges.first_ranges(pairs // 2))
    assert (first == second) is is_whole, "the committed text tells whether a batch is in Kafka"
    assert len(first) < LONGEST


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
    ("content", "last"),
    [
        (counts(0, 5) + BITMAP, 5 + SPAN - 1),
        (counts(0, 5) + BITMAP + b"\x01", None),
        (counts(0, MOST_DISTANCE) + b"\x01", MOST_DISTANCE),
        (counts(0, MOST_DISTANCE + 1) + b"\x01", None),
        (counts(1, MOST_DISTANCE - 1, 1, 0), MOST_DISTANCE - 1),
        (counts(1, MOST_DISTANCE, 1, 0), None),
        (counts(1, 1, MOST_DISTANCE, 0), None),
        (counts(2, 3, 2, 4, 1, 0), 9),
        (counts(1, 3) + b"\x82\x80\x80\x00" + counts(0), 4),  # a count may be longer than it must
        (counts(1, 3) + b"\x82\x80\x80\x80\x80\x80\x00" + counts(0), 4),
        (counts(1, 3) + b"\x82\x80\x80\x80\x80\x80\x80\x00" + counts(0), None),
        (counts(1) + SIX + b"\x01" + counts(1, 0), 2**43 - 1),
        (counts(1) + SIX + b"\x03" + counts(1, 0), None),  # more than an offset can be
        (counts(1, 3, 2), None),
        (counts(MOST_BYTES + 1), None),
        (b"", None),
    ],
)
def test_more_than_can_be_is_read_as_broken(content: bytes, last: int | None) -> None:
    found = read(content)
    assert (None if found is None else found.end - 1) == (None if last is None else START + last)


WHOLE = base64.urlsafe_b64encode(zlib.compress(b"\x00\x01\x01")).decode()


@pytest.mark.parametrize("text", ["é", "a", f"{WHOLE[:4]}!{WHOLE[4:]}", f"{WHOLE}!"])
def test_a_text_that_is_none_of_ours_is_broken(text: str) -> None:
    assert unread(f"rc1..{PLACE}.{text}") == "its done set is broken"


# --- what is not ours, or broken --------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**62), st.integers(0, 2**32), st.floats(0, 1))
def test_a_full_span_always_fits_the_metadata(first: int, seed: int, density: float) -> None:
    random = Random(seed)
    done = frozenset(first + place for place in range(1, SPAN) if random.random() < density)
    marks = {"deaths": MOST_DEATHS, "mark": first + SPAN, "reach": first + SPAN - 1, "width": MOST_WIDTH}
    more = {"last_at_ms": MOST_AT, "log": LogId("0" * 8, "f" * 8), "cycle": MOST_CYCLE, "notes": True}
    worst = Progress(first, done, True, **marks, **more)  # type: ignore[arg-type]
    metadata = encode(HERE, worst)
    assert len(metadata) < LONGEST
    assert decode(HERE, first, metadata) == worst


def test_only_a_clean_end_carries_the_clean_mark() -> None:
    assert decode(HERE, 1, encode(HERE, Progress(1, clean=True))).clean
    assert not decode(HERE, 1, encode(HERE, Progress(1))).clean
    assert not decode(HERE, 1, None).clean


@given(st.text(max_size=200) | st.none(), st.integers(0, 2**62))
def test_foreign_metadata_is_an_empty_set(metadata: str | None, offset: int) -> None:
    found = decode(HERE, offset, metadata)
    assert found.next == offset
    assert not found.done


AT_SEVEN = "3-7-e52ffdee"


@given(st.binary(max_size=60) | st.text(max_size=60))
def test_broken_metadata_of_our_form_is_an_empty_set(body: bytes | str) -> None:
    text = body if isinstance(body, str) else base64.urlsafe_b64encode(body).decode()
    found = decode(HERE, 7, f"rc1..{AT_SEVEN}.{text}")
    assert (found.next, found.done) == (7, frozenset())


@pytest.mark.parametrize(
    ("suffix", "deaths", "mark", "reach"),
    [
        ("", 0, None, None),
        (".2", 2, None, None),
        (".2.5", 2, 12, None),
        (".2..5", 2, None, 11),
        ("...5", 0, None, 11),
        (".x.5.3", 0, 12, 9),
        (".2.-1.10000000000000", 2, None, None),
        (".10000.٣", 0, None, None),
        (".2.5.3.more", 2, 12, 9),
    ],
)
def test_each_broken_part_counts_as_absent(suffix: str, deaths: int, mark: int | None, reach: int | None) -> None:
    found = decode(HERE, 7, f"rc1..{AT_SEVEN}.{suffix}")
    assert found == Progress(7, deaths=deaths, mark=mark, reach=reach)


def packed(data: bytes) -> str:
    return f"rc1..{AT_SEVEN}.{base64.urlsafe_b64encode(data).decode()}"


@pytest.mark.parametrize(
    "metadata",
    [
        packed(zlib.compress(b"\xff" * 5_000_000)),
        packed(zlib.compress(b"\xff" * 100)[:-1]),
        packed(zlib.compress(b"\xff" * 100)[:-4] + b"wxyz"),
        packed(zlib.compress(b"\xff" * 100) + b"more"),
        packed(zlib.compress(b"\x01" * 5_000_000)),
        packed(zlib.compress(b"\x01" * 100)[:-1]),
        packed(zlib.compress(b"\x02\x01\x01\x01")),
        packed(zlib.compress(b"\x01\xff")),
        packed(zlib.compress(b"\x01\x01\x01")),
        packed(zlib.compress(b"\x01" + b"\xff" * 8 + b"\x01")),
        packed(zlib.compress(b"\x04" + (b"\x01" + b"\xff" * 6 + b"\x01") * 4 + b"\x00")),
        packed(zlib.compress(b"\x00\x00" + b"\xff" * (SPAN // 8 + 1))),
    ],
    ids=[
        "a bomb",
        "cut off",
        "a wrong sum",
        "more behind it",
        "a bomb of ranges",
        "ranges cut off",
        "a range without its end",
        "a number without its end",
        "no count before the bitmap",
        "a number that no offset can be",
        "ranges beyond all offsets",
        "a bitmap that is too long behind the pairs",
    ],
)
def test_a_done_set_that_is_not_whole_is_an_empty_set(metadata: str) -> None:
    assert decode(HERE, 7, metadata) == Progress(7)
