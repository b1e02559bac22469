"""Rules in the file and in the group's policy: read, refused in one sentence each, changed by their name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.settings.group_policy import KEYS, overridden, policy_values, read_assignments
from reconsume.sidecar.settings.policy import build_policy
from tests.support.sidecar.settings import good, problems, write_good

RULES = (
    "retry.rules=[{name: busy, reasons: [http-409], ladder: [1m, 90m]}, "
    "{name: gone, topics: [orders], dead_letter: true}]"
)


def test_a_rule_has_what_it_says_and_else_what_the_group_has(tmp_path: Path) -> None:
    settings = good(tmp_path, RULES, "retry.max_age=1d", "retry.max_reconsume_times=5", "retry.jitter=10%")
    policy = build_policy(settings, "pod")
    busy, gone = policy.retry_rules
    assert (busy.ladder.delays, busy.max_reconsume_times, busy.max_age) == ((60_000, 5_400_000), 5, 86_400_000)
    assert (gone.ladder, gone.dead_letter) == (policy.ladder, True)
    assert (policy.max_age, policy.jitter) == (86_400_000, 10)


def test_each_delay_of_a_rules_ladder_has_its_level_or_is_made_of_hops_where_levels_are_listed(tmp_path: Path) -> None:
    plain, ruled = (good(tmp_path, *sets, "retry.levels=ladder") for sets in ((), (RULES,)))
    assert set(ruled.delays) - set(plain.delays) == {5_400_000}
    assert good(tmp_path, RULES, "retry.levels=[10s, 1m]").delays == (10_000, 60_000)


REFUSED = [
    ("retry.rules=[5]", "retry.rules[0] = 5: must be {name, topics, reasons"),
    ("retry.rules=[{}]", "retry.rules[0].name: is required"),
    ("retry.rules=[{name: a, wait: 3s}]", "retry.rules[0].wait: unknown key; known here: name, topics"),
    ("retry.rules=[{name: a b}]", "retry.rules[0].name = a b: must be a name"),
    (
        "retry.rules=[{name: a}, {name: a}]",
        "retry.rules[1] = {…}: a is in [0] of this list already; a rule is changed by its name",
    ),
    ("retry.rules=[{name: a, reasons: [no stock]}]", "retry.rules[0].reasons[0] = no stock: must be a class"),
    ("retry.rules=[{name: a, reasons: http-409}]", "retry.rules[0].reasons = http-409: must be a list"),
    ("retry.rules=[{name: a, topics: ['*', '/']}]", "retry.rules[0].topics[1] = /: must be a main topic"),
    ("retry.rules=[{name: a, ladder: quick}]", "retry.rules[0].ladder = quick: must be rocketmq, pulsar, a list"),
    ("retry.rules=[{name: a, ladder: [0s]}]", "retry.rules[0].ladder[0] = 0s: must be a duration from 1s to 10d"),
    ("retry.rules=[{name: a, ladder: {initial: 1h, max: 1m}}]", "retry.rules[0].ladder: an exponential ladder needs"),
    ("retry.rules=[{name: a, max_reconsume_times: -1}]", "retry.rules[0].max_reconsume_times = -1: must be a whole"),
    ("retry.rules=[{name: a, max_age: 1}]", "retry.rules[0].max_age = 1: must be a duration"),
    ("retry.rules=[{name: a, dead_letter: 1}]", "retry.rules[0].dead_letter = 1: must be true or false"),
    ("retry.max_age=0s", "retry.max_age = 0s: must be a duration from 1s to 3650d"),
    ("retry.jitter=51%", "retry.jitter = 51%: must be a percentage from 0% to 50%"),
]


@pytest.mark.parametrize(("text", "sentence"), REFUSED)
def test_what_is_no_rule_is_refused_by_its_path(tmp_path: Path, text: str, sentence: str) -> None:
    (problem,) = problems(write_good(tmp_path), [text])
    assert sentence in problem


def test_too_many_rules_and_too_many_levels_are_refused(tmp_path: Path) -> None:
    many = ", ".join(f"{{name: r{number}}}" for number in range(65))
    assert problems(write_good(tmp_path), [f"retry.rules=[{many}]"])
    far = ", ".join(f"{{name: r{n}, ladder: [{', '.join(f'{n * 60 + s + 1}s' for s in range(60))}]}}" for n in range(3))
    (problem,) = problems(write_good(tmp_path), [f"retry.rules=[{far}]", "retry.levels=ladder"])
    assert "the ladders have 19" in problem
    assert good(tmp_path, f"retry.rules=[{far}]", "retry.levels=[1s, 1m]").delays == (1_000, 60_000)


@pytest.mark.parametrize("key", ["ladder: [1m]", "max_reconsume_times: 3"])
def test_what_has_no_effect_in_place_is_refused_there(tmp_path: Path, key: str) -> None:
    (problem,) = problems(write_good(tmp_path), [f"retry.rules=[{{name: a, {key}}}]", "deliver.order=key"])
    assert "has no effect with deliver.order" in problem
    assert good(tmp_path, "retry.rules=[{name: a, dead_letter: true, max_age: 1h}]", "deliver.order=key").delays == ()


def test_the_rules_are_set_together(tmp_path: Path) -> None:
    settings, rules = (
        good(tmp_path, RULES),
        [{"name": "busy", "reasons": ["timeout"]}, {"name": "new", "max_age": "1h"}],
    )
    changed = read_assignments(settings, [("rules", json.dumps(rules))], "policy set")
    assert changed == {"rules": rules}
    assert overridden(settings, changed).retry_rules[0].reasons == ("timeout",)
    assert read_assignments(settings, [("rules", "[]")], "policy set") == {"rules": []}
    with pytest.raises(ConfigError) as caught:
        read_assignments(settings, [("rules", "[{name: a, reasons: [a b]}]")], "policy set")
    assert "retry.rules[0].reasons[0] = a b: must be a class" in caught.value.problems[0]


def test_rules_come_back_from_the_policy_as_they_were_written(tmp_path: Path) -> None:
    settings = good(tmp_path, RULES, "retry.max_age=36h", "retry.jitter=50%")
    assert overridden(good(tmp_path), policy_values(settings)).retry == settings.retry
    assert {"rules", "max_age", "jitter"} <= KEYS.keys()
