"""A hundred deaths of a service, by records that end it and by kills from outside: who pays (contract 1.10)."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.flow.conftest import FreshGroup, StartSidecar
from tests.flow.faults.test_service_deaths import Deaths, config, deaths_of, produce_deeds
from tests.support.deadline import until
from tests.support.kafka.group_topics import create_group
from tests.support.rings import inner
from tests.support.service.mortal_service import MortalService
from tests.support.sidecar.process import SidecarProcess

FIRST, THEN = 160, 24
"""Records of one round: first so many that all connections are used, then those in flight at the death. So each
worker has idle connections, as it has under a load that varies."""
ROUND = FIRST + THEN
WIDE = {"concurrency": 64}, {"concurrency": 16, "batch": {"max_size": 10}}, {"concurrency": 64, "order": "key"}
DEEDS = ("exit", "kill", "oom")


@pytest.mark.timeout(2_400)  # a hundred rounds take 8 minutes with four workers, and 15 with one
@pytest.mark.parametrize("deaths", inner(6, [6, 100]))
@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("deliver", inner(WIDE[0], WIDE), ids=["push", "batch", "by key"])
def test_under_kills_the_poisonous_are_dead_lettered_and_no_innocent_record_loses_a_retry(
    new_group: FreshGroup,
    start_sidecar: StartSidecar,
    tmp_path: Path,
    deliver: Mapping[str, Any],
    workers: int,
    deaths: int,
) -> None:
    """With one process each poisonous record is found; it is one death of ten, the others are SIGKILL from outside."""
    poison = {number * ROUND + FIRST + 3: DEEDS[number % 3] for number in range(2, deaths, 10)}
    found = under_kills(new_group, start_sidecar, tmp_path, deliver, workers, deaths, poison)
    records = set(range(deaths * ROUND))
    letters = found.dead_letters()
    print(  # noqa: T201
        f"{workers} workers: {found.counted:g} deaths, {len(letters)} dead letters of {len(poison)} poisonous records, "
        f"{found.failures:g} failures, retried {sorted(found.retried())}, {sum(found.executions.values())} executions "
        f"of {len(records)} records"
    )
    assert set(found.executions) == records
    assert found.retried() <= poison.keys()
    assert {number for number, _, _ in letters} <= poison.keys()
    if workers == 1:
        assert letters == [(number, b"crashed-service", b"0") for number in sorted(poison)]
        assert found.failures == 0


def under_kills(
    new_group: FreshGroup,
    start_sidecar: StartSidecar,
    folder: Path,
    deliver: Mapping[str, Any],
    workers: int,
    deaths: int,
    poison: Mapping[int, str],
) -> Deaths:
    """Run a group round by round; in each the service, or a worker of it, dies once at least."""
    group, chance = create_group(new_group()), random.Random(workers)
    with MortalService(folder, workers=workers, restart_after=0.05) as service:
        sidecar = start_sidecar(group, service.url, overrides=config(deliver))
        for begin in range(0, deaths * ROUND, ROUND):
            first, then = range(begin, begin + FIRST), range(begin + FIRST, begin + ROUND)
            produce_deeds(group, first, dict.fromkeys(first, "slow"))
            await_end(service, sidecar, first)
            deeds = dict.fromkeys(then, "slow") | {number: poison[number] for number in then if number in poison}
            produce_deeds(group, then, deeds)
            until(partial(have_begun, service, then, 1), 60, "the records of a death are in flight")
            if not poison.keys() & set(then):
                time.sleep(chance.uniform(0.0, 0.2))
                service.kill_one()
            await_end(service, sidecar, then)
        return deaths_of(group, sidecar, service, folder)


def have_begun(service: MortalService, numbers: Iterable[int], count: int) -> bool:
    """Whether so many of these records were begun."""
    return len(service.executions().keys() & set(numbers)) >= count


def await_end(service: MortalService, sidecar: SidecarProcess, numbers: range) -> None:
    """Wait until all of these records were begun, none is in flight, and none is suspect any more."""

    def is_over() -> bool:
        status = sidecar.status()
        is_busy = any(part["in_flight"] or part["not_delivered"] is not None for part in status["partitions"])
        return not is_busy and have_begun(service, numbers, len(numbers))

    until(is_over, 90, "a round is over")
