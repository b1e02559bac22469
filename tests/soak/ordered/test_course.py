"""A short course: 2 000 keys at 500 records a second, a tenth failing for a while, six kills and two roll-outs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from tests.soak.ordered.course import Course, Result, run

SECONDS, FAILS_FOR = 120.0, 40.0
NOISE_MS = 2_000
"""What a busy machine adds to the one run and not to the other."""

pytestmark = [pytest.mark.long, pytest.mark.three, pytest.mark.timeout(1_200)]


def test_keys_that_fail_keep_their_order_over_kills_and_roll_outs_and_delay_no_other(
    three_nodes: EmbeddedKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results: list[Result] = []
    for fails_for in (0.0, FAILS_FOR):
        folder = tmp_path / f"fails-for-{fails_for:.0f}"
        folder.mkdir()
        results.append(run(Course(SECONDS, fails_for), three_nodes, folder))
    with capsys.disabled():
        sys.stdout.write("".join(f"\n  {one.figures}; late p50, p99 {one.late_ms} ms" for one in results))
    calm, failing = results
    assert (*calm.violations, *failing.violations) == ()
    assert failing.late_ms[1] <= 2 * calm.late_ms[1] + NOISE_MS
