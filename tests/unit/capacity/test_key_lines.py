"""The lines of keys against sums that can be done by hand, and against lines that are played record by record."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from reconsume.sidecar.capacity.key_lines import key_lines, service_times
from reconsume.sidecar.capacity.limits import limits
from reconsume.sidecar.capacity.model import Load, put_behind, storage
from reconsume.topics.levels import Ladder
from reconsume.topics.names import Kind

LOAD = Load(
    rate=100, fails=0.02, fails_again=0.5, attempt=0.05, retries=3, ladder=Ladder((1_000, 10_000, 60_000)), delays=(),
    keys=1_000,
)  # fmt: skip


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_each_way_of_a_record_has_its_share_and_its_time(retries: int) -> None:
    ways = list(service_times(replace(LOAD, retries=retries)))
    expected = {
        0: [(0.98, 0.05), (0.02, 0.05)],
        1: [(0.98, 0.05), (0.02, 1.1)],
        3: [(0.98, 0.05), (0.01, 1.1), (0.005, 11.15), (0.005, 71.2)],
    }
    assert ways == [pytest.approx(way) for way in expected[retries]]


def test_the_next_record_of_a_failing_key_waits_until_that_one_is_done_or_dead() -> None:
    assert key_lines(LOAD, 1_000).next_s == pytest.approx(0.5 * 1.1 + 0.25 * 11.15 + 0.25 * 71.2)
    assert key_lines(replace(LOAD, fails=0.0), 1_000) == pytest.approx((0.0, 0.01256, 0.0, 0.005), rel=0.01)


def played(load: Load, keys: int, seed: int) -> float:
    """How many records wait for an earlier one of their key, on average: each key's line, record by record."""
    random, arrivals, records = Random(seed), load.rate / keys, 400_000
    shares, times = zip(*service_times(load), strict=True)
    free = at = waited = 0.0
    for seconds in random.choices(times, shares, k=records):
        at += random.expovariate(arrivals)
        waited += max(0.0, free - at)
        free = max(free, at) + seconds
    return load.rate * waited / records


def test_the_model_is_within_a_tenth_of_lines_that_are_played() -> None:
    modelled = key_lines(LOAD, 1_000).behind
    assert modelled is not None
    assert played(LOAD, 1_000, 7) == pytest.approx(modelled, rel=0.1)


def test_fewer_keys_have_longer_lines_until_one_gets_more_than_it_gets_done() -> None:
    behind = [key_lines(LOAD, keys).behind for keys in (100_000, 10_000, 1_000)]
    assert behind == sorted(behind, key=lambda one: one or 0.0)
    assert key_lines(LOAD, 10).behind is None
    used = {limit.what: limit.used for limit in limits(replace(LOAD, keys=10))}
    assert used["the time of a key"] > 1
    assert "records that wait in a partition" not in used, "they grow without end"


def test_what_is_put_behind_is_written_to_the_queue_topic() -> None:
    assert put_behind(replace(LOAD, keys=None)) == 0
    assert 0 < put_behind(LOAD) < LOAD.rate / 20
    stored = storage(LOAD)
    assert Kind.LEVEL not in stored
    assert stored[Kind.ORDERED].partitions == LOAD.partitions
    assert stored[Kind.ORDERED].writes > storage(replace(LOAD, keys=1_000_000))[Kind.ORDERED].writes
