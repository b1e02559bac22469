"""A cluster of 200 000 partitions whose every answer takes six seconds: no thread stalls, and nothing is "missing"."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from reconsume.sidecar.group_policy.follower import METADATA_WITHIN, NAMED_TOGETHER, NAMED_WITHIN
from reconsume.sidecar.kafka.committer.transaction import LOOK_LIMIT, TOPIC_LIMIT
from reconsume.sidecar.kafka.consumer.log_checks import LONGEST
from reconsume.sidecar.observability.thread_watch import FOLLOWER_LIMIT, WORK_LIMIT

MOST_MIB = 256


@pytest.fixture(scope="module")
def found() -> Any:
    command = [sys.executable, "-m", "tests.unit.kafka.large_cluster"]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout)


def test_no_turn_of_a_thread_is_so_long_that_it_counts_as_stuck(found: Any) -> None:
    """Given 170 topics of ours, of which each takes six seconds, then a look ends before all are known."""
    assert found["committer"]["longest"] <= LOOK_LIMIT + TOPIC_LIMIT < WORK_LIMIT
    assert found["follower"]["longest"] <= METADATA_WITHIN + NAMED_TOGETHER + NAMED_WITHIN < FOLLOWER_LIMIT
    assert found["consumer"]["longest"] <= LONGEST


@pytest.mark.parametrize("part", ["committer", "follower", "listed at once"])
def test_all_is_known_in_the_end_and_nothing_is_ever_missing(found: Any, part: str) -> None:
    assert found[part]["missing"] == 0
    assert found[part]["whole"] < 1_800


def test_all_topics_are_listed_once_and_take_a_bounded_part_of_the_memory(found: Any) -> None:
    assert found["lists"] <= 3, "every ten minutes"
    assert found["peak"] < MOST_MIB
