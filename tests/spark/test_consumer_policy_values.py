"""The group's policy means the same to a sidecar and to a Spark job: each value is taken alike, or refused by both."""

from __future__ import annotations

from typing import Any

import pytest

from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.settings.group_policy import overridden, policy_values
from reconsume.sidecar.settings.model import Settings
from reconsume.sidecar.settings.policy import build_policy
from reconsume.spark.consumer.rules import KEYS, RetryTerms, Rules, build_rules, with_policy
from tests.support.sidecar.settings import good

RULE = {"name": "busy", "reasons": ["http-409"], "ladder": ["1m", "90s"], "max_age": "1h"}
TAKEN: list[dict[str, Any]] = [
    {},
    {"max_reconsume_times": 0},
    {"max_reconsume_times": 999_999, "timeout": "30s", "of a newer version": 1},
    {"ladder": "pulsar", "levels": "table"},
    {"ladder": ["1s", "10d"], "levels": None},
    {"ladder": {"initial": "1s", "multiplier": 3, "max": "1h"}, "levels": ["5s", "1m"]},
    {"ladder": {}},
    {"max_age": "3650d", "jitter": "50%"},
    {"max_age": None, "jitter": "0%", "rules": []},
    {"rules": [RULE, {"name": "end", "topics": ["orders", "b-*"], "dead_letter": True}]},
    {"rate": "5/h", "group_rate": "100/s"},
    {"rate": None, "group_rate": "600/m"},
    {"rules": [{"name": "n", "ladder": None, "max_reconsume_times": 3, "max_age": None}], "max_age": "2h"},
]
REFUSED: list[dict[str, Any]] = [
    *({"max_reconsume_times": value} for value in (-1, 1_000_000, True, "3", 1.0, None)),
    *({"ladder": value} for value in ("steps", [], ["10"], ["999ms"], ["11d"], [1], None, 5, ["1s"] * 65)),
    *({"ladder": {"initial": "5s", **more}} for more in ({"maximum": "1h"}, {"multiplier": 0.5}, {"multiplier": True})),
    {"ladder": {"initial": "2s", "max": "1s"}},
    {"ladder": {"initial": "1s", "multiplier": 1.0001, "max": "1h"}},
    *({"levels": value} for value in ("steps", [], ["10s", "5s"], ["1s", "1s"], 3)),
    *({"max_age": value} for value in ("0s", "3651d", 5, "soon")),
    *({"jitter": value} for value in ("51%", "5", 5, "-1%", None)),
    *({"rate": value} for value in ("5", 5, "0/s", "5/d", "")),
    *({"group_rate": value} for value in ("2000000/s", True)),
    *({"rules": value} for value in (None, {}, [{}], [RULE, RULE], ["busy"], [{"name": f"r{n}"} for n in range(65)])),
    *(
        {"rules": [{"name": "n", **more}]}
        for more in (
            {"name": ""},
            {"name": "a\n"},
            {"ladder": "steps"},
            {"reasons": "http-409"},
            {"reasons": ["a\n"]},
            {"reasons": ["x" * 65]},
            {"topics": ["a"] * 65},
            {"max_reconsume_times": -1},
            {"max_age": "0s"},
            {"dead_letter": None},
            {"dead_letter": 1},
            {"delay": "1s"},
        )
    ),
    {
        "rules": [{"name": f"r{n}", "ladder": [f"{n * 3 + k}m" for k in range(1, 4)]} for n in range(43)],
        "levels": "ladder",
    },
]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return good(tmp_path_factory.mktemp("settings"))


@pytest.fixture(scope="module")
def rules() -> Rules:
    return build_rules("billing", ["orders"], name="ship")


@pytest.mark.parametrize("values", TAKEN, ids=str)
def test_a_policy_says_the_same_to_both(settings: Settings, rules: Rules, values: dict[str, Any]) -> None:
    ours, theirs = with_policy(rules, values), build_policy(overridden(settings, values), "spark")
    for name in (*RetryTerms.__struct_fields__, "names", "topics"):
        if name != "rate":
            assert getattr(ours, name) == getattr(theirs, name), name
    deliver = overridden(settings, values).deliver
    rates = [rate for rate in (deliver.rate, deliver.group_rate) if rate is not None]
    assert ours.rate == min(rates, key=lambda rate: rate.per_second, default=None), "a query is one instance"


@pytest.mark.parametrize("values", REFUSED, ids=lambda values: str(values)[:60])
def test_a_policy_that_one_refuses_the_other_refuses_too(
    settings: Settings, rules: Rules, values: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError):
        overridden(settings, values)
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - each says its own sentence
        with_policy(rules, values)
    assert len(str(refused.value).splitlines()) == 1


def test_what_reconsume_writes_into_the_topic_is_read_as_it_was_set(settings: Settings, rules: Rules) -> None:
    values = policy_values(settings)
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
