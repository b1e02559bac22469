"""`simulate`: figures as rows, wrong numbers as one sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.sidecar.cli import reconsume

ASKED = ("simulate", "--rate", "1000", "--fail-rate", "0.01")


def figures(*words: str) -> dict[tuple[str, str], Any]:
    shown = reconsume(*ASKED, "-o", "json", *words)
    assert shown.exit_code == 0, shown.stderr
    return {(row["part"], row["what"]): row["value"] for row in json.loads(shown.stdout)}


def test_it_says_what_waits_in_each_level_and_needs_no_configuration() -> None:
    found = figures()
    assert (found["waiting", "10s"], found["waiting", "30s"]) == (100, 150)
    assert found["group", "waiting"] == 856


def test_the_ladder_and_the_retries_may_be_given() -> None:
    found = figures("--ladder", "1s, 1m", "--retries", "2", "--retry-fail-rate", "1")
    assert {what: value for (part, what), value in found.items() if part == "waiting"} == {"1s": 10.0, "1m": 600}
    assert found["group", "dead letters"] == 10.0


def test_a_configuration_gives_ladder_levels_and_concurrency() -> None:
    sets = ("group=g", "topics=[t]", "kafka={bootstrap.servers: 'x:1'}", "deliver.url=http://127.0.0.1:1/")
    own = ("retry.ladder=[2s]", "retry.levels=[1s, 2s]", "deliver.concurrency=100")
    found = figures(*(word for text in (*sets, *own) for word in ("--set", text)))
    assert [what for part, what in found if part == "waiting"] == ["2s"]
    assert found["limit", "requests in flight"] == 51.0


def test_an_ordered_group_with_a_ladder_has_what_is_behind_its_keys() -> None:
    """Given a ladder for ordered records, then they wait in a queue topic, and later ones of their keys behind them."""
    sets = ("group=g", "topics=[t]", "kafka={bootstrap.servers: 'x:1'}", "deliver.url=http://127.0.0.1:1/")
    own = ("deliver.order=key", "retry.ordered_ladder=[10s, 1m]", "retry.max_reconsume_times=2")
    words = [word for text in (*sets, *own) for word in ("--set", text)]
    found = figures(*words, "--keys", "100000")
    assert (found["keys", "blocked"], found["keys", "next record"]) == (400, 40.1)
    assert 0 < found["keys", "behind"] < found["keys", "blocked"]
    assert ("storage", "ordered") in found
    assert ("storage", "level") not in found
    parking = figures(*words, "--set", "retry.ordered_exhausted=park")
    assert parking["group", "parked"] == found["group", "dead letters"]
    assert (("group", "dead letters") in parking, parking["storage", "dlq"]) == (False, 0), "nothing of it is dead"
    few = figures(*words, "--keys", "100")
    assert few["keys", "behind"] is None
    assert few["limit", "the time of a key"] > 100
    assert ("keys", "blocked") not in figures("--keys", "100"), "a group without a ladder for ordered records"


def test_a_rate_is_a_limit_and_a_topic_has_its_own() -> None:
    topics = "topics=[t, {name: u, concurrency: 4, rate: 100/s}]"
    sets = ("group=g", topics, "kafka={bootstrap.servers: 'x:1'}", "deliver.url=http://127.0.0.1:1/")
    words = [word for text in (*sets, "deliver.rate=2040/s", "deliver.group_rate=8160/s") for word in ("--set", text)]
    found = figures(*words, "--instances", "2")
    assert found["limit", "the rate of an instance"] == 25.0
    own = figures(*words, "--topic", "u")
    assert (own["limit", "the rate of an instance"], own["lateness", "p99"]) == (1020, None)
    assert own["limit", "requests in flight"] == 1270
    assert ("limit", "the rate of an instance") not in figures()


def test_spark_is_a_part_of_it_only_where_it_keeps_the_view() -> None:
    sets = ("group=g", "topics=[t]", "kafka={bootstrap.servers: 'x:1'}", "deliver.url=http://127.0.0.1:1/")
    of_spark = {
        ("limit", "one Spark core"),
        ("storage", "view"),
        ("storage", "stats"),
    }
    for source, seen in (("auto", set()), ("events", set()), ("spark", of_spark)):
        found = figures(*(word for text in (*sets, f"view.source={source}") for word in ("--set", text)))
        assert found.keys() & of_spark == seen
    assert figures().keys() & of_spark == set()


@pytest.mark.parametrize(
    ("words", "example"),
    [
        (("simulate",), "reconsume simulate --rate 1000 --fail-rate 0.01 -o table"),
        (("dev", "produce"), "reconsume dev produce "),
        (("dlq", "show"), "reconsume dlq show "),
    ],
)
def test_what_is_missing_is_named_with_an_example(words: tuple[str, ...], example: str) -> None:
    shown = reconsume(*words)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "Missing " in shown.stderr
    assert f"For example: {example}" in shown.stderr
    told = json.loads(reconsume(*words, "-o", "json").stderr)
    assert f"For example: {example}" in told["detail"]


def test_an_outage_is_a_backlog_on_the_main_topics() -> None:
    assert figures("--outage", "10m")["outage", "backlog"] == 600_000


def test_where_the_constants_come_from_is_said_beside_the_data() -> None:
    assert "constants: 2026-" in reconsume(*ASKED).stderr


@pytest.mark.parametrize(
    "wrong",
    [
        ("--fail-rate", "2"),
        ("--rate", "0"),
        ("--rate", "nan"),
        ("--attempt", "soon"),
        ("--record-size", "big"),
        ("--ladder", "fast"),
        ("--ladder", "11d"),
    ],
)
def test_what_makes_no_sense_is_wrong_usage(wrong: tuple[str, str]) -> None:
    shown = reconsume(*ASKED, *wrong)
    assert (shown.exit_code, shown.stdout) == (2, "")
