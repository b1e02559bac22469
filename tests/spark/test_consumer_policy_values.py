"""The group's policy means the same to a sidecar and to a Spark job, as one reader reads it for both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reconsume.sidecar.settings.group_policy import overridden, policy_values
from reconsume.sidecar.settings.policy import build_policy
from reconsume.spark.consumer.configuration import KEYS, build_rules, with_policy
from reconsume.topics.group_rules import GroupRules
from tests.support.sidecar.settings import good

RULE = {"name": "busy", "reasons": ["http-409"], "ladder": ["1m", "90s"], "max_age": "1h"}


def test_a_policy_says_the_same_to_both_and_a_query_is_one_instance(tmp_path: Path) -> None:
    values = {
        "ladder": {"initial": "1s", "multiplier": 3, "max": "1h"},
        "levels": ["5s", "1m"],
        "rules": [RULE, {"name": "end", "topics": ["orders", "b-*"], "dead_letter": True}],
        "max_age": None,
        "jitter": "50%",
        "rate": "5/h",
        "group_rate": "100/s",
        "timeout": "30s",
        "of a newer version": 1,
    }
    settings = overridden(good(tmp_path), values)
    rules = with_policy(build_rules("billing", ["orders"], name="ship"), values)
    theirs = build_policy(settings, rules.instance)
    for name in GroupRules.__struct_fields__:
        assert getattr(rules, name) == getattr(theirs, name), name
    assert rules.rate == settings.deliver.rate


@pytest.mark.parametrize(
    "values",
    [
        {"max_reconsume_times": True},
        {"ladder": ["999ms"]},
        {"levels": ["10s", "5s"]},
        {"jitter": "51%"},
        {"rate": "5/d"},
        {"rules": [RULE, RULE]},
        {"ordered_ladder": ["1m"]},
    ],
    ids=str,
)
def test_a_policy_that_cannot_be_is_refused_in_one_sentence(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - each says its own sentence
        with_policy(build_rules("billing", ["orders"], name="ship"), values)
    assert len(str(refused.value).splitlines()) == 1


def test_what_reconsume_writes_into_the_topic_is_read_as_it_was_set(tmp_path: Path) -> None:
    values = policy_values(good(tmp_path))
    rules = build_rules("billing", ["orders"], name="ship")
    assert set(KEYS) <= values.keys()
    assert with_policy(rules, values) == rules


def test_a_value_that_the_policy_lacks_is_the_jobs_own() -> None:
    own: dict[str, Any] = {"ladder": ["1s"], "levels": ["1s"], "max_age": "1h", "jitter": "5%", "rules": [RULE]}
    rules = build_rules("billing", ["orders"], **own, name="ship")
    once = with_policy(rules, {"ladder": ["7s"], "jitter": "9%", "levels": None})
    assert (once.ladder.delays, once.delays, once.jitter, once.max_age) == (
        (7_000,),
        (7_000, 60_000, 90_000),
        9,
        3_600_000,
    )
    assert with_policy(once, {}) == rules
    assert with_policy(once, {"max_reconsume_times": 2}).ladder == rules.ladder
