"""Ladders and levels: the contract's numbers, and that any delay is made of levels without ever being early."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.topics.durations import parse_duration, render_duration
from reconsume.topics.levels import (
    LONGEST,
    TABLE,
    Exponential,
    Ladder,
    LadderSpec,
    LevelsSpec,
    build_ladder,
    hops,
    level_delays,
    longest_fit,
    numbered,
)

DELAYS = st.integers(1, LONGEST)
LEVELS = st.sets(st.integers(1_000, LONGEST), min_size=1, max_size=18).map(lambda levels: tuple(sorted(levels)))


def written(*texts: str) -> tuple[int, ...]:
    return tuple(parse_duration(text) for text in texts)


def waits(ladder: Ladder, retries: int) -> list[str]:
    return [render_duration(ladder.delay(retry)) for retry in range(1, retries + 1)]


def test_the_table_has_the_eighteen_levels_of_the_contract() -> None:
    assert len(TABLE) == 18
    assert [render_duration(TABLE[level - 1]) for level in (1, 3, 18)] == ["1s", "10s", "2h"]


ROCKETMQ = ["10s", "30s", "1m", "2m", "3m", "4m", "5m", "6m", "7m", "8m", "9m", "10m", "20m", "30m", "1h", "2h"]
PULSAR = ["1s", "5s", "10s", "30s", "1m", "2m", "3m", "4m", "5m", "6m", "7m", "8m", "9m", "10m", "20m", "30m"]


@pytest.mark.parametrize(("name", "expected", "seconds"), [("rocketmq", ROCKETMQ, 17_140), ("pulsar", PULSAR, 6_346)])
def test_sixteen_retries_wait_what_the_contract_says(name: str, expected: list[str], seconds: int) -> None:
    ladder = build_ladder(name)
    assert waits(ladder, 16) == expected
    assert sum(ladder.delay(retry) for retry in range(1, 17)) == seconds * 1_000


@pytest.mark.parametrize("retry", [17, 18, 1_000, 999_999])
def test_the_default_ladder_ends_at_two_hours(retry: int) -> None:
    assert build_ladder("rocketmq").delay(retry) == 7_200_000


def test_pulsar_waits_level_n_beyond_sixteen_too() -> None:
    assert [build_ladder("pulsar").delay(retry) for retry in (17, 18, 19)] == [3_600_000, 7_200_000, 7_200_000]


def test_the_exponential_default_doubles_from_five_seconds_to_two_hours() -> None:
    delays = build_ladder(Exponential()).delays
    assert delays == (*(5_000 * 2**n for n in range(11)), 7_200_000)


def test_an_exponential_ladder_with_multiplier_one_is_a_fixed_delay() -> None:
    assert build_ladder(Exponential(3_000, 1.0, 9_000)).delays == (3_000,)


def test_an_exponential_ladder_grows_by_the_exact_product() -> None:
    assert build_ladder(Exponential(5_000, 1.5, 20_000)).delays == (5_000, 7_500, 11_250, 16_875, 20_000)


def test_a_custom_ladder_is_taken_as_it_is() -> None:
    assert build_ladder(written("1h", "10s", "10s")).delays == written("1h", "10s", "10s")


def test_a_ladder_has_at_most_sixty_four_delays() -> None:
    assert len(build_ladder((LONGEST,) * 64).delays) == 64


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("kafka", "is not a ladder"),
        ((), "1 to 64 delays"),
        ((1_000,) * 65, "1 to 64 delays"),
        ((0,), "1ms to 10d"),
        ((-1,), "1ms to 10d"),
        ((LONGEST + 1,), "1ms to 10d"),
        (Exponential(0), "initial"),
        (Exponential(9_000, 2.0, 8_000), "initial"),
        (Exponential(5_000, 2.0, LONGEST + 1), "initial"),
        (Exponential(5_000, 0.5), "multiplier"),
        (Exponential(5_000, float("nan")), "multiplier"),
        (Exponential(5_000, float("inf")), "multiplier"),
        (Exponential(5_000, 1.000001), "1 to 64 delays"),
    ],
)
def test_what_cannot_be_a_ladder_is_refused(spec: LadderSpec, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build_ladder(spec)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("all", "is no choice of levels"),
        ((), "1 to 64 delays"),
        ((2_000, 1_000), "must rise"),
        ((1_000, 1_000), "must rise"),
        ((0, 1_000), "1ms to 10d"),
    ],
)
def test_what_cannot_be_levels_is_refused(spec: LevelsSpec, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        level_delays(spec, build_ladder("rocketmq"))


@pytest.mark.parametrize("retry", [0, -1])
def test_retries_are_counted_from_one(retry: int) -> None:
    with pytest.raises(ValueError, match="counted from 1"):
        build_ladder("rocketmq").delay(retry)


@given(st.lists(DELAYS, min_size=1, max_size=64).map(tuple), st.integers(0, 10**6))
def test_past_its_end_a_ladder_waits_the_last_delay(delays: tuple[int, ...], beyond: int) -> None:
    ladder = build_ladder(delays)
    assert tuple(ladder.delay(retry) for retry in range(1, len(delays) + 1)) == delays
    assert ladder.delay(len(delays) + 1 + beyond) == delays[-1]


@given(st.integers(1, LONGEST), st.floats(1, 1_000), st.integers(1, LONGEST))
def test_an_exponential_ladder_never_falls_and_ends_at_its_maximum_or_is_refused(
    initial: int, multiplier: float, maximum: int
) -> None:
    try:
        delays = build_ladder(Exponential(initial, multiplier, maximum)).delays
    except ValueError:
        return
    assert delays[0] == initial
    assert list(delays) == sorted(delays)
    assert delays[-1] == (initial if multiplier == 1 else maximum)


def test_levels_are_the_ladders_or_the_tables_as_well_or_as_they_are_given() -> None:
    ladder = build_ladder(written("15s", "10s", "15s", "3h"))
    assert level_delays("ladder", ladder) == written("10s", "15s", "3h")
    assert level_delays("table", ladder) == tuple(sorted({*TABLE, *ladder.delays}))
    assert level_delays(written("10s", "1m"), ladder) == written("10s", "1m")


@pytest.mark.parametrize(
    ("spec", "first", "last"), [("ladder", "1s", "2h"), ("table", "1s", "2h"), (written("10s", "1m"), "10s", "1m")]
)
def test_a_numbered_level_counts_in_a_list_that_is_given_else_among_the_eighteen(
    spec: LevelsSpec, first: str, last: str
) -> None:
    assert (numbered(spec)[0], numbered(spec)[-1]) == written(first, last)


@given(st.sampled_from(["rocketmq", "pulsar", Exponential()]), LEVELS)
def test_any_ladder_is_made_of_any_levels_by_hops(spec: LadderSpec, levels: tuple[int, ...]) -> None:
    """What the hops leave of a delay is shorter than the shortest level."""
    ladder = build_ladder(spec)
    for delay in ladder.delays:
        assert delay - sum(hops(delay, level_delays(levels, ladder))) < levels[0]


@pytest.mark.parametrize(
    ("remaining", "level"),
    [("999ms", None), ("1s", "1s"), ("4s999ms", "1s"), ("5s", "5s"), ("2h", "2h"), ("10d", "2h")],
)
def test_the_longest_level_that_fits(remaining: str, level: str | None) -> None:
    expected = None if level is None else parse_duration(level)
    assert longest_fit(parse_duration(remaining), TABLE) == expected


def test_nothing_fits_what_is_already_due() -> None:
    assert longest_fit(0, TABLE) is None
    assert longest_fit(-5_000, TABLE) is None
    assert hops(-5_000, TABLE) == ()


@pytest.mark.parametrize(
    ("delay", "way"), [("1m30s", "1m 30s"), ("25s", "10s 10s 5s"), ("1s500ms", "1s"), ("3h", "2h 1h"), ("500ms", "")]
)
def test_a_delay_is_made_of_the_longest_levels(delay: str, way: str) -> None:
    assert hops(parse_duration(delay), TABLE) == written(*way.split())


def test_ten_days_are_a_hundred_and_twenty_hops_of_two_hours() -> None:
    assert hops(LONGEST, TABLE) == (7_200_000,) * 120


@given(DELAYS, LEVELS)
def test_hops_end_below_the_shortest_level_and_never_exceed_the_delay(delay: int, levels: tuple[int, ...]) -> None:
    way = hops(delay, levels)
    assert sum(way) <= delay
    assert delay - sum(way) < levels[0]
    assert list(way) == sorted(way, reverse=True)


@given(DELAYS, LEVELS)
def test_hops_are_what_a_record_does_one_level_at_a_time(delay: int, levels: tuple[int, ...]) -> None:
    remaining = delay
    for level in hops(delay, levels):
        assert level == longest_fit(remaining, levels)
        remaining -= level
    assert longest_fit(remaining, levels) is None
