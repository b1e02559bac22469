"""Nothing warns while all is well, so that a warning in a job's log means something."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.quiet_job import BEGIN, END
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import fresh_group
from tests.support.kafka.topic_io import produce
from tests.support.sidecar.policy import with_policy

ROOT = Path(__file__).parents[2]
BATCHES = 100


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_hundred_healthy_batches_write_no_warning(kafka: Broker, tmp_path: Path) -> None:
    group = with_policy(fresh_group(kafka.bootstrap, delays=(1_000,)))
    produce(group.bootstrap, group.main, [b"x"] * 2 * BATCHES)
    words = [group.bootstrap, group.group, group.main, str(tmp_path / "checkpoint")]
    job = subprocess.run(
        [sys.executable, "-m", "tests.spark.quiet_job", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    assert job.returncode == 0, job.stderr[-4_000:]
    _, _, after = job.stderr.partition(BEGIN)
    healthy, _, rest = after.partition(END)
    assert int(rest.split()[0]) >= BATCHES
    assert healthy.strip() == ""
