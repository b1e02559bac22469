"""The group's policy over a configuration: checked by the same code, and refused with the same sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.settings.group_policy import (
    KEYS,
    differences,
    flow,
    levels_of,
    mend_levels,
    mismatches,
    origins,
    overridden,
    policy_values,
    read_assignments,
)
from reconsume.sidecar.settings.load import validate
from reconsume.sidecar.settings.table import written
from tests.support.sidecar.settings import good, problems, write_good

LEVELS = "retry.levels=[1s, 2s]"
FULL = (
    "retry.ladder={initial: 3s, multiplier: 3, max: 1h}",
    "retry.ordered_max_times=7",
    "kafka.sasl.password=x: y",
    "topics=[{name: a, tags: X}, b]",
    "deliver.batch.max_size=32",
    "api.probe_listen=null",
)


@pytest.mark.parametrize("sets", [(), FULL])
def test_settings_come_back_as_they_were_when_nothing_is_set(tmp_path: Path, sets: tuple[str, ...]) -> None:
    settings = good(tmp_path, *sets)
    assert validate(written(settings)) == (settings, [])
    assert overridden(settings, {}) == settings
    assert overridden(settings, policy_values(settings)) == settings


def test_the_groups_values_win_and_keys_that_are_not_known_are_passed_over(tmp_path: Path) -> None:
    settings = good(tmp_path, "deliver.timeout=5s")
    values = {
        "max_reconsume_times": 3,
        "ladder": ["1s", "1m"],
        "timeout": "30s",
        "ordered_max_times": None,
        "group": "x",
    }
    new = overridden(settings, values)
    assert (new.retry.max_reconsume_times, new.retry.ladder, new.deliver.timeout) == (3, (1_000, 60_000), 30_000)
    assert new.group == settings.group
    changed = [(change.key, change.old, change.new) for change in differences(settings, new)]
    assert changed == [
        ("max_reconsume_times", 16, 3),
        ("ladder", "rocketmq", ["1s", "1m"]),
        ("timeout", "5s", "30s"),
    ]


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("max_reconsume_times", -1, "-1"),
        ("ladder", "steep", "steep"),
        ("ladder", ["1s", 5], "[1s, 5]"),
        ("levels", ["2s", "1s"], "[2s, 1s]"),
        ("timeout", "5", "5"),
        ("concurrency", True, "true"),
        ("max_deaths", "many", "many"),
    ],
)
def test_a_bad_value_is_refused_with_the_sentence_of_the_file(
    tmp_path: Path, key: str, value: object, text: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        overridden(good(tmp_path), {key: value}, "--set")
    assert refused.value.problems == problems(write_good(tmp_path), [f"{'.'.join(KEYS[key])}={text}"])


def test_all_bad_values_are_told_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        overridden(good(tmp_path), {"timeout": "soon", "concurrency": 0})
    assert len(refused.value.problems) == 2
    assert all("(the group's policy)" in problem for problem in refused.value.problems)


def test_assignments_are_read_as_set_reads_them(tmp_path: Path) -> None:
    pairs = [("ladder", "[1s, 90s]"), ("timeout", "60s"), ("ordered_max_times", "null"), ("concurrency", "8")]
    assert read_assignments(good(tmp_path), pairs, "policy set") == {
        "ladder": ["1s", "1m30s"],
        "timeout": "1m",
        "ordered_max_times": None,
        "concurrency": 8,
    }
    with pytest.raises(ConfigError, match=r"deliver.concurrency = x: must be a whole number .*\(policy set\)"):
        read_assignments(good(tmp_path), [("concurrency", "x")], "policy set")


def test_a_mismatch_says_both_values_and_the_mend(tmp_path: Path) -> None:
    settings = good(tmp_path, "retry.ladder=[1s]", LEVELS)
    (sentence,) = mismatches(settings, overridden(settings, {"ladder": ["2s"], "max_reconsume_times": 16}))
    assert sentence == (
        "retry.ladder: the configuration says [1s] and the group's policy says [2s]; write the group's value into the "
        "configuration, or have the group follow: reconsume policy set 'ladder=[1s]'"
    )


def test_each_value_has_its_origin(tmp_path: Path) -> None:
    current = origins(good(tmp_path, "retry.max_deaths=4"), {"timeout": "1s"})
    assert (current["max_deaths"], current["timeout"], current["ladder"]) == ("file", "policy", "default")


def test_the_mend_for_missing_levels_can_be_read_back(tmp_path: Path) -> None:
    settings = good(tmp_path, "retry.ladder={initial: 1s, multiplier: 2, max: 4s}", LEVELS)
    assert levels_of(settings) == {f"billing-RETRY-{level}" for level in ("1s", "2s")}
    sets = mend_levels(settings).split("--set ")[1:]
    again = good(tmp_path, *(text.strip().strip("'") for text in sets))
    assert levels_of(again) == levels_of(settings)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (["1s", "2s"], "[1s, 2s]"),
        ({"initial": "5s", "multiplier": 2.0}, "{initial: 5s, multiplier: 2.0}"),
        (3, "3"),
    ],
)
def test_values_on_one_line(value: object, text: str) -> None:
    assert flow(value) == text
