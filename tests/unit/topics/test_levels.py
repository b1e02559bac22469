"""Ladders and levels: the contract's numbers, and that any delay is made of levels without ever being early."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.topics.durations import parse_duration, render_duration
from reconsume.topics.levels import (
    LATEST,
    LONGEST,
    SIX,
    TABLE,
    Exponential,
    Ladder,
    LadderSpec,
    LevelsSpec,
    build_ladder,
    hop_count,
    level_delays,
    longest_fit,
    numbered,
    shortest_wait,
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
    ("spec", "first", "last"),
    [
        (None, "1s", "2h"),
        ("ladder", "1s", "2h"),
        ("table", "1s", "2h"),
        (written("10s", "1m"), "10s", "1m"),
    ],
)
def test_a_numbered_level_counts_in_a_list_that_is_given_else_among_the_eighteen(
    spec: LevelsSpec, first: str, last: str
) -> None:
    assert (numbered(spec)[0], numbered(spec)[-1]) == written(first, last)


def test_the_default_levels_of_rocketmqs_ladder_are_six_and_its_sixteen_retries_cost_thirty_seven_copies() -> None:
    ladder = build_ladder("rocketmq")
    levels = level_delays(None, ladder, build_ladder(written("7s", "1d")))
    assert levels == SIX == written("10s", "30s", "1m", "5m", "30m", "2h")
    assert sum(hop_count(delay, levels) for delay in ladder.delays) == 37


def test_any_other_ladder_has_a_level_for_each_delay_up_to_eight() -> None:
    ladders = build_ladder(written("1m", "7s", "1h", "2h")), build_ladder(written("7s", "3s", "4h", "5h", "6h"))
    assert level_delays(None, *ladders) == written("3s", "7s", "1m", "1h", "2h", "4h", "5h", "6h")


@pytest.mark.parametrize("spec", ["pulsar", Exponential(), written(*(f"{n}s" for n in range(7, 17)))])
def test_of_more_delays_the_eight_that_need_the_fewest_hops_have_a_level(spec: LadderSpec) -> None:
    delays = build_ladder(spec).delays

    def cost(levels: tuple[int, ...]) -> int:
        return sum(hop_count(delay, levels) for delay in delays)

    levels = level_delays(None, build_ladder(spec))
    shortest, *others = delays
    choices = list(itertools.combinations(others, 7))
    assert len(levels) == 8
    assert cost(levels) <= min(cost((shortest, *chosen)) for chosen in choices[:: 1 + len(choices) // 2_000])


@given(st.lists(st.integers(1_000, LONGEST), min_size=1, max_size=24).map(tuple))
def test_the_default_levels_are_at_most_eight_delays_of_the_ladder_and_the_shortest_is_one(
    delays: tuple[int, ...],
) -> None:
    levels = level_delays(None, build_ladder(delays))
    assert levels == tuple(sorted(set(levels) & set(delays)))
    assert min(delays) == levels[0]
    assert len(levels) == min(8, len(set(delays)))


def hops(delay: int, levels: tuple[int, ...]) -> tuple[int, ...]:
    """The levels that a record passes, one at a time; the rest is shorter than the shortest one."""
    way, remaining = list[int](), delay
    while (level := longest_fit(remaining, levels)) is not None:
        way.append(level)
        remaining -= level
    return tuple(way)


def test_ladders_with_more_delays_than_a_group_may_have_topics_are_refused() -> None:
    ladders = [build_ladder(tuple(range(first, first + 64))) for first in (1_000, 2_000, 3_000)]
    with pytest.raises(ValueError, match="the ladders have 192 delays"):
        level_delays(None, *ladders)


@given(st.sampled_from(["rocketmq", "pulsar", Exponential()]), LEVELS)
def test_any_ladder_is_made_of_any_levels_by_hops(spec: LadderSpec, levels: tuple[int, ...]) -> None:
    """What the hops leave of a delay is shorter than the shortest level."""
    ladder = build_ladder(spec)
    for delay in ladder.delays:
        assert -LATEST <= delay - sum(hops(delay, level_delays(levels, ladder))) < levels[0]


@pytest.mark.parametrize(
    ("remaining", "level"),
    [
        ("899ms", None),
        ("900ms", "1s"),
        ("1s", "1s"),
        ("4s499ms", "1s"),
        ("4s500ms", "5s"),
        ("8s999ms", "5s"),
        ("9s", "10s"),
        ("58s999ms", "30s"),
        ("59s", "1m"),
        ("2h", "2h"),
        ("10d", "2h"),
    ],
)
def test_the_longest_level_that_is_at_most_a_second_and_a_ninth_longer_than_the_wait(
    remaining: str, level: str | None
) -> None:
    expected = None if level is None else parse_duration(level)
    assert longest_fit(parse_duration(remaining), TABLE) == expected


def test_nothing_fits_what_is_already_due() -> None:
    assert longest_fit(0, TABLE) is None
    assert longest_fit(-5_000, TABLE) is None
    assert hops(-5_000, TABLE) == ()


@pytest.mark.parametrize(
    ("delay", "way"),
    [("1m30s", "1m 30s"), ("25s", "10s 10s 5s"), ("1s500ms", "1s"), ("3h", "2h 1h"), ("59s500ms", "1m"), ("500ms", "")],
)
def test_a_delay_is_made_of_the_longest_levels(delay: str, way: str) -> None:
    assert hops(parse_duration(delay), TABLE) == written(*way.split())


def test_ten_days_are_a_hundred_and_twenty_hops_of_two_hours() -> None:
    assert hops(LONGEST, TABLE) == (7_200_000,) * 120
    assert hop_count(LONGEST, TABLE) == 120


@given(DELAYS, LEVELS)
def test_hops_end_below_the_shortest_level_and_at_most_a_second_after_the_delay(
    delay: int, levels: tuple[int, ...]
) -> None:
    way = hops(delay, levels)
    assert -LATEST <= delay - sum(way) < levels[0]
    assert list(way[:-1]) == sorted(way[:-1], reverse=True)
    assert hop_count(delay, levels) == max(1, len(way))


@given(DELAYS, LEVELS, st.lists(st.integers(0, 300), min_size=1, max_size=20))
def test_records_that_leave_each_level_late_are_never_early_and_at_most_a_second_later_than_the_last_level_was(
    delay: int, levels: tuple[int, ...], lags: list[int]
) -> None:
    """Each lag counts against the due time: only that of the last hop, or one second, remains."""
    delay, now, late = min(delay, 500 * levels[0]), 0, 0
    for lag in itertools.cycle(lags):
        level = longest_fit(delay - now, levels)
        if level is None:
            break
        now, late = now + level + lag, lag
    assert now - delay <= LATEST + late
    assert now + max(0, delay - now) >= delay


@given(st.lists(st.integers(0, 199), min_size=5, max_size=5))
def test_a_default_retry_costs_no_more_copies_while_its_hops_are_together_less_than_a_second_late(
    lags: list[int],
) -> None:
    for delay in build_ladder("rocketmq").delays:
        now = copies = 0
        while (level := longest_fit(delay - now, SIX)) is not None:
            now += level + lags[copies]
            copies += 1
        assert copies == hop_count(delay, SIX)


@given(level=st.integers(1_000, LONGEST))
def test_the_shortest_wait_of_a_level_fits_it_and_no_shorter_one_does(level: int) -> None:
    assert longest_fit(shortest_wait(level), (level,)) == level
    assert longest_fit(shortest_wait(level) - 1, (level,)) is None
