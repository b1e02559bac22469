"""`explain --reason`: for every class of outcome it shows what the sidecar does, since the same functions say it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.settings import write_good

LADDER = ("retry.ladder=[10s, 30s]", "retry.max_reconsume_times=2")
BY_LADDER = ["0s", "10s", "30s", "0s"]
NO_RETRY = ["0s", "0s"]
NO_ROW: list[str] = []
PULL = ("deliver.mode=pull", "deliver.url=null")
BATCH = ("deliver.batch.max_size=32",)
RULE = "retry.rules=[{{name: r, {}}}]"


def explained(tmp_path: Path, reason: str, *sets: str) -> tuple[list[str], list[str], str]:
    words = [word for change in (*LADDER, *sets) for word in ("--set", change)]
    shown = reconsume("explain", "-c", write_good(tmp_path), "--reason", reason, *words)
    assert shown.exit_code == 0, shown.stderr
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    return [row["waits"] for row in rows], [row["topic"] for row in rows], shown.stderr


@pytest.mark.parametrize(
    ("reason", "sets", "waits", "said"),
    [
        ("http-500", (), BY_LADDER, ""),
        ("http-503", (), BY_LADDER, ""),
        ("timeout", (), BY_LADDER, ""),
        ("connection-lost", (), BY_LADDER, ""),
        ("broken-answer", (), BY_LADDER, ""),
        ("unreadable-verdict", (), BY_LADDER, ""),
        ("missing-verdict", BATCH, BY_LADDER, ""),
        ("output-refused", (), BY_LADDER, ""),
        ("retry-asked", (), BY_LADDER, ""),
        ("bad-sku", (), BY_LADDER, ""),
        ("http-204", (), NO_ROW, "is not a failure"),
        ("http-429", (), NO_ROW, "is not an attempt"),
        ("http-503", ("deliver.throttle_statuses=[503]",), NO_ROW, "deliveries slow down"),
        ("no-such-host", (), NO_ROW, "an outage begins"),
        ("tls-untrusted", (), NO_ROW, "an outage begins"),
        ("cancelled", (), NO_ROW, "withdrawn"),
        ("withdrawn", (), NO_ROW, "withdrawn"),
        ("postponed", (), BY_LADDER, "retry.postpone_limit"),
        ("http-422", ("deliver.dead_letter_statuses=[422]",), NO_RETRY, "no retry is made"),
        ("http-429", ("deliver.dead_letter_statuses=[429]",), NO_RETRY, "no retry is made"),
        ("dead-letter-asked", (), NO_RETRY, "no rule is asked"),
        ("dead-letter-asked", (RULE.format("ladder: [1m]"),), NO_RETRY, "no rule is asked"),
        ("crashed-service", (), NO_RETRY, "3 deaths in a row"),
        ("bad-header", (), NO_RETRY, ""),
        ("headers-unreadable", (), NO_RETRY, ""),
        ("expired", (), NO_ROW, "retry.max_age"),
        ("unknown-topic", (), NO_ROW, "retry.unknown_topic"),
        ("by-operator", (), NO_ROW, "an operator"),
        ("http-413", (), BY_LADDER, ""),
        ("http-413", BATCH, BY_LADDER, "in halves"),
        ("connection-lost", BATCH, BY_LADDER, "in halves"),
        ("http-500", (*BATCH, "deliver.batch.on_failure=split"), BY_LADDER, "in halves"),
        ("http-422", (*PULL,), BY_LADDER, ""),
        ("nacked", (*PULL, "retry.nack_redelivery_delay=30s"), NO_ROW, "comes back after 30s; no retry is used up"),
        (
            "nacked",
            (*PULL, "retry.nack_redelivery_delay=30s", "pull.nack_max_times=2"),
            ["0s", "30s", "30s", "0s"],
            "",
        ),
        ("released", PULL, ["0s", "0s", "0s", "0s"], "waits for no ladder"),
        ("released", PULL, ["0s", "0s", "0s", "0s"], ""),
        ("lease-expired", PULL, ["0s", "0s", "0s", "0s"], "waits for no ladder"),
    ],
)
def test_each_class_of_outcome_has_the_rows_and_the_sentence_of_what_the_sidecar_does(
    tmp_path: Path, reason: str, sets: tuple[str, ...], waits: list[str], said: str
) -> None:
    found, _, notes = explained(tmp_path, reason, *sets)
    assert found == waits
    assert said in notes


def test_a_413_of_a_single_record_and_another_status_of_a_batch_are_sent_in_no_halves(tmp_path: Path) -> None:
    assert "halves" not in explained(tmp_path, "http-413")[2]
    assert "halves" not in explained(tmp_path, "http-500", *BATCH)[2]
    assert "halves" not in explained(tmp_path, "http-503", *BATCH, "deliver.batch.on_failure=split")[2]


@pytest.mark.parametrize(
    ("rule", "waits"),
    [
        ("reasons: [lease-expired], ladder: [1m]", ["0s", "1m", "1m", "0s"]),
        ("reasons: [lease-*], ladder: [1m]", ["0s", "1m", "1m", "0s"]),
        ("reasons: ['*', lease-expired], ladder: [1m]", ["0s", "1m", "1m", "0s"]),
        ("reasons: [lease-expired], max_reconsume_times: 1", ["0s", "0s", "0s"]),
        ("reasons: [lease-expired], dead_letter: true", NO_RETRY),
        ("reasons: ['*'], ladder: [1m]", ["0s", "0s", "0s", "0s"]),
        ("reasons: ['*'], dead_letter: true", ["0s", "0s", "0s", "0s"]),
        ("topics: [orders], ladder: [1m]", ["0s", "0s", "0s", "0s"]),
        ("reasons: [timeout], ladder: [1m]", ["0s", "0s", "0s", "0s"]),
    ],
)
def test_an_expired_lease_is_due_at_once_unless_a_rule_that_names_it_has_a_ladder(
    tmp_path: Path, rule: str, waits: list[str]
) -> None:
    assert explained(tmp_path, "lease-expired", *PULL, RULE.format(rule))[0] == waits


def test_what_is_due_at_once_waits_in_the_ready_topic(tmp_path: Path) -> None:
    topics = explained(tmp_path, "lease-expired", *PULL)[1]
    assert topics == ["orders", "billing-RETRY", "billing-RETRY", "billing-DLQ"]


def test_a_wait_that_is_made_of_hops_names_each_level_as_often_as_the_record_is_written_there(tmp_path: Path) -> None:
    topics = explained(tmp_path, "http-500", "retry.levels=[2s, 10s]", "retry.ladder=[10s, 25s]")[1]
    assert topics[1:3] == ["billing-RETRY-10s", "billing-RETRY-10s ×2, billing-RETRY-2s ×2, (memory)"]
    short = explained(tmp_path, "http-500", "retry.levels=[10s]", "retry.ladder=[2s]")[1]
    assert short[1] == "billing-RETRY, (memory)"
