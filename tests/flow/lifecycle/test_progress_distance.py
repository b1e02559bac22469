"""One record that is never answered, in a partition that goes on: what kills of its sidecars cost."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from reconsume.sidecar.core.progress import SPAN
from reconsume.sidecar.core.record import Partition
from reconsume.topics.names import Kind
from tests.flow.conftest import FreshGroup
from tests.flow.faults.test_misplaced_progress import progress
from tests.flow.lifecycle.next_version import left_progress
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.proof.quiet import await_quiet
from tests.support.service.counted_service import CountedService
from tests.support.sidecar.config import Config
from tests.support.sidecar.process import SidecarProcess

RECORDS = int(os.environ.get("TESTS_FAR_RECORDS", "300000"))
"""Records of the partition. 1 800 000 are those of 15 minutes at 2 000 a second."""
HUNG, EVERY = 0, 1_000
"""The one that is never answered, and which part of the others fails once."""
SOME = 10
"""Copies that the level has of 150 failures at least: how far the commits are behind is up to the machine."""
CHUNK = 100_000
SLOWEST = 1_000
"""Records a second, on a machine that has much else to do."""
LONGEST, MEMORY = 400, 60
"""Characters beside the offset, and MiB that the distance may cost."""


class Pods(NamedTuple):
    """The sidecars of one group, each from its own start on."""

    group: GroupTopics
    service: CountedService
    start: Callable[[str], SidecarProcess]
    source: Partition

    def owner_first(self, *pods: SidecarProcess) -> list[SidecarProcess]:
        """The one that has the partition, then the others."""

        def owns(pod: SidecarProcess) -> bool:
            return any(row["topic"] == self.source.topic for row in pod.status()["partitions"])

        return sorted(pods, key=lambda pod: not owns(pod))


@pytest.fixture
def pods(new_group: FreshGroup, tmp_path: Path) -> Iterator[Pods]:
    with ExitStack() as stack:
        group = create_group(new_group(1, (1_000,)), partitions=1, also=(Kind.POLICY,))
        service = stack.enter_context(CountedService(RECORDS + 1, {HUNG}, EVERY))
        overrides: Config = {
            "kafka": {"bootstrap.servers": group.bootstrap, "session.timeout.ms": 6_000},
            "deliver": {"timeout": "1h", "outage_failures": None, "concurrency": 8, "batch": {"max_size": 500}},
        }

        def start(name: str) -> SidecarProcess:
            sidecar = SidecarProcess(group, service.url, tmp_path, pod=name, overrides=overrides, fresh=True)
            stack.enter_context(sidecar)
            sidecar.wait_ready()
            return sidecar

        yield Pods(group, service, start, Partition(group.main, 0))


def mib(pod: SidecarProcess) -> float:
    return float(psutil.Process(pod.pid).memory_info().rss) / (1 << 20)


def first_copies(pods: Pods) -> list[int]:
    """The number of each copy that tells of a first failure."""
    [level] = pods.group.levels
    return sorted(int(row.value or b"") for row in dump(pods.group.bootstrap, level))


def fill(pods: Pods) -> None:
    """Have the first record hang, alone in its batch, and all others behind it."""
    produce(pods.group.bootstrap, pods.group.main, [Out(b"%d" % HUNG, partition=0)])
    until(lambda: pods.service.came[HUNG] == 1, 20, "the first record is out")
    for begin in range(1, RECORDS, CHUNK):
        numbers = range(begin, min(begin + CHUNK, RECORDS))
        produce(pods.group.bootstrap, pods.group.main, [Out(b"%d" % number, partition=0) for number in numbers])


def kill_in_the_middle(pods: Pods, first: SidecarProcess, second: SidecarProcess) -> str:
    """Kill the owner once it is far; the other one goes on, and no counted attempt comes again."""
    service = pods.service
    first.until(lambda: service.highest > SPAN, SPAN / SLOWEST + 20, "it goes on beyond what a bitmap alone can say")
    memory = mib(first)
    first.until(lambda: service.highest > RECORDS // 2, RECORDS / SLOWEST, "it is in the middle")
    more = mib(first) - memory
    assert more < MEMORY
    first.kill()
    killed, counted, reached, before = time.monotonic(), first_copies(pods), service.highest, bytes(service.came)
    assert len(counted) > SOME, "the level has copies of what failed"
    second.until(lambda: service.highest > reached, 60, "the other one goes on")
    took = service.at - killed
    second.until(lambda: known(pods)[1] == RECORDS - 1, RECORDS / SLOWEST, "all others are done")
    again = [number for number in range(reached + 1) if before[number] and service.came[number] > before[number]]
    assert set(again).isdisjoint(counted)
    assert service.came.count(0) == 1, "each has come, but the one that is not produced yet"
    return f"{more:.0f} MiB more at {reached}, gone on after {took:.1f} s, {len(again)} repeated, none of them counted"


def kill_at_the_end(pods: Pods, second: SidecarProcess) -> str:
    """Kill the other one with all else done: the next one delivers the hung record, and what came meanwhile."""
    second.kill()
    before = bytes(pods.service.came)
    produce(pods.group.bootstrap, pods.group.main, [Out(b"%d" % RECORDS, partition=0)])
    pods.service.let()
    begun = time.monotonic()
    third = pods.start("pod-0")
    await_quiet(pods.group, 60)
    took = time.monotonic() - begun
    assert [n for n, (was, now) in enumerate(zip(before, pods.service.came, strict=True)) if now > was] == [
        HUNG,
        RECORDS,
    ]
    third.stop()
    assert known(pods) == (RECORDS + 1, 0)
    return f"the next one was through after {took:.1f} s"


def known(pods: Pods) -> tuple[int, int]:
    """The committed offset, and how many are done above it."""
    found = progress(pods.group, pods.group.group, pods.source)
    return found.next, len(found.done)


@pytest.mark.long
def test_a_partition_goes_on_far_beyond_a_hung_record_and_kills_repeat_no_counted_attempt(
    pods: Pods, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given a record that hangs and each thousandth that fails, when the owner is killed in the middle, then the other
    instance goes on within seconds, and no failure is counted twice. When that one is killed too, with all else done,
    then the next one delivers the hung record alone."""
    both = [pods.start("pod-0"), pods.start("pod-1")]
    fill(pods)
    first, second = pods.owner_first(*both)
    middle = kill_in_the_middle(pods, first, second)
    text = left_progress(pods.group.bootstrap, pods.group.group, pods.source.topic)
    assert known(pods) == (HUNG, RECORDS - 1)
    assert len(text) < LONGEST
    until(lambda: len(first_copies(pods)) >= (RECORDS - 1) // EVERY, 20, "each failure has its copy")
    assert first_copies(pods) == list(range(EVERY, RECORDS, EVERY)), "once"
    end = kill_at_the_end(pods, second)
    with capsys.disabled():
        print(f"\n  {RECORDS} records, {len(text)} characters: {middle}; {end}", end=" ")  # noqa: T201 - the figures
