"""A refusal that lasts: a line for each place where it begins, then sums, however many transactions it aborts."""

from __future__ import annotations

import json
import random

import pytest

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import produce
from tests.support.service.behaviours import FAIL, by_name
from tests.support.sidecar.policy import CALM

ABORTS = 15
TRIES = 12
"""Transactions at most in which the producer tries smaller batches, and to pack them."""


@pytest.mark.long
def test_copies_that_kafka_refuses_for_ever_are_one_line_and_one_sum(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Given levels that take no record of this size, then no abort has a line of its own, nor two of them."""
    group = new_group()
    create_group(group, config={level: {"max.message.bytes": "300"} for level in group.levels})
    service = start_service(by_name({"bad": (FAIL,)}))
    sidecar = start_sidecar(group, service.url, overrides={**CALM, "log": {"format": "json"}})
    noise = random.Random(1)  # packed it is no smaller
    produce(group.bootstrap, group.main, [b"bad:" + noise.randbytes(600).hex().encode() for _ in range(40)])

    aborted = 'reconsume_transactions_total{result="aborted"}'
    sidecar.until(lambda: sidecar.metric(aborted) > ABORTS + TRIES, 60, "many transactions were aborted")
    assert sidecar.stop().code == 0
    lines = [json.loads(line) for line in sidecar.log().splitlines()]
    bad = [line for line in lines if line["level"] in ("warning", "error")]
    told = [line for line in bad if line["event"] == "copies-refused"]
    begins, [sum_] = [line for line in told if "kept_back" not in line], told[-1:]
    assert len(begins) <= 2, "a line for each of the level's two partitions at most"
    assert sum_["kept_back"] + len(begins) >= ABORTS
    assert sum_["about"] in (1, 2)
    assert all("-RETRY-1s[" in line["message"] and "Message size too large" in line["message"] for line in told)
    assert len(bad) <= ABORTS / 2, [line["message"] for line in bad]
