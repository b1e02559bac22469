"""A Spark job reads the group's reconsume.yaml as a sidecar does: it takes the same, and refuses the rest by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.settings import load
from reconsume.sidecar.settings.model import Settings
from reconsume.sidecar.settings.policy import build_policy
from reconsume.spark.consumer.configuration import rules_from
from reconsume.spark.consumer.rules import Rules
from reconsume.topics.group_rules import GroupRules
from reconsume.topics.tags import parse_tags

GOOD: dict[str, Any] = {
    "group": "billing",
    "topics": ["orders", "bills"],
    "kafka": {"bootstrap.servers": "localhost:9092"},
    "deliver": {"mode": "spark"},
}
TAKEN: list[dict[str, Any]] = [
    {},
    {"retry": None},
    {"topic_prefix": "{topic}-{group}"},
    {"topics": [{"name": "orders", "tags": "TagA||TagB"}, {"name": "bills", "tags": "*"}, "third"]},
    {"deliver": {"mode": "spark", "rate": "100/s", "group_rate": "600/m", "failure_text": "none"}},
    {"deliver": {"mode": "spark", "failure_text": "message", "order": "none", "broadcast": False}},
    {"deliver": {"mode": "spark", "url": "http://127.0.0.1:1/", "failure_text": None}},
    {"deliver": {"mode": "relay"}},
    {"deliver": {"url": "http://127.0.0.1:1/", "failure_text": "problem", "rate": "5/h"}},
    {"retry": {"ladder": ["1s", "1m"], "levels": "table", "max_reconsume_times": 3}},
    {"retry": {"ladder": {"initial": "1s", "max": "1h"}, "levels": ["5s", "1m"], "unknown_topic": "2h"}},
    {
        "retry": {
            "rules": [{"name": "busy", "reasons": ["http-409"], "ladder": ["1m"]}],
            "max_age": "3d",
            "jitter": "9%",
        }
    },
    {"view": True, "api": None, "labels": {"team": "payments"}, "retry": {"share": "20%", "max_deaths": 5}},
]
REFUSED: list[dict[str, Any]] = [
    {"grup": "x"},
    {"group": "billing-DLQ"},
    {"topics": [{"name": "orders", "tags": "A||A"}]},
    {"topics": ["billing-RETRY"]},
    {"retry": {"ladder": None}},
    {"retry": {"jitter": "9"}},
    {"deliver": {"mode": "spark", "failure_text": "problem"}},
    {"api": {"listen": "nowhere"}},
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "reconsume.yaml"


def written(file: Path, more: dict[str, Any]) -> Path:
    file.write_text(yaml.safe_dump({**GOOD, **more}), encoding="utf-8")
    return file


def assert_alike(rules: Rules, settings: Settings) -> None:
    theirs = build_policy(settings, rules.instance)
    for name in GroupRules.__struct_fields__:
        if name != "relay":  # of a sidecar
            assert getattr(rules, name) == getattr(theirs, name), name
    deliver = settings.deliver
    rates = [rate for rate in (deliver.rate, deliver.group_rate) if rate is not None]
    assert rules.rate == min(rates, key=lambda rate: rate.per_second, default=None)
    assert rules.tags == {one.name: tags for one in settings.topics if (tags := parse_tags(one.tags)) is not None}
    assert rules.failure_text == ("none" if deliver.failure_text == "none" else "message")


@pytest.mark.parametrize("more", TAKEN, ids=str)
def test_a_configuration_says_the_same_to_both(file: Path, more: dict[str, Any]) -> None:
    rules = rules_from(written(file, more), name="ship")
    assert_alike(rules, load(file, (), {}))
    assert (rules.name, rules.instance) == ("ship", "spark/ship")
    assert rules.private_group == "billing-SPARK-ship"


@pytest.mark.parametrize("more", REFUSED, ids=str)
def test_a_configuration_that_one_refuses_the_other_refuses_too(file: Path, more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        load(written(file, more), (), {})
    with pytest.raises(ValueError, match=r"reconsume\.yaml: ") as refused:
        rules_from(file, name="ship")
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"deliver": {"url": "http://127.0.0.1:1/", "order": "key"}}, "deliver.order: the group keeps the order"),
        (
            {"deliver": {"url": "http://127.0.0.1:1/", "order": "key"}, "retry": {"ordered_ladder": ["1s"]}},
            "keeps the order",
        ),
        (
            {"deliver": {"url": "http://127.0.0.1:1/", "broadcast": True}},
            "deliver.broadcast: a broadcast has no consumer group",
        ),
        (
            {"topics": ["orders", {"name": "old", "drains": "orders"}], "deliver": {"url": "http://127.0.0.1:1/"}},
            "topics: drains is for sidecars",
        ),
        ({"retry": {"lader": ["1s"]}}, "retry.lader: unknown key; did you mean retry.ladder"),
        ({"group": None}, "group"),
    ],
)
def test_what_no_query_can_do_is_refused_by_its_name(file: Path, more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        rules_from(written(file, more), name="ship")


@pytest.mark.parametrize("text", ["group: [", "- group", "group: a\ngroup: b", "retry:\n  jitter: 1%\n  jitter: 2%"])
def test_what_is_no_configuration_is_refused_by_both(file: Path, text: str) -> None:
    file.write_text(f"{text}\n", encoding="utf-8")
    with pytest.raises(ConfigError):
        load(file, (), {})
    with pytest.raises(ValueError, match=r"reconsume\.yaml: "):
        rules_from(file, name="ship")


def test_a_file_extends_its_base_as_a_sidecars_does(file: Path) -> None:
    base = {"topics": ["old"], "retry": {"ladder": ["1s", "2s"], "jitter": "9%"}, "deliver": {"rate": "5/s"}}
    (file.parent / "common.yaml").write_text(yaml.safe_dump(base), encoding="utf-8")
    more = {"base": "common.yaml", "retry": {"ladder": {"initial": "7s", "max": "7s"}, "max_reconsume_times": 2}}
    rules = rules_from(written(file, more), name="ship")
    assert_alike(rules, load(file, (), {}))
    assert (rules.topics, rules.jitter, rules.delays, rules.file) == (("orders", "bills"), 9, (7_000,), str(file))
    (file.parent / "common.yaml").write_text("base: other.yaml\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no base of its own"):
        rules_from(file, name="ship")
