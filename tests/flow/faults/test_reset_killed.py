"""Positions are reset while owners are killed: each range is delivered in its new cycle, and nothing of an older one.

SOAK_KILLS makes it longer (50 take some minutes), SOAK_SEED repeats a run.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from reconsume.topics.names import Kind
from reconsume.topics.partition import Partition
from reconsume.topics.position_ranges import RESET, ResetNote, ResetRange, read_resets
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.proof.ledger import TOOK, Delivery
from tests.support.proof.load import uneven
from tests.support.proof.quiet import await_quiet
from tests.support.service.service import Service
from tests.support.sidecar.cli import for_group
from tests.support.sidecar.process import SidecarProcess
from tests.support.sidecar.scene import CONFIG, KAFKA, SOON

pytestmark = pytest.mark.long

PODS, PARTITIONS, RECORDS = ("pod-0", "pod-1"), 3, 600
KILLS = int(os.environ.get("SOAK_KILLS", "4"))
ROUND = 20.0
"""Seconds that a reset and a kill take at most on a loaded machine."""
QUIET_WITHIN = 60.0
ON_ITS_WAY_MS = 100
"""ms from a request's send to its receipt by the service."""


class Moved(NamedTuple):
    """A range that an owner has noted. `at`: when it wrote that (epoch ms)."""

    partition: Partition
    range: ResetRange
    at: int

    def has(self, ident: str) -> bool:
        """Whether a record is in the range."""
        topic, number, offset = ident.split(":")
        is_there = self.partition == (topic, int(number))
        return is_there and self.range.start <= int(offset) < self.range.end


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.timeout(KILLS * ROUND + 600)
def test_each_range_is_delivered_in_its_new_cycle_however_often_owners_are_killed(
    kafka: Broker, stack: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("SOAK_SEED", time.time_ns() % 1_000_000))
    chance = random.Random(seed)
    group = create_group(fresh_group(kafka.bootstrap), partitions=PARTITIONS, also=(Kind.POLICY,))
    service = stack.enter_context(Service(tmp_path / "ledger.jsonl", uneven))
    config = {**CONFIG, "kafka": KAFKA, "retry": {"ladder": ["5s"], "max_deaths": 1000}}
    produce(
        kafka.bootstrap, group.main, [Out(b"%d" % number, partition=number % PARTITIONS) for number in range(RECORDS)]
    )
    sidecars = [
        stack.enter_context(SidecarProcess(group, service.url, tmp_path, pod=pod, overrides=config)) for pod in PODS
    ]
    until(lambda: len(service.ledger.deliveries()) > RECORDS // 2, SOON, "the sidecars deliver")
    for _ in range(KILLS):
        killer = threading.Thread(target=kill_and_start, args=(chance.choice(sidecars), chance.uniform(0.0, 4.0)))
        killer.start()
        done = for_group(tmp_path, group, "reset", "--topic", group.main, *any_target(chance), "--yes")
        assert done.exit_code == 0, (seed, done.output)
        killer.join()
    await_quiet(group, QUIET_WITHIN)
    for sidecar in sidecars:
        assert sidecar.running
        sidecar.stop()
    moved, deliveries = noted_in(group), service.ledger.deliveries()
    prove(group, moved, deliveries)
    audited = for_group(tmp_path, group, "audit")
    assert audited.exit_code == 0, audited.output
    with capsys.disabled():
        again = sum(1 for one in deliveries if cycle_of(one))
        print(f"\n  seed {seed}, {KILLS} kills, {len(moved)} moves, {again} deliveries in new cycles", end=" ")  # noqa: T201


def any_target(chance: random.Random) -> tuple[str, ...]:
    """Every partition to its beginning, or one to an offset in the first quarter, which was delivered before."""
    if chance.random() < 0.3:
        return ("--to", "earliest")
    offset, number = chance.randrange(RECORDS // PARTITIONS // 4), chance.randrange(PARTITIONS)
    return ("--to", str(offset), "--partition", str(number))


def kill_and_start(victim: SidecarProcess, after: float) -> None:
    """Kill a sidecar some seconds from now, and start it again."""
    time.sleep(after)
    victim.kill()
    victim.start()


def noted_in(group: GroupTopics) -> list[Moved]:
    """The ranges that owners have noted, in their order."""
    moved, known = list[Moved](), dict[Partition, int]()
    for row in dump(group.bootstrap, group.names.policy):
        if row.partition == 1 and (row.key or b"").startswith(RESET):
            note = read_resets(row.key or b"", row.value)
            assert isinstance(note, ResetNote), note
            assert note.resets is not None
            if note.resets.ranges and note.resets.cycle > known.get(note.partition, 0):
                moved.append(Moved(note.partition, note.resets.ranges[-1], row.timestamp))
            assert note.resets.cycle == known.get(note.partition, 0) + 1, "each reset is carried out once"
            known[note.partition] = note.resets.cycle
    return moved


def cycle_of(delivery: Delivery) -> int:
    """The cycle that a request names."""
    return int(dict(delivery.headers).get("reconsume-cycle", "0"))


def prove(group: GroupTopics, moved: Sequence[Moved], deliveries: Sequence[Delivery]) -> None:
    """Every record of a range was delivered to its end in the last cycle, and nothing older once it was moved."""
    by_id = defaultdict[str, list[Delivery]](list)
    for delivery in deliveries:
        by_id[delivery.id].append(delivery)
    dead = {
        (headers["ORIGIN_MESSAGE_ID"].decode(), int(headers.get("RETRY_CYCLE", b"0")))
        for row in dump(group.bootstrap, group.dlq)
        for headers in [{name: value or b"" for name, value in row.headers}]
    }
    assert len(by_id) == RECORDS
    for ident, own in by_id.items():
        ranges = [one for one in moved if one.has(ident)]
        last = max((one.range.cycle for one in ranges), default=0)
        taken = any(one.means == TOOK for one in own if cycle_of(one) == last)
        assert taken or (ident, last) in dead, f"{ident} was not delivered to its end in cycle {last}"
        cycles = {cycle_of(one) for one in own}
        assert cycles <= {0, *(one.range.cycle for one in ranges)}, f"{ident} was delivered in {cycles}"
        for one in ranges:
            late = [d for d in own if cycle_of(d) < one.range.cycle and d.received > one.at + ON_ITS_WAY_MS]
            assert not late, f"{ident} was delivered in cycle {cycle_of(late[0])} after it was moved to {one.range}"
