"""The topics that `dev broker` is to create: how they are written."""

from __future__ import annotations

import pytest

from reconsume.sidecar.dev.main_topics import Wanted, parse_wanted
from tests.support.sidecar.cli import reconsume


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("orders", Wanted("orders", 1)), ("orders:3", Wanted("orders", 3)), ("a.b_c-D:1000", Wanted("a.b_c-D", 1_000))],
)
def test_a_topic_is_a_name_and_its_partitions(text: str, wanted: Wanted) -> None:
    assert parse_wanted(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":3",
        "or ders",
        "orders:",
        "orders:0",
        "orders:-1",
        "orders:x",
        "orders:1001",
        "orders:٣",
        "a:b:3",
        "x" * 250,
    ],
)
def test_what_is_none_is_refused_before_kafka_starts(text: str) -> None:
    shown = reconsume("dev", "broker", "--topic", text)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "--topic" in shown.stderr
