"""`explain`: the numbers of the contract's ladders, seen from the outside."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from reconsume.sidecar.cli.failure_classes import NOT_SENT
from reconsume.sidecar.delivery.push.dial import REASONS
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.settings import write_good


def rows(tmp_path: Path, *words: str) -> list[dict[str, Any]]:
    shown = reconsume("explain", "-c", write_good(tmp_path), *words)
    assert shown.exit_code == 0, shown.stderr
    return [json.loads(line) for line in shown.stdout.splitlines()]


def test_the_default_policy_is_rocketmqs(tmp_path: Path) -> None:
    found = rows(tmp_path)
    waits = "0s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h 0s"
    assert " ".join(row["waits"] for row in found) == waits
    assert found[0] == {"attempt": 1, "waits": "0s", "sum": "0s", "topic": "orders"}
    assert found[1] == {"attempt": 2, "waits": "10s", "sum": "10s", "topic": "billing-RETRY-10s"}
    assert found[-2] == {"attempt": 17, "waits": "2h", "sum": "4h45m40s", "topic": "billing-RETRY-2h"}
    assert found[-1] == {"attempt": None, "waits": "0s", "sum": "4h45m40s", "topic": "billing-DLQ"}


def test_the_pulsar_ladder_sums_to_1h45m46s(tmp_path: Path) -> None:
    assert rows(tmp_path, "--set", "retry.ladder=pulsar")[-1]["sum"] == "1h45m46s"


def test_past_the_end_every_retry_waits_the_last_delay(tmp_path: Path) -> None:
    found = rows(tmp_path, "--set", "retry.ladder=[1s, 7s]", "--set", "retry.max_reconsume_times=4")
    assert [row["waits"] for row in found] == ["0s", "1s", "7s", "7s", "7s", "0s"]


def test_without_retries_the_first_failure_is_a_dead_letter(tmp_path: Path) -> None:
    assert [row["topic"] for row in rows(tmp_path, "--set", "retry.max_reconsume_times=0")] == ["orders", "billing-DLQ"]


def test_each_main_topic_has_its_own_way_where_the_prefix_says_so(tmp_path: Path) -> None:
    sets = ["--set", "topics=[orders, invoices]", "--set", "topic_prefix={topic}-{group}"]
    assert rows(tmp_path, *sets)[1]["topic"] == "orders-billing-RETRY-10s"
    assert rows(tmp_path, *sets, "--topic", "invoices")[-1]["topic"] == "invoices-billing-DLQ"


def test_a_topic_of_others_is_wrong_usage(tmp_path: Path) -> None:
    shown = reconsume("explain", "-c", write_good(tmp_path), "--topic", "nope")
    assert (shown.exit_code, shown.stdout) == (2, "")


@pytest.mark.parametrize(("retries", "is_cut"), [(98, False), (99, True), (999_999, True)])
def test_a_table_has_100_rows_at_most_and_says_so(tmp_path: Path, retries: int, is_cut: bool) -> None:
    file = write_good(tmp_path)
    shown = reconsume("explain", "-c", file, "--set", f"retry.max_reconsume_times={retries}", "-o", "table")
    rows = [line for line in shown.stdout.splitlines() if re.search(r"\b(orders|billing)\b", line)]
    assert len(rows) == 100
    assert ("-DLQ" in shown.stdout) != is_cut
    assert ("the table ends after 100 rows" in shown.stderr) == is_cut


@pytest.mark.parametrize(
    ("sets", "topics", "said"),
    [
        (["deliver.broadcast=true"], ["orders"], "never retried"),
        (["deliver.order=key"], ["orders"] * 4, "without limit, every 1s"),
        (
            ["deliver.order=key", "retry.ordered_ladder=[10s, 1h]", "retry.max_reconsume_times=2"],
            ["orders", "billing-ORDERED-orders", "billing-ORDERED-orders", "billing-DLQ"],
            "later records of its key wait behind a failing one",
        ),
        (
            [
                *("deliver.order=key", "retry.ordered_ladder=[10s]", "retry.max_reconsume_times=1"),
                "retry.ordered_exhausted=park",
            ],
            ["orders", "billing-ORDERED-orders", "billing-ORDERED-orders (parked)"],
            "settle -c ",
        ),
        (
            ["deliver.order=partition", "retry.ordered_max_times=1"],
            ["orders", "orders", "billing-DLQ"],
            "holds back its partition",
        ),
        (
            ["deliver.mode=relay", "deliver.url=null", "retry.max_reconsume_times=1"],
            ["orders", "billing-RETRY-10s, billing-RETRY", "billing-DLQ"],
            "the service reads the main topics",
        ),
        (
            ["deliver.mode=pull", "deliver.url=null", "retry.max_reconsume_times=0"],
            ["orders", "billing-DLQ"],
            "a lease that expires",
        ),
        (
            ["deliver.batch.max_size=32", "retry.max_reconsume_times=0"],
            ["orders", "billing-DLQ"],
            "that the answer does not name",
        ),
        (
            ["retry.ladder=[1s, 2s]", "retry.max_reconsume_times=2"],
            ["orders", "billing-RETRY-1s", "billing-RETRY-2s", "billing-DLQ"],
            "a record is in the DLQ after 3s; one goes every 1s",
        ),
    ],
)
def test_each_mode_has_its_own_timeline(tmp_path: Path, sets: list[str], topics: list[str], said: str) -> None:
    words = [word for change in sets for word in ("--set", change)]
    assert [row["topic"] for row in rows(tmp_path, *words)] == topics
    assert said in reconsume("explain", "-c", write_good(tmp_path), *words).stderr


def test_nothing_is_said_of_a_ladder_that_lasts_for_hours(tmp_path: Path) -> None:
    assert "DLQ after" not in reconsume("explain", "-c", write_good(tmp_path)).stderr


def test_an_ordered_record_waits_its_interval_in_place(tmp_path: Path) -> None:
    found = rows(tmp_path, "--set", "deliver.order=key", "--set", "retry.ordered_interval=250ms")
    assert [(row["waits"], row["sum"]) for row in found] == [
        ("0s", "0s"),
        ("250ms", "250ms"),
        ("250ms", "500ms"),
        ("250ms", "750ms"),
    ]


RULES = (
    "retry.rules=[{name: busy, topics: [orders], reasons: [http-409], ladder: [1m, 5m], max_reconsume_times: 3}, "
    "{name: gone, reasons: [http-410], dead_letter: true}]"
)


@pytest.mark.parametrize(
    ("words", "waits"),
    [
        (("--reason", "http-409"), ["0s", "1m", "5m", "5m", "0s"]),
        (("--reason", "http-410"), ["0s", "0s"]),
        (("--reason", "http-409", "--set", "retry.max_age=6m"), ["0s", "1m", "5m", "0s"]),
        (("--reason", "timeout", "--set", "retry.max_reconsume_times=1"), ["0s", "10s", "0s"]),
    ],
)
def test_the_way_of_a_failure_that_a_rule_names(tmp_path: Path, words: tuple[str, ...], waits: list[str]) -> None:
    assert [row["waits"] for row in rows(tmp_path, "--set", RULES, *words)] == waits


def test_the_rule_that_applies_is_named(tmp_path: Path) -> None:
    shown = reconsume("explain", "-c", write_good(tmp_path), "--set", RULES, "--reason", "http-410")
    assert "the rule gone applies" in shown.stderr
    assert (
        "no rule applies, as no --reason is given"
        in reconsume("explain", "-c", write_good(tmp_path), "--set", RULES).stderr
    )


@pytest.mark.parametrize("reason", ["http-429", "connection-refused", "tls-expired", "cancelled"])
def test_what_is_no_attempt_has_a_sentence_and_no_ladder(tmp_path: Path, reason: str) -> None:
    shown = reconsume("explain", "-c", write_good(tmp_path), "--reason", reason)
    assert f"{reason} is not an attempt" in shown.stderr
    assert "no retry is used up" in shown.stderr
    assert shown.stdout == ""


def test_each_reason_for_which_nothing_is_sent_is_known_as_no_attempt() -> None:
    assert {reason for _, reason in REASONS} <= NOT_SENT


def test_a_status_that_the_configuration_does_not_throttle_by_is_an_attempt(tmp_path: Path) -> None:
    assert len(rows(tmp_path, "--reason", "http-429", "--set", "deliver.throttle_statuses=[503]")) == 18


def test_postponed_is_no_attempt_until_the_limit_and_a_failure_after_it(tmp_path: Path) -> None:
    shown = reconsume("explain", "-c", write_good(tmp_path), "--reason", "postponed")
    assert "postponed is not an attempt" in shown.stderr
    assert "retry.postpone_limit" in shown.stderr
    assert len(shown.stdout.splitlines()) == 18
