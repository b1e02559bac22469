"""Progress: it never claims what is not done, whatever the order, the gaps and the metadata."""

import base64
import zlib
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconsume.sidecar.core.progress import SPAN, LogId, Progress, ProgressTracker
from reconsume.sidecar.core.progress_codec import LONGEST, MOST_AT, MOST_CYCLE, MOST_DEATHS, MOST_WIDTH, decode, encode
from reconsume.sidecar.core.record import Partition

HERE = Partition("orders", 3)


@st.composite
def logs(draw: st.DrawFn) -> list[int]:
    """Offsets of a log's records, with the gaps that markers and compaction leave."""
    steps = draw(st.lists(st.integers(1, 4) | st.just(40), min_size=1, max_size=40))
    start, log = draw(st.integers(0, 2**40)), []
    for step in steps:
        start += step
        log.append(start)
    return log


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

    second = ProgressTracker(decode(HERE, left.next, encode(HERE, left)))
    again = [offset for offset in log if offset >= left.next and second.begin(offset)]
    assert again == [offset for offset in log if offset not in done]
    for offset in data.draw(st.permutations(again)):
        second.finish(offset)
    assert second.snapshot() == Progress(log[-1] + 1)


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


@given(st.text(max_size=200) | st.none(), st.integers(0, 2**62))
def test_foreign_metadata_is_an_empty_set(metadata: str | None, offset: int) -> None:
    found = decode(HERE, offset, metadata)
    assert found.next == offset
    assert not found.done


PLACE = "3-7-e52ffdee"


@given(st.binary(max_size=60) | st.text(max_size=60))
def test_broken_metadata_of_our_form_is_an_empty_set(body: bytes | str) -> None:
    text = body if isinstance(body, str) else base64.urlsafe_b64encode(body).decode()
    found = decode(HERE, 7, f"rc1..{PLACE}.{text}")
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
    found = decode(HERE, 7, f"rc1..{PLACE}.{suffix}")
    assert found == Progress(7, deaths=deaths, mark=mark, reach=reach)


def packed(data: bytes) -> str:
    return f"rc1..{PLACE}.{base64.urlsafe_b64encode(data).decode()}"


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
    assert decode(HERE, 1, encode(HERE, Progress(1, clean=True))).clean
    assert not decode(HERE, 1, encode(HERE, Progress(1))).clean
    assert not decode(HERE, 1, None).clean


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
