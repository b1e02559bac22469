"""The number in flight follows the service, on a real broker: threads, paths, batches, and a number that is fixed."""

from __future__ import annotations

import heapq
import threading
import time
from collections import Counter
from typing import Any

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.service.behaviours import Answer, Behaviour, Request
from tests.support.sidecar.policy import set_policy, with_policy

THREADS, RECORDS = 16, 603
TAKES, TIMEOUT = 0.2, "1s"
"""Seconds that a thread works on a record, and the sidecar's timeout: with 256 in flight most would time out."""


class Threads:
    """A service with so many threads. Whoever gave a request up does not free its thread."""

    def __init__(self, threads: int = THREADS, takes: float = TAKES) -> None:
        self.takes = takes
        self.executions: Counter[str] = Counter()
        self.paths: Counter[str] = Counter()
        self.first, self.last = 0.0, 0.0
        """When the first record came, and when the last one is done (monotonic seconds)."""
        self._free_at = [0.0] * threads
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Behaviour:
        with self._lock:
            now = time.monotonic()
            self.first = self.first or now
            done = max(now, heapq.heappop(self._free_at)) + self.takes
            heapq.heappush(self._free_at, done)
            self.executions[request.id] += 1
            self.paths[request.path] += 1
            self.last = done
            return Answer(after=done - now)


def auto(**deliver: Any) -> dict[str, Any]:
    """Settings with a number in flight that follows the service."""
    return {"deliver": {"concurrency": "auto", "timeout": TIMEOUT, **deliver}}


def backlog(group: GroupTopics, count: int = RECORDS) -> None:
    produce(group.bootstrap, group.mains[0], [Out(b"v", None, partition=number % 2) for number in range(count)])


def test_a_backlog_of_a_service_with_16_threads_is_executed_once_while_the_number_follows_it(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """How long it takes beside the best number is measured by `benchmarks/in_flight.py`."""
    group, threads = create_group(new_group()), Threads()
    backlog(group)
    sidecar = start_sidecar(group, start_service(threads).url, overrides=auto())
    sidecar.until(lambda: len(threads.executions) == RECORDS, 60, "all are delivered")
    shown = sidecar.status()["concurrency"]
    sidecar.stop()
    assert set(threads.executions.values()) == {1}
    assert shown["why"] in ("grows", "slower")
    assert shown["limit"] > 1
    assert shown["minimum"] >= 0.8 * TAKES * 1000


def test_a_policy_fixes_the_number_and_gives_it_back(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group, threads = with_policy(new_group()), Threads(takes=0.05)
    sidecar = start_sidecar(group, start_service(threads).url, overrides=auto())
    assert sidecar.status()["concurrency"] == {"limit": 1, "why": "begin", "response_time": None, "minimum": None}
    backlog(group, 2_000)
    sidecar.until(lambda: sidecar.status()["concurrency"]["limit"] >= THREADS, 20, "it has grown")
    assert sidecar.metric("reconsume_concurrency_limit") >= THREADS
    set_policy(group, concurrency=2)
    fixed = {"limit": 2, "why": "fixed", "response_time": None, "minimum": None}
    sidecar.until(lambda: sidecar.status()["concurrency"] == fixed, 20, "the number is fixed")
    set_policy(group, concurrency="auto")
    sidecar.until(lambda: sidecar.status()["concurrency"]["why"] != "fixed", 20, "it follows the service again")


def test_batches_follow_the_service_too(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group, threads = create_group(new_group()), Threads(threads=4, takes=0.01)
    backlog(group, 1_000)
    sidecar = start_sidecar(group, start_service(threads).url, overrides=auto(batch={"max_size": 10}, timeout="5s"))
    sidecar.until(lambda: len(threads.executions) == 1_000, 60, "all are delivered")
    sidecar.stop()
    assert set(threads.executions.values()) == {1}
