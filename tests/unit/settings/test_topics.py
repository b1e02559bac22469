"""What an entry of `topics` and a rate may be, and in which modes."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconsume.sidecar.settings.checks import without_effect
from reconsume.topics.rates import Rate
from tests.support.sidecar.settings import good, problems, write_good


def test_an_entry_may_have_each_setting_of_its_own(tmp_path: Path) -> None:
    own = "topics=[orders, {name: bills, path: '/b?by=kafka', timeout: 2s, concurrency: 3, rate: 5/h}]"
    plain, bills = good(tmp_path, own).topics
    assert (plain.path, plain.timeout, plain.concurrency, plain.rate) == (None, None, None, None)
    assert (bills.path, bills.timeout, bills.concurrency, bills.rate) == ("/b?by=kafka", 2_000, 3, Rate(5, 3_600_000))


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("path: orders", "must be a path"),
        ("path: 'http://10.0.0.1/x'", "must be a path"),
        ("path: '/a b'", "must be a path"),
        ("path: '/a#b'", "must be a path"),
        ("path: '/ü'", "must be a path"),
        ('path: "/a\\r\\nHost: x"', "which cannot be seen"),
        ("timeout: 5", "with a unit"),
        ("timeout: 1ms", "from 10ms to 1d"),
        ("concurrency: 0", "from 1 to 65536"),
        ("rate: 5", "with its time: 5/s, say"),
        ("rate: 0/s", "must be a rate like 100/s"),
        ("rate: 5/d", "must be a rate like 100/s"),
        ("order: key", "give this topic a group of its own, with its deliver.order"),
    ],
)
def test_what_is_none_is_refused_with_its_name(entry: str, sentence: str, tmp_path: Path) -> None:
    (problem,) = problems(write_good(tmp_path), [f"topics=[orders, {{name: bills, {entry}}}]"])
    assert problem.startswith(f"topics[1].{entry.partition(':')[0]}")
    assert sentence in problem


@pytest.mark.parametrize("name", ["rate", "group_rate"])
def test_a_rate_is_one_or_null(name: str, tmp_path: Path) -> None:
    assert getattr(good(tmp_path, f"deliver.{name}=100/m").deliver, name) == Rate(100, 60_000)
    assert getattr(good(tmp_path, f"deliver.{name}=null").deliver, name) is None
    (problem,) = problems(write_good(tmp_path), [f"deliver.{name}=fast"])
    assert problem.startswith(f"deliver.{name} = fast: must be a rate")


def test_in_pull_a_topic_may_have_a_rate_and_nothing_of_a_request(tmp_path: Path) -> None:
    pull = ["deliver.mode=pull", "deliver.url=null"]
    assert good(tmp_path, *pull, "topics=[{name: orders, rate: 5/s}]").topics[0].rate == Rate(5, 1_000)
    own = "topics=[{name: orders, path: /x, timeout: 1s, concurrency: 2}]"
    told = problems(write_good(tmp_path), [*pull, own])
    assert [problem.split(":")[0] for problem in told] == [
        f"topics[0].{name}" for name in ("path", "timeout", "concurrency")
    ]


def test_a_broadcast_has_no_rate_of_the_group(tmp_path: Path) -> None:
    (problem,) = problems(write_good(tmp_path), ["deliver.broadcast=true", "deliver.group_rate=5/s"])
    assert "cannot be divided in broadcast mode" in problem
    assert good(tmp_path, "deliver.broadcast=true", "deliver.rate=5/s").deliver.rate == Rate(5, 1_000)


def test_a_limit_that_never_binds_is_named(tmp_path: Path) -> None:
    own = "topics=[{name: orders, concurrency: 300, rate: 61/m}, {name: bills, concurrency: 256, rate: 1/s}]"
    told = without_effect(good(tmp_path, own, "deliver.rate=1/s"))
    assert [sentence.partition(" has no effect")[0] for sentence in told] == [
        "topics: concurrency 300 of orders",
        "topics: rate 61/m of orders",
    ]


def test_a_drained_topic_names_its_main_topic_and_has_nothing_of_its_own(tmp_path: Path) -> None:
    own = "topics=[{name: orders, path: /orders, rate: 5/s}, {name: orders-retry-0, drains: orders}]"
    settings = good(tmp_path, own)
    assert settings.drains == {"orders-retry-0": "orders"}
    assert settings.topic_names == ("orders", "orders-retry-0")


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("drains: old", "topics[1].drains = old: is the topic itself"),
        ("drains: bills", "topics[1].drains = bills: is not in topics"),
        ("drains: older", "topics[1].drains = older: is itself drained into orders"),
        ("drains: 7", "topics[1].drains = 7: must be"),
        ("drains: orders, tags: TagA", "topics[1].tags: is that of orders"),
        ("drains: orders, path: /x", "topics[1].path: is that of orders"),
        ("drains: orders, timeout: 1s", "topics[1].timeout: is that of orders"),
        ("drains: orders, concurrency: 2", "topics[1].concurrency: is that of orders"),
        ("drains: orders, content_type: text/plain", "topics[1].content_type: is that of orders"),
        ("drains: orders, rate: 5/s", "topics[1].rate: is that of orders"),
    ],
)
def test_what_cannot_be_drained_is_refused_with_its_reason(entry: str, sentence: str, tmp_path: Path) -> None:
    topics = f"topics=[orders, {{name: old, {entry}}}, {{name: older, drains: orders}}]"
    (problem,) = problems(write_good(tmp_path), [topics])
    assert problem.startswith(sentence)


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [("deliver.order=key", "order"), ("deliver.order=partition", "order"), ("deliver.mode=spark", "for sidecars")],
)
def test_a_topic_is_not_drained_in_order_or_by_spark(mode: str, sentence: str, tmp_path: Path) -> None:
    sets = [mode, "topics=[orders, {name: old, drains: orders}]"]
    sets += ["deliver.url=null"] if "spark" in mode else []
    (problem,) = problems(write_good(tmp_path), sets)
    assert problem.startswith("topics[1].drains = orders: ")
    assert sentence in problem
