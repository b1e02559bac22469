"""Progress: it never claims what is not done, whatever the order, the gaps and the metadata."""

import base64
import zlib
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.sidecar.core.done_set import MOST_DISTANCE
from reconsume.sidecar.core.offset_ranges import OffsetRanges
from reconsume.sidecar.core.progress import Progress, ProgressTracker
from reconsume.sidecar.core.progress_bounds import SPAN
from reconsume.sidecar.core.progress_codec import MOST_AT, MOST_DEATHS, MOST_WIDTH, Length, decode, encode, encode_with

KAFKA_TAKES = 4_095
"""Characters of metadata (`offset.metadata.max.bytes` is 4 096; the broker refuses the last one: measured)."""


@st.composite
def logs(draw: st.DrawFn) -> list[int]:
    """Offsets of a log's records, with the gaps that markers and compaction leave."""
    steps = draw(st.lists(st.integers(1, 4) | st.just(40), min_size=1, max_size=40))
    start, log = draw(st.integers(0, 2**40)), []
    for step in steps:
        start += step
        log.append(start)
    return log


@st.composite
def progresses(draw: st.DrawFn) -> Progress:
    first, most = draw(st.integers(0, 2**62)), draw(st.sampled_from([SPAN, 10**9]))
    done = draw(st.frozensets(st.integers(0, most - 1), max_size=60))
    span = most if max(done, default=0) >= SPAN else SPAN
    return Progress(
        first,
        frozenset(first + distance for distance in done),
        draw(st.booleans()),
        deaths=draw(st.integers(0, MOST_DEATHS)),
        mark=draw(st.none() | st.integers(first, first + span)),
        reach=draw(st.none() | st.integers(first - 1, first + span - 1)),
        width=draw(st.none() | st.integers(0, MOST_WIDTH)),
        last_at_ms=draw(st.none() | st.integers(0, MOST_AT)),
    )


@given(logs(), st.data())
def test_a_snapshot_covers_exactly_what_was_finished_or_is_about_to_be(log: list[int], data: st.DataObject) -> None:
    tracker = ProgressTracker(Progress(log[0]))
    begun: list[int] = []
    finished: set[int] = set()
    waiting = list(log)
    for step in data.draw(st.lists(st.sampled_from(["begin", "finish", "look"]), max_size=100)):
        if step == "begin" and waiting:
            begun.append(waiting.pop(0))
            assert tracker.begin(begun[-1])
        elif step == "finish" and set(begun) - finished:
            offset = data.draw(st.sampled_from(sorted(set(begun) - finished)))
            finished.add(offset)
            tracker.finish(offset)
        elif step == "look":
            extra = data.draw(st.sets(st.sampled_from(log)) if begun else st.just(set())) & set(begun)
            covered = tracker.snapshot(extra)
            assert {offset for offset in log if covered.covers(offset)} == finished | extra
            assert tracker.open == len(set(begun) - finished)


@given(logs(), st.data())
def test_a_new_owner_begins_exactly_what_is_not_done(log: list[int], data: st.DataObject) -> None:
    first = ProgressTracker(Progress(log[0]))
    reached = data.draw(st.integers(1, len(log)))
    for offset in log[:reached]:
        first.begin(offset)
    done = data.draw(st.sets(st.sampled_from(log[:reached])))
    for offset in data.draw(st.permutations(sorted(done))):
        first.finish(offset)
    left = first.snapshot()

    second = ProgressTracker(decode(left.next, encode(left)))
    again = [offset for offset in log if offset >= left.next and second.begin(offset)]
    assert again == [offset for offset in log if offset not in done]
    for offset in data.draw(st.permutations(again)):
        second.finish(offset)
    assert second.snapshot() == Progress(log[-1] + 1)


@given(progresses())
def test_progress_survives_its_metadata(progress: Progress) -> None:
    assert decode(progress.next, encode(progress)) == progress


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**62), st.integers(0, 2**32), st.floats(0, 1))
def test_a_full_span_always_fits_the_metadata(first: int, seed: int, density: float) -> None:
    random = Random(seed)
    done = frozenset(first + place for place in range(1, SPAN) if random.random() < density)
    marks = {"deaths": MOST_DEATHS, "mark": first + SPAN, "reach": first + SPAN - 1, "width": MOST_WIDTH}
    worst = Progress(first, done, True, **marks, last_at_ms=MOST_AT)  # type: ignore[arg-type]
    metadata = encode(worst)
    assert len(metadata) <= KAFKA_TAKES
    assert decode(first, metadata).done == done


@pytest.mark.parametrize(("furthest", "form"), [(SPAN - 1, "rc1o."), (SPAN, "rc2o."), (10**9, "rc2o.")])
def test_the_form_that_older_versions_read_is_written_wherever_it_can_say_the_same(furthest: int, form: str) -> None:
    progress = Progress(5, frozenset({6, 5 + furthest}))
    assert encode(progress).startswith(form)
    assert decode(5, encode(progress)).done == progress.done


def test_mark_and_reach_beyond_the_bitmap_are_written_although_the_done_set_is_near() -> None:
    """Given a suspect far behind the first open record, then the next owner knows it."""
    progress = Progress(0, frozenset({5}), mark=20_000, reach=25_000, deaths=2)
    assert encode(progress).startswith("rc2o.")
    assert decode(0, encode(progress)) == progress


def test_where_the_brokers_take_little_the_furthest_ranges_are_left_out() -> None:
    random = Random(7)
    progress = Progress(0, OffsetRanges((at, at + random.randint(1, 499)) for at in range(1, 200_000, 501)))
    found = decode(0, encode(progress, most=200))
    assert 0 < len(found.done) < len(progress.done)
    kept = OffsetRanges.of(found.done).ranges
    assert kept[:-1] == OffsetRanges.of(progress.done).ranges[: len(kept) - 1]
    assert len(encode(progress, most=200)) <= 200


@settings(deadline=None)
@given(st.frozensets(st.integers(1, 3 * SPAN), max_size=300), st.integers(0, 400), st.data())
def test_what_must_be_kept_is_kept_however_short_the_metadata_or_there_is_none(
    done: frozenset[int], most: int, data: st.DataObject
) -> None:
    """Given counted attempts among the done records, then the text names all of them, or there is no text."""
    kept = OffsetRanges.of(data.draw(st.frozensets(st.sampled_from(sorted(done)), max_size=20)) if done else ())
    text = encode_with(Progress(0, done), kept, "stamp", Length(most, most))
    if text is None:
        assert kept.ranges
        return
    assert len(text) <= most
    assert text or not kept.ranges
    found = decode(0, text).done
    assert found >= kept
    assert found <= done


@given(st.text(max_size=200) | st.none(), st.integers(0, 2**62))
def test_foreign_metadata_is_an_empty_set(metadata: str | None, offset: int) -> None:
    found = decode(offset, metadata)
    assert found.next == offset
    assert not found.done


@given(st.binary(max_size=60) | st.text(max_size=60), st.sampled_from(["rc1o.", "rc1c.", "rc2o.", "rc2c."]))
def test_broken_metadata_of_our_form_is_an_empty_set(body: bytes | str, tag: str) -> None:
    text = body if isinstance(body, str) else base64.urlsafe_b64encode(body).decode()
    found = decode(7, tag + text)
    assert (found.next, found.done) == (7, frozenset())


@given(progresses(), st.text(st.sampled_from("0123456789.-x٣ "), max_size=12))
def test_what_is_broken_behind_the_bitmap_takes_nothing_from_it(progress: Progress, text: str) -> None:
    plain = replace(progress, deaths=0, mark=None, reach=None, width=None, last_at_ms=None)
    found = decode(progress.next, encode(plain) + "." + text)
    assert replace(found, deaths=0, mark=None, reach=None, width=None, last_at_ms=None) == plain
    assert 0 <= found.deaths <= MOST_DEATHS
    for offset, least in ((found.mark, 0), (found.reach, -1)):
        assert offset is None or least <= offset - progress.next <= MOST_DISTANCE


@pytest.mark.parametrize(
    ("suffix", "deaths", "mark", "reach"),
    [
        ("", 0, None, None),
        (".2", 2, None, None),
        (".2.5", 2, 12, None),
        (".2..5", 2, None, 11),
        ("...5", 0, None, 11),
        (".x.5.3", 0, 12, 9),
        (".2.-1.99999", 2, None, None),
        (".10000.٣", 0, None, None),
        (".2.5.3.more", 2, 12, 9),
    ],
)
def test_each_broken_part_counts_as_absent(suffix: str, deaths: int, mark: int | None, reach: int | None) -> None:
    found = decode(7, "rc1o." + suffix)
    assert found == Progress(7, deaths=deaths, mark=mark, reach=reach)


def test_without_suspicion_the_metadata_is_as_it_ever_was() -> None:
    """An older sidecar must be able to read it, and this one what an older one wrote."""
    assert (encode(Progress(7)), encode(Progress(7, clean=True))) == ("rc1o.", "rc1c.")


def packed(data: bytes, head: str = "rc1o.") -> str:
    return head + base64.urlsafe_b64encode(data).decode()


@pytest.mark.parametrize(
    "metadata",
    [
        packed(zlib.compress(b"\xff" * 5_000_000)),
        packed(zlib.compress(b"\xff" * (SPAN // 8 + 1))),
        packed(zlib.compress(b"\xff" * 100)[:-1]),
        packed(zlib.compress(b"\xff" * 100)[:-4] + b"wxyz"),
        packed(zlib.compress(b"\xff" * 100) + b"more"),
        packed(zlib.compress(b"\x01" * 5_000_000), "rc2o."),
        packed(zlib.compress(b"\x01" * 100)[:-1], "rc2o."),
        packed(zlib.compress(b"\x02\x01\x01\x01"), "rc2o."),
        packed(zlib.compress(b"\x01\xff"), "rc2o."),
        packed(zlib.compress(b"\x01\x01\x01"), "rc2o."),
        packed(zlib.compress(b"\x01" + b"\xff" * 8 + b"\x01"), "rc2o."),
        packed(zlib.compress(b"\x04" + (b"\x01" + b"\xff" * 6 + b"\x01") * 4 + b"\x00"), "rc2o."),
        packed(zlib.compress(b"\x00\x00" + b"\xff" * (SPAN // 8 + 1)), "rc2o."),
    ],
    ids=[
        "a bomb",
        "one byte too long",
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
    assert decode(7, metadata) == Progress(7)


def test_an_offset_is_begun_only_once() -> None:
    tracker = ProgressTracker(Progress(3))
    assert [tracker.begin(offset) for offset in (2, 3, 3, 5, 4)] == [False, True, False, True, False]


def test_finishing_twice_changes_nothing() -> None:
    tracker = ProgressTracker(Progress(3))
    for offset in (3, 4, 5):
        tracker.begin(offset)
    for offset in (4, 4, 3, 3):
        tracker.finish(offset)
    assert tracker.snapshot() == Progress(5)


def test_markers_behind_the_last_record_are_passed_over() -> None:
    tracker = ProgressTracker(Progress(3))
    tracker.begin(3)
    assert tracker.reached(9)
    assert tracker.snapshot() == Progress(3)
    tracker.finish(3)
    assert tracker.snapshot() == Progress(9)
    assert not tracker.reached(9)


def test_a_gap_is_no_distance_while_nothing_is_open() -> None:
    tracker = ProgressTracker(Progress(3))
    assert tracker.span(1_000_000) == 0
    tracker.begin(10)
    assert tracker.span(1_000_000) == 999_990


def test_only_a_clean_end_carries_the_clean_mark() -> None:
    assert decode(1, encode(Progress(1, clean=True))).clean
    assert not decode(1, encode(Progress(1))).clean
    assert not decode(1, None).clean


def test_what_was_begun_and_let_go_is_begun_again_and_what_was_not_is_not() -> None:
    """A stopped partition gives its records back; those under way stay so."""
    tracker = ProgressTracker(Progress(0))
    assert all(tracker.begin(offset) for offset in range(6))
    tracker.finish(1)
    for offset in (2, 4):
        tracker.let_go(offset)
    assert [offset for offset in range(8) if tracker.begin(offset)] == [2, 4, 6, 7]
    assert not tracker.begin(2)
    for offset in (0, 2, 3, 4, 5, 6, 7):
        tracker.finish(offset)
    assert tracker.snapshot() == Progress(8)


def test_a_cut_log_loses_only_what_nobody_has_read() -> None:
    tracker = ProgressTracker(Progress(0, frozenset({7})))
    for offset in range(4):
        tracker.begin(offset)
    tracker.let_go(3)
    assert tracker.cut(4, 10) == 6, "4, 5, 6, 8, 9 were never read, and 3 was let go; 7 is done"
    assert tracker.first == 0, "what is under way stays ours"
    assert tracker.begin(10)
    for offset in (0, 1, 2, 10):
        tracker.finish(offset)
    assert tracker.snapshot() == Progress(11)
    assert tracker.cut(4, 10) == 0


def test_a_log_that_is_cut_loses_what_was_let_go_below_its_beginning_and_nothing_else() -> None:
    tracker = ProgressTracker(Progress(0))
    for offset in range(5):
        tracker.begin(offset)
    for offset in (1, 3):
        tracker.let_go(offset)
    assert tracker.cut(5, 3) == 1
    assert (tracker.dropped, tracker.first, tracker.next) == ({3}, 0, 5)
    assert tracker.begin(3), "it is still there, and is fetched again"


@pytest.mark.parametrize(("wanted", "low", "lost"), [(2, 9, 6), (5, 9, 3), (2, 5, 3), (9, 9, 0), (2, 10, 6)])
def test_of_what_was_cut_unread_the_done_ones_are_not_lost(wanted: int, low: int, lost: int) -> None:
    assert ProgressTracker(Progress(2, frozenset({5, 9}))).cut(wanted, low) == lost
