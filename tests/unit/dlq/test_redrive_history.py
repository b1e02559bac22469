"""What is known of redrives: claims that neither skip nor repeat, in the 4 096 characters that Kafka keeps."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.sidecar.core.offset_ranges import OffsetRanges
from reconsume.sidecar.dlq.copies import ComparedLetters
from reconsume.sidecar.dlq.letters import Eligibility, Filter, Letter, RedriveRequest
from reconsume.sidecar.dlq.redrive_history import (
    LONGEST,
    Copies,
    RedriveCourse,
    RedriveHistory,
    RedrivenRange,
    claimed,
    decode_past,
    eligibility,
    encode_past,
    first_open,
    fits,
    read_from,
    tidied,
)
from reconsume.topics.dead_letter_headers import EDITED
from reconsume.topics.retry_headers import RetryState
from tests.sim.samples import WALL, record
from tests.unit.dlq.test_letters import DLQ

FRESH = RedriveHistory("topic-id", WALL - 1_000)
FILTERS = st.builds(
    Filter,
    ids=st.sampled_from([(), ("orders:0:1",), ("orders:0:1", "orders:0:2")]),
    reasons=st.sampled_from([(), ("http-500",), ("http-500", "timeout")]),
    topics=st.sampled_from([(), ("orders",), ("invoices",)]),
    since=st.sampled_from([0, WALL, WALL + 5]),
    until=st.sampled_from([WALL + 5, WALL + 10, 2**63 - 1]),
)
TOPICS = ("invoices", "orders")
WISHES = st.builds(
    RedriveRequest,
    FILTERS,
    st.sampled_from([1, 2, 3]),
    st.booleans(),
    st.sampled_from([("orders",), ("invoices",), TOPICS]),
)
LETTERS = st.builds(
    lambda at, number, reason, topic, redrives: (at, number, reason, topic, redrives),
    st.sampled_from([WALL - 2_000, WALL, WALL + 5, WALL + 9]),
    st.integers(0, 4),
    st.sampled_from(["http-500", "timeout", "other"]),
    st.sampled_from(["orders", "invoices"]),
    st.integers(0, 3),
)


def request(*given: Any, topics: tuple[str, ...] = TOPICS, **more: Any) -> RedriveRequest:
    """A request of a group with these main topics."""
    return RedriveRequest(*given, topics=topics, **more)


def span(letters: Filter, end: int, left: tuple[int, ...] = ()) -> RedrivenRange:
    """A range of that group."""
    return RedrivenRange(letters, end, TOPICS, left)


def letters(plans: list[tuple[int, int, str, str, int]]) -> list[Letter]:
    """A partition of dead letters, each another record."""
    return [
        Letter(
            record(offset, source=DLQ, timestamp=at),
            RetryState(f"{topic}:0:{number}", topic, 16, redrives, WALL, WALL, WALL - 3, reason),
        )
        for offset, (at, number, reason, topic, redrives) in enumerate(plans)
    ]


def run(
    log: list[Letter], wish: RedriveRequest, past: RedriveHistory, most: int, refused: frozenset[int] = frozenset()
) -> tuple[RedriveHistory, list[int]]:
    """One redrive, in transactions of two, ended after `most` letters; what it redrove.

    Every third letter is set aside: it is left with the others, and then tried alone. So is each that is `refused`.
    """
    done, batch, aside = list[int](), list[int](), list[int]()
    asked = next((at for at, letter in enumerate(log) if letter.record.timestamp >= wish.filter.since), len(log))
    start = read_from(wish, past, first_open(wish, past, asked))
    course = RedriveCourse(wish, past, start)

    def transactions() -> None:
        nonlocal past
        past = committed(course.advanced(past, batch, aside))
        course.committed(batch, aside)
        done.extend(batch)
        for offset in aside:
            after = course.advanced(past, [offset], [])
            if offset not in refused:
                past = committed(after)
                course.committed([offset], [])
                done.append(offset)
        batch.clear()
        aside.clear()

    for letter in seen_by(wish, log[start:]):
        verdict, offset = eligibility(letter, wish, past), letter.record.offset
        if verdict is Eligibility.READY and len({*done, *batch, *aside} - refused) == most:
            break
        course.note(letter, verdict, past)
        if verdict is Eligibility.READY:
            (aside if offset in refused or offset % 3 == 1 else batch).append(offset)
        if len(batch) + len(aside) == 2:
            transactions()
    if batch or aside:
        transactions()
    return past, sorted(done)


def committed(past: RedriveHistory) -> RedriveHistory:
    """As Kafka gives it back; the copies are those that were read with the DLQ."""
    found = decode_past(encode_past(tidied(past, 0)))
    assert found is not None
    assert fits(found), f"no room for {len(found.claims)} claims"
    return replace(found, copies=past.copies)


def seen_by(wish: RedriveRequest, log: list[Letter]) -> list[Letter]:
    """The letters as the configuration of the wish reads them: those of other topics cannot be redriven."""
    return [
        letter if letter.retry_state and letter.retry_state.topic in wish.topics else replace(letter, fault="?")
        for letter in log
    ]


@given(st.lists(LETTERS, max_size=12), st.lists(st.tuples(WISHES, st.integers(0, 12)), min_size=1, max_size=6))
def test_whatever_is_asked_for_in_whatever_order_no_letter_is_redriven_twice(
    plans: list[tuple[int, int, str, str, int]], asked: list[tuple[RedriveRequest, int]]
) -> None:
    log, past, seen = letters(plans), FRESH, list[int]()
    for wish, most in asked:
        past, done = run(log, wish, past, most)
        seen += done
    assert len(seen) == len(set(seen))


@given(
    st.lists(LETTERS, max_size=12),
    st.lists(st.tuples(WISHES, st.integers(0, 12), st.frozensets(st.integers(0, 12), max_size=3)), max_size=5),
    WISHES,
)
def test_a_redrive_run_to_its_end_leaves_nothing_that_it_may_take(
    plans: list[tuple[int, int, str, str, int]],
    before: list[tuple[RedriveRequest, int, frozenset[int]]],
    wish: RedriveRequest,
) -> None:
    log, past, seen = letters(plans), FRESH, set[int]()
    for other, most, refused in before:
        past, done = run(log, other, past, most, refused)
        seen.update(done)
    ready = [one for one in seen_by(wish, log) if eligibility(one, wish, FRESH) is Eligibility.READY]
    past, done = run(log, wish, past, 99)
    assert done == [one.record.offset for one in ready if one.record.offset not in seen]
    assert not [one for one in seen_by(wish, log) if eligibility(one, wish, past) is Eligibility.READY]


@given(st.lists(LETTERS, max_size=12), st.lists(st.tuples(WISHES, st.integers(0, 12)), min_size=1, max_size=8))
def test_no_claim_covers_what_was_not_redriven(
    plans: list[tuple[int, int, str, str, int]], asked: list[tuple[RedriveRequest, int]]
) -> None:
    """But for letters that nothing could redrive when the claim was made, of whose topics it says nothing."""
    log, past, seen = letters(plans), FRESH, set[int]()
    for wish, most in asked:
        past, done = run(log, wish, past, most)
        seen.update(done)
    assert {letter.record.offset for letter in log if past.covers(letter)} <= seen


FEW = st.tuples(
    st.sampled_from([WALL - 2_000, WALL, WALL + 5, WALL + 9]),
    st.integers(0, 1),
    st.sampled_from(["http-500", "timeout"]),
    st.just("orders"),
    st.just(0),
)
"""Letters of two deaths: most are copies."""
SOME = st.builds(
    RedriveRequest,
    st.builds(Filter, reasons=st.sampled_from([(), ("http-500",), ("timeout",)]), since=st.sampled_from([0, WALL + 5])),
    forgotten=st.booleans(),
    topics=st.just(TOPICS),
)


@given(
    st.lists(st.lists(st.tuples(FEW, st.booleans()), max_size=5), min_size=1, max_size=4),
    st.lists(st.tuples(SOME, st.integers(1, 12)), min_size=4, max_size=4),
)
def test_of_letters_with_one_id_and_attempt_one_is_redriven_once_and_no_copy_is_ever_called_redriven(
    arrivals: list[list[tuple[tuple[int, int, str, str, int], bool]]], asked: list[tuple[RedriveRequest, int]]
) -> None:
    """Letters arrive between redrives: many share id and redrives, and some of them name who has edited them."""
    plans, edits, past, seen = list[Any](), set[int](), FRESH, list[int]()
    for arrived, (wish, most) in zip(arrivals, asked, strict=False):
        edits |= {len(plans) + index for index, (_, is_edit) in enumerate(arrived) if is_edit}
        plans += [plan for plan, _ in arrived]
        log = with_edits(letters(plans), edits)
        past, done = run(log, wish, compared(log, past), most)
        seen += done
    log = with_edits(letters(plans), edits)
    past, done = run(log, everything(), compared(log, past), 99)
    seen += done
    names = [name_of(log[offset]) for offset in seen]
    assert len(names) == len(set(names)), "one death was redriven twice"
    assert set(names) == {name_of(letter) for letter in log}, "a death was lost"
    past = compared(log, past)
    called = {one.record.offset for one in log if eligibility(one, everything(), past) is Eligibility.REDRIVEN}
    assert len(called) == len(set(names))
    assert run(log, everything(), past, 99)[1] == []


def everything() -> RedriveRequest:
    """A redrive that leaves nothing but copies."""
    return request(Filter(), 9, forgotten=True)


def name_of(letter: Letter) -> tuple[str, int]:
    return letter.id, letter.redrives


def with_edits(log: list[Letter], edits: set[int]) -> list[Letter]:
    edit = [(EDITED, b"{}")]
    return [
        replace(letter, record=replace(letter.record, headers=edit)) if letter.record.offset in edits else letter
        for letter in log
    ]


def compared(log: list[Letter], past: RedriveHistory) -> RedriveHistory:
    """The history with the copies in the log."""
    letters = ComparedLetters([DLQ])
    for letter in log:
        letters.add(letter, is_redriven=past.covers(letter))
    found = list(letters.copies())
    of_open, of_redriven = (OffsetRanges.of(at for _, at, yes in found if yes is wanted) for wanted in (False, True))
    return replace(past, copies=Copies(of_open, of_redriven))


def test_a_letter_that_is_refused_alone_stays_open_although_the_redrive_goes_on_under_another_range() -> None:
    """An earlier range is extended until a letter comes that this redrive leaves out. Then it begins its own range."""
    log = letters([(WALL + at, n, "http-500", "orders", 0) for n, at in enumerate((1, 30, 31, 15, 32, 33))])
    past, _ = run(log[:1], request(Filter(since=WALL)), FRESH, 99)
    wish = request(Filter(since=WALL + 20))
    past, done = run(log, wish, past, 99, frozenset({1}))
    assert done == [2, 4, 5]
    assert len(past.claims) == 2
    assert run(log, wish, past, 99)[1] == [1]


def test_what_kafka_refused_is_tried_again_and_nothing_else() -> None:
    log = letters([(WALL, n, "http-500", "orders", 0) for n in range(7)])
    past, done = run(log, request(), FRESH, 99, frozenset({2, 3}))
    assert done == [0, 1, 4, 5, 6]
    assert first_open(request(), past, 0) == 2
    past, done = run(log, request(), past, 99, frozenset({3}))
    assert done == [2]
    past, done = run(log, request(), past, 99)
    assert done == [3]
    assert first_open(request(), past, 0) == 7


def test_a_redrive_goes_on_where_it_was() -> None:
    log = letters([(WALL, n, "http-500", "orders", 0) for n in range(9)])
    past, _ = run(log, request(), FRESH, 4)
    assert first_open(request(), past, 0) == 4
    assert first_open(request(), past, 6) == 6
    assert first_open(request(Filter(reasons=("http-500",))), past, 0) == 0


def test_the_offset_that_tools_show_is_that_of_redrives_without_filter() -> None:
    log = letters([(WALL, n, "http-500", "orders", 0) for n in range(9)])
    narrow, _ = run(log, request(Filter(reasons=("http-500",))), FRESH, 9)
    whole, _ = run(log, request(), FRESH, 6)
    assert (narrow.next, whole.next) == (0, 6)


def test_forgotten_letters_are_not_claimed_by_a_redrive_that_left_them() -> None:
    log = letters([(WALL - 2_000, 0, "http-500", "orders", 0), (WALL, 1, "http-500", "orders", 0)])
    past, done = run(log, request(), FRESH, 9)
    assert done == [1]
    past, done = run(log, request(forgotten=True), past, 9)
    assert done == [0]


def test_a_wider_redrive_makes_narrower_ones_needless() -> None:
    wide = request(most_redrives=5)
    claims = tuple(span(Filter(reasons=(f"r{n}",), since=WALL, below=3), n) for n in range(1, 9))
    before = RedriveHistory("t", WALL - 1_000, claims)
    past = tidied(RedriveCourse(wide, before, 0).advanced(before, [4], []), 0)
    assert past.claims == (*claims[5:], span(claimed(wide, past), 5))


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
    past = RedriveHistory(
        "t",
        0,
        (span(Filter(reasons=("a",)), 10), span(Filter(reasons=("b",)), 30, (5, 25))),
        frozenset({3, 12}),
    )
    assert tidied(past, 12) == RedriveHistory("t", 0, (span(Filter(reasons=("b",)), 30, (25,)),), frozenset({12}))


def test_it_reads_what_it_writes() -> None:
    filters = (Filter(headers=(("n", None), ("é", "1")), since=3), Filter(ids=("a", "b")))
    past = RedriveHistory("id", WALL, tuple(span(one, 2**60, (1, 2)) for one in filters), frozenset({0, 7, 2**62}))
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
    single = RedriveHistory("AAAAAAAAAAAAAAAAAAAAAA", WALL, (), frozenset(some.sample(range(10**7), 1_000)))
    filters = tuple(span(Filter(reasons=(f"http-{n}",), since=WALL + n * 977), 10**6 + n * 7_919) for n in range(40))
    assert len(encode_past(single)) < LONGEST
    assert len(encode_past(RedriveHistory("AAAAAAAAAAAAAAAAAAAAAA", WALL, filters))) < LONGEST
    assert not fits(RedriveHistory("t", 0, (), frozenset(some.sample(range(10**9), 5_000))))


def test_a_letter_of_a_topic_that_was_not_known_is_redriven_once_it_is() -> None:
    log = letters(
        [(WALL, 0, "http-500", "orders", 0), (WALL, 1, "http-500", "invoices", 0), (WALL, 2, "x", "orders", 0)]
    )
    past, done = run(log, request(topics=("orders",)), FRESH, 9)
    assert done == [0, 2]
    past, done = run(log, request(topics=TOPICS), past, 9)
    assert done == [1]
    past, done = run(log, request(topics=TOPICS), past, 9)
    assert (done, all(map(past.covers, log))) == ([], True)


HOUR = 3_600_000


def hourly(
    runs: int, jitter: int, reasons: tuple[str, ...], every: int, seed: int
) -> tuple[RedriveHistory, list[int], list[Letter]]:
    """Redrives an hour apart, give or take `jitter` ms, each with `--since 1h`; letters come every `every` ms or so."""
    some, past, log, done = random.Random(seed), FRESH, list[Letter](), list[int]()
    wall = WALL
    for number in range(1, runs + 1):
        until = WALL + number * HOUR + some.randint(0, jitter)
        while wall < until:
            found = RetryState(
                f"orders:0:{len(log)}", "orders", 16, 0, wall, wall, wall, some.choice(("http-500", "other"))
            )
            log.append(Letter(record(len(log), source=DLQ, timestamp=wall), found))
            wall += some.randint(1, 2 * every)
        wish = request(Filter(reasons=reasons, since=until - HOUR), topics=("orders",))
        past, more = run(log[: len(log)], wish, past, 10**9)
        done += more
    return past, done, log


@pytest.mark.parametrize("reasons", [(), ("http-500",)])
def test_two_thousand_hourly_redrives_leave_few_claims(reasons: tuple[str, ...]) -> None:
    past, done, log = hourly(2_000, 0, reasons, HOUR // 4, 1)
    asked = [one.record.offset for one in log if not reasons or one.reason in reasons]
    assert done == asked[: len(done)]
    assert len(done) > 3_000
    assert len(past.claims) <= 2
    assert fits(past)


def test_what_hourly_redrives_left_out_is_never_taken_for_redriven() -> None:
    """Given a scheduler that is now and then late, so that `--since 1h` does not reach back to the run before."""
    past, done, log = hourly(300, 600_000, (), HOUR // 4, 2)
    left_out = {one.record.offset for one in log} - set(done)
    assert len(left_out) > 10
    assert {one.record.offset for one in log if past.covers(one)} == set(done)
    rest, more = run(log, request(topics=("orders",)), past, 10**9)
    assert set(more) == left_out
    assert len(rest.claims) <= 2
