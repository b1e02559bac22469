"""A part of `python -m tests.packet_loss`: without a guard each of these finds several transactions ended too early."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.packet_loss.committers import committers_under_loss
from tests.packet_loss.sidecars import sidecar_under_loss
from tests.support.kafka.broker import RELEASE
from tests.support.kafka.packet_loss import AVAILABLE

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not AVAILABLE, reason="packets are lost by a socket filter of Linux"),
]

ROUNDS, INCIDENTS, SEED = 5, 10, 1


def test_of_transactions_whose_ends_are_lost_each_record_is_there_once() -> None:
    ends = committers_under_loss(os.environ[RELEASE], ROUNDS, SEED)
    assert ends.sound, str(ends)
    assert sum(ends.late.late.values()) > 0, "no request came late: the test shows nothing"


def test_a_sidecar_that_loses_packets_for_seconds_loses_no_record_and_counts_none_twice(tmp_path: Path) -> None:
    incidents = sidecar_under_loss(os.environ[RELEASE], INCIDENTS, SEED, tmp_path)
    assert incidents.sound, str(incidents)
    assert incidents.aborted >= INCIDENTS // 3
