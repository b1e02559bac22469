"""What is known of redrives: claims that neither skip nor repeat, in the 4 096 characters that Kafka keeps."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.core.redrive import Filter, Letter, Verdict, Wish
from sidecar.core.redrive_past import (
    LONGEST,
    Claim,
    Past,
    advanced,
    claimed,
    decode_past,
    encode_past,
    first_open,
    fits,
    judge,
    tidied,
)
from tests.sim.samples import WALL, record
from tests.unit.core.test_redrive import DLQ
from topics.headers import Life

FRESH = Past("topic-id", WALL - 1_000)
FILTERS = st.builds(
    Filter,
    ids=st.sampled_from([(), ("orders:0:1",), ("orders:0:1", "orders:0:2")]),
    reasons=st.sampled_from([(), ("http-500",), ("http-500", "timeout")]),
    topics=st.sampled_from([(), ("orders",), ("invoices",)]),
    since=st.sampled_from([0, WALL, WALL + 5]),
    until=st.sampled_from([WALL + 5, WALL + 10, 2**63 - 1]),
)
WISHES = st.builds(Wish, FILTERS, st.sampled_from([1, 2, 3]), st.booleans())
LETTERS = st.builds(
    lambda at, number, reason, topic, redrives: (at, number, reason, topic, redrives),
    st.sampled_from([WALL - 2_000, WALL, WALL + 5, WALL + 9]),
    st.integers(0, 4),
    st.sampled_from(["http-500", "timeout", "other"]),
    st.sampled_from(["orders", "invoices"]),
    st.integers(0, 3),
)


def letters(plans: list[tuple[int, int, str, str, int]]) -> list[Letter]:
    """A partition of dead letters, each another record."""
    return [
        Letter(
            record(offset, source=DLQ, timestamp=at),
            Life(f"{topic}:0:{number}", topic, 16, redrives, WALL, WALL, WALL - 3, reason),
        )
        for offset, (at, number, reason, topic, redrives) in enumerate(plans)
    ]


def run(
    log: list[Letter], wish: Wish, past: Past, most: int, refused: frozenset[int] = frozenset()
) -> tuple[Past, list[int]]:
    """One redrive, in transactions of two, killed after `most` letters; what it redrove."""
    done: list[int] = []
    batch: list[int] = []
    turned_down: list[int] = []
    start = first_open(wish, past, 0)
    for letter in log[start:]:
        if judge(letter, wish, past) is Verdict.READY and len(done) + len(batch) < most:
            (turned_down if letter.record.offset in refused else batch).append(letter.record.offset)
        if len(batch) == 2 or letter is log[-1]:
            past = decode_past(encode_past(tidied(advanced(past, wish, batch, turned_down), 0))) or past
            done, batch, turned_down = [*done, *batch], [], []
    return past, done


@settings(max_examples=300)
@given(st.lists(LETTERS, max_size=12), st.lists(st.tuples(WISHES, st.integers(0, 12)), min_size=1, max_size=6))
def test_whatever_is_asked_for_in_whatever_order_no_letter_is_redriven_twice(
    plans: list[tuple[int, int, str, str, int]], asked: list[tuple[Wish, int]]
) -> None:
    log, past, seen = letters(plans), FRESH, list[int]()
    for wish, most in asked:
        past, done = run(log, wish, past, most)
        seen += done
    assert len(seen) == len(set(seen))


@settings(max_examples=300)
@given(st.lists(LETTERS, max_size=12), st.lists(st.tuples(WISHES, st.integers(0, 12)), max_size=4), WISHES)
def test_a_redrive_run_to_its_end_leaves_nothing_that_it_may_take(
    plans: list[tuple[int, int, str, str, int]], before: list[tuple[Wish, int]], wish: Wish
) -> None:
    log, past, seen = letters(plans), FRESH, set[int]()
    for other, most in before:
        past, done = run(log, other, past, most)
        seen.update(done)
    untouched = [one for one in log if judge(one, wish, FRESH) is Verdict.READY and one.record.offset not in seen]
    past, done = run(log, wish, past, 99)
    assert done == [one.record.offset for one in untouched]
    assert not [one for one in log if judge(one, wish, past) is Verdict.READY]


def test_what_kafka_refused_is_tried_again_and_nothing_else() -> None:
    log = letters([(WALL, n, "http-500", "orders", 0) for n in range(7)])
    past, done = run(log, Wish(), FRESH, 99, frozenset({2, 3}))
    assert done == [0, 1, 4, 5, 6]
    assert first_open(Wish(), past, 0) == 2
    past, done = run(log, Wish(), past, 99, frozenset({3}))
    assert done == [2]
    past, done = run(log, Wish(), past, 99)
    assert done == [3]
    assert first_open(Wish(), past, 0) == 7


def test_a_redrive_goes_on_where_it_was() -> None:
    log = letters([(WALL, n, "http-500", "orders", 0) for n in range(9)])
    past, _ = run(log, Wish(), FRESH, 4)
    assert first_open(Wish(), past, 0) == 4
    assert first_open(Wish(), past, 6) == 6
    assert first_open(Wish(Filter(reasons=("http-500",))), past, 0) == 0


def test_the_offset_that_tools_show_is_that_of_redrives_without_filter() -> None:
    log = letters([(WALL, n, "http-500", "orders", 0) for n in range(9)])
    narrow, _ = run(log, Wish(Filter(reasons=("http-500",))), FRESH, 9)
    whole, _ = run(log, Wish(), FRESH, 6)
    assert (narrow.next, whole.next) == (0, 6)


def test_forgotten_letters_are_not_claimed_by_a_redrive_that_left_them() -> None:
    log = letters([(WALL - 2_000, 0, "http-500", "orders", 0), (WALL, 1, "http-500", "orders", 0)])
    past, done = run(log, Wish(), FRESH, 9)
    assert done == [1]
    past, done = run(log, Wish(forgotten=True), past, 9)
    assert done == [0]


def test_a_wider_redrive_makes_narrower_ones_needless() -> None:
    wide = Wish(most_redrives=5)
    claims = tuple(Claim(Filter(reasons=(f"r{n}",), since=WALL, below=3), n) for n in range(1, 9))
    past = tidied(advanced(Past("t", WALL - 1_000, claims), wide, [4], []), 0)
    assert past.claims == (*claims[5:], Claim(claimed(wide, past), 5))


@pytest.mark.parametrize(
    ("narrow", "wide", "within"),
    [
        (Filter(reasons=("a",)), Filter(), True),
        (Filter(), Filter(reasons=("a",)), False),
        (Filter(ids=("a",)), Filter(ids=("a", "b")), True),
        (Filter(headers=(("a", "1"),)), Filter(headers=(("a", "1"),)), True),
        (Filter(), Filter(headers=(("a", "1"),)), False),
        (Filter(since=5), Filter(since=4), True),
        (Filter(until=5), Filter(until=4), False),
        (Filter(below=2), Filter(below=3), True),
    ],
)
def test_one_filter_within_another(narrow: Filter, wide: Filter, within: bool) -> None:
    assert narrow.within(wide) is within


def test_what_has_left_the_partition_is_forgotten_too() -> None:
    past = Past(
        "t", 0, (Claim(Filter(reasons=("a",)), 10), Claim(Filter(reasons=("b",)), 30, (5, 25))), frozenset({3, 12})
    )
    assert tidied(past, 12) == Past("t", 0, (Claim(Filter(reasons=("b",)), 30, (25,)),), frozenset({12}))


def test_it_reads_what_it_writes() -> None:
    filters = (Filter(headers=(("n", None), ("é", "1")), since=3), Filter(ids=("a", "b")))
    past = Past("id", WALL, tuple(Claim(one, 2**60, (1, 2)) for one in filters), frozenset({0, 7, 2**62}))
    assert decode_past(encode_past(past)) == past


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        "",
        "rc1c.",
        "rd1.",
        "rd1.!!",
        "rd1.é",
        "rd1." + "A" * 4_000,
        encode_past(FRESH)[:-3],
        "x" + encode_past(FRESH),
    ],
)
def test_foreign_or_broken_metadata_says_nothing(metadata: str | None) -> None:
    assert decode_past(metadata) is None


def test_a_bomb_is_not_unpacked() -> None:
    import base64
    import zlib

    bomb = "rd1." + base64.b85encode(zlib.compress(b"[" + b" " * 50_000_000, 9)).decode()
    assert decode_past(bomb) is None


def test_a_thousand_single_letters_or_forty_filters_have_room() -> None:
    some = random.Random(7)
    single = Past("AAAAAAAAAAAAAAAAAAAAAA", WALL, (), frozenset(some.sample(range(10**7), 1_000)))
    filters = tuple(Claim(Filter(reasons=(f"http-{n}",), since=WALL + n * 977), 10**6 + n * 7_919) for n in range(40))
    assert len(encode_past(single)) < LONGEST
    assert len(encode_past(Past("AAAAAAAAAAAAAAAAAAAAAA", WALL, filters))) < LONGEST
    assert not fits(Past("t", 0, (), frozenset(some.sample(range(10**9), 5_000))))
