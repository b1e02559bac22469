"""Delays are written as in the group's policy, and what cannot be is refused when the rules are built."""

from __future__ import annotations

from typing import Any

import pytest

from reconsume.spark.consumer.configuration import build_rules
from reconsume.topics.levels import Exponential, build_ladder


@pytest.mark.parametrize(
    ("ladder", "spec"),
    [
        ("rocketmq", "rocketmq"),
        ("pulsar", "pulsar"),
        (["10s", "1m"], (10_000, 60_000)),
        ({"initial": "1s", "max": "1h"}, Exponential(1_000, 2.0, 3_600_000)),
        ({}, Exponential()),
        ({"multiplier": 3}, Exponential(multiplier=3.0)),
    ],
)
def test_a_ladder_is_read_as_in_the_policy(ladder: Any, spec: Any) -> None:
    assert build_rules("billing", ["orders"], ladder=ladder, name="ship").ladder == build_ladder(spec)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ladder": "steps"},
        {"ladder": ["10"]},
        {"ladder": {"initial": "5s", "maximum": "1h"}},
        {"levels": ["10s", "5s"]},
        {"max_reconsume_times": -1},
        {"max_reconsume_times": 1_000_000},
        {"topics": "orders"},
        {"topics": []},
        {"topics": ["billing-RETRY"]},
        {"topic_prefix": "{x}"},
        {"failure_text": "body"},
        {"name": ""},
        {"name": "two words"},
        {"name": "n" * 61},
    ],
    ids=repr,
)
def test_rules_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each says its own sentence
        build_rules(**{"group": "billing", "topics": ["orders"], "name": "ship", **wrong})


def test_levels_are_the_ladders_or_a_list_as_the_sidecar_has_them() -> None:
    rules = build_rules("billing", ["orders"], ladder=["7s"], levels=["5s", "10s"], name="ship")
    assert rules.levels == {"billing-RETRY-5s": 5_000, "billing-RETRY-10s": 10_000}
    assert build_rules("billing", ["orders"], ladder=["7s"], name="ship").levels == {"billing-RETRY-7s": 7_000}
    assert len(build_rules("billing", ["orders"], ladder=["7s"], levels="table", name="ship").levels) == 19
    assert len(build_rules("billing", ["orders"], name="ship").levels) == 6
    assert len(build_rules("billing", ["orders"], levels="ladder", name="ship").levels) == 16


def test_with_a_prefix_per_topic_each_topic_has_its_levels() -> None:
    rules = build_rules("billing", ["orders", "bills"], levels=["5s"], topic_prefix="{topic}-{group}", name="ship")
    assert rules.levels == {"orders-billing-RETRY-5s": 5_000, "bills-billing-RETRY-5s": 5_000}
