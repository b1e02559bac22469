"""Two sidecars of one group, killed and started in turn under load: the survivor takes over, and all adds up.

SOAK_SECONDS makes it longer, SOAK_SEED repeats a run.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import create_group, fresh_group
from tests.support.proof.checker import check
from tests.support.proof.evidence import collect
from tests.support.proof.load import Load, uneven
from tests.support.proof.quiet import await_quiet
from tests.support.service.service import Service
from tests.support.sidecar.process import SidecarProcess
from tests.support.sidecar.scene import CONFIG, KAFKA, RATE, SOON

pytestmark = pytest.mark.long

PODS = ("pod-0", "pod-1")
SECONDS = float(os.environ.get("SOAK_SECONDS", "25"))
LIVES, LEAVES_DEAD = (1.0, 5.0), (0.1, 4.0)
"""Seconds from a start to the next kill, and from a kill to the start: shorter and longer than a rebalance takes."""
QUIET_WITHIN = 30.0


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.timeout(SECONDS + 600)
def test_of_two_sidecars_killed_in_turn_the_survivor_goes_on_and_nothing_is_lost(
    kafka: Broker, stack: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever is killed, at whatever moment; both at once is a case of the other tests."""
    seed = int(os.environ.get("SOAK_SEED", time.time_ns() % 1_000_000))
    chance = random.Random(seed)
    group = create_group(fresh_group(kafka.bootstrap), partitions=4)
    service = stack.enter_context(Service(tmp_path / "ledger.jsonl", uneven))
    config = {**CONFIG, "kafka": KAFKA | {"bootstrap.servers": kafka.bootstrap}}
    sidecars = [
        stack.enter_context(SidecarProcess(group, service.url, tmp_path, pod=pod, overrides=config)) for pod in PODS
    ]
    load = stack.enter_context(Load(group, RATE))

    def delivers() -> None:
        before = len(service.ledger.deliveries())
        until(lambda: len(service.ledger.deliveries()) > before + 100, SOON, f"somebody delivers (seed {seed})")

    delivers()
    kills, end = 0, time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(chance.uniform(*LIVES))
        victim = chance.choice(sidecars)
        victim.kill()
        kills += 1
        time.sleep(chance.uniform(*LEAVES_DEAD))
        delivers()
        victim.start()
    load.end()
    await_quiet(group, QUIET_WITHIN)
    assert all(sidecar.running for sidecar in sidecars)
    for sidecar in sidecars:
        sidecar.stop()
    report = check(collect(group, service.ledger))
    with capsys.disabled():
        print(f"\n  seed {seed}, {kills} kills: {report}", end=" ")  # noqa: T201 - the numbers are what it is for
    assert report.committed + report.dead_lettered == load.sent
