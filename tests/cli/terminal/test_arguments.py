"""Moments as people type them."""

from __future__ import annotations

import time

import pytest
import typer

from reconsume.sidecar.cli.terminal.arguments import ahead, before

HOUR = 3_600_000


def test_a_length_of_time_counts_back_or_ahead() -> None:
    now = time.time_ns() // 1_000_000
    assert abs(now - HOUR - before("1h", "--since")) < 60_000
    assert abs(now + HOUR - ahead("1h", "--due-before")) < 60_000


def test_a_time_is_the_same_in_every_zone() -> None:
    assert before("2026-11-21T09:00:00Z", "--since") == 1_795_251_600_000
    assert ahead("2026-11-21T10:00:00+01:00", "--due-before") == 1_795_251_600_000


@pytest.mark.parametrize("text", ["soon", "", "1x", "2026-11-21", "2026-11-21T09:00:00"])
def test_what_is_neither_names_its_option(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"^--since: .* is neither a duration like 1h nor RFC 3339$"):
        before(text, "--since")
    with pytest.raises(typer.BadParameter, match=r"^--due-before: .* is neither a duration like 10m nor RFC 3339$"):
        ahead(text, "--due-before")
