"""How long a log that ends before a record may still grow (KIP-207)."""

from __future__ import annotations

from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.committer.hidden_headers import SURE_AFTER_S, ShortLogs

HERE, OTHER = Partition("orders", 0), Partition("orders", 1)
STEP_S = 8.0
"""Seconds between two looks at a partition that is refused, at most: the pause, and the look."""


def seconds_until_sure(logs: ShortLogs, begin: float) -> float:
    now = begin
    while logs.may_grow(HERE, now):
        now += STEP_S
    return now - begin


def test_a_record_is_gone_once_its_log_was_short_for_long() -> None:
    logs = ShortLogs(SURE_AFTER_S)
    assert SURE_AFTER_S <= seconds_until_sure(logs, 100.0) < SURE_AFTER_S + STEP_S
    assert logs.may_grow(OTHER, 200.0), "each by itself"


def test_a_log_that_has_reached_the_record_meanwhile_is_waited_for_anew() -> None:
    logs = ShortLogs(SURE_AFTER_S)
    assert logs.may_grow(HERE, 100.0)
    logs.reach(HERE)
    assert seconds_until_sure(logs, 150.0) >= SURE_AFTER_S


def test_a_log_at_which_nobody_has_looked_meanwhile_is_waited_for_anew() -> None:
    """The partition was revoked while its leader was behind; hours later the same happens to another leader."""
    logs = ShortLogs(SURE_AFTER_S)
    assert logs.may_grow(HERE, 100.0)
    assert seconds_until_sure(logs, 9_000.0) >= SURE_AFTER_S
