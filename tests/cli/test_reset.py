"""`reset`: what cannot be meant is refused before anything is asked of Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconsume.sidecar.group_policy.position_reset import Target, read_target
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.settings import write_good

NOW = 1_800_000_000_000
ORDERS = ("--topic", "orders")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "give --topic and --to, or --follow with the ID of a reset"),
        (ORDERS, "give --topic and --to"),
        (("--to", "earliest"), "give --topic and --to"),
        ((*ORDERS, "--to", "earliest", "--follow", "a"), "--follow moves nothing"),
        ((*ORDERS, "--to", "2026-11-30T10:00:00"), "has no zone"),
        ((*ORDERS, "--to", "yesterday"), "is no target: give earliest, latest, an offset"),
        ((*ORDERS, "--to", "2999-01-01T00:00:00Z"), "is in the future: give latest"),
        ((*ORDERS, "--to", "-5"), "is no target"),
    ],
)
def test_what_cannot_be_meant_is_wrong_usage(words: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    ended = reconsume("reset", *words, "--yes", "-c", write_good(tmp_path))
    assert (ended.exit_code, ended.stdout) == (2, ""), ended.stderr
    assert sentence in " ".join(ended.stderr.replace("│", " ").split())


def test_a_topic_of_another_group_is_refused(tmp_path: Path) -> None:
    ended = reconsume("reset", "--topic", "odrers", "--to", "earliest", "--yes", "-c", write_good(tmp_path))
    assert (ended.exit_code, ended.stdout) == (1, "")
    assert "did you mean orders?" in ended.stderr


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("earliest", Target("earliest")),
        ("latest", Target("latest")),
        ("0", Target("0", offset=0)),
        ("2h", Target("2h", at=NOW - 7_200_000)),
        ("2027-01-15T08:00:00Z", Target("2027-01-15T08:00:00Z", at=NOW)),
        ("2027-01-15T10:00:00+02:00", Target("2027-01-15T10:00:00+02:00", at=NOW)),
    ],
)
def test_a_target_is_a_word_an_offset_a_duration_back_or_a_time_with_its_zone(text: str, target: Target) -> None:
    assert read_target(text, NOW) == target
