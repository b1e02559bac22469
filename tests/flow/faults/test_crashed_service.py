"""A record that kills service and sidecar together, as a pod that runs out of memory does.

Nobody is left to count the death; the successors find the record by the marks in the progress.
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace

import pytest

from reconsume.topics import retry_headers as wire
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.proof.checker import check
from tests.support.proof.evidence import collect
from tests.support.proof.ledger import TOOK
from tests.support.proof.quiet import await_quiet
from tests.support.rings import inner
from tests.support.service.behaviours import FAIL, HANG, Answer, Behaviour, Request
from tests.support.service.service import Service
from tests.support.sidecar.process import SidecarProcess
from tests.support.sidecar.scene import KAFKA, SOON

RECORDS = 400
CULPRIT = b"order 150"
CONFIG = {"deliver": {"concurrency": 16}, "retry": {"ladder": ["1s"]}, "kafka": KAFKA}
BRIEF = Answer(after=0.005)
LATER = Answer(429, (("Retry-After", "1"),))
QUIET_WITHIN = 40.0


class Pod:
    """Service and sidecar that die together, whenever `script` says so by `die`."""

    def __init__(self, group: GroupTopics, service: Service, sidecar: SidecarProcess) -> None:
        self.group, self.service, self.sidecar = group, service, sidecar
        self._dead = threading.Event()

    def die(self) -> Behaviour:
        """SIGKILL: called by the service, on its thread, for a request that is never answered."""
        os.kill(self.sidecar.pid, signal.SIGKILL)
        self._dead.set()
        return HANG

    def succeed(self) -> None:
        """Wait for the death, and start service and sidecar anew."""
        assert self._dead.wait(SOON), "nothing kills the pod"
        self._dead.clear()
        self.service.down()
        until(lambda: not self.sidecar.running, SOON, "the sidecar is dead")
        self.service.up()
        self.sidecar.start()

    def reasons(self) -> list[tuple[bytes | None, bytes | None, bytes | None]]:
        """Of each dead letter the value, the class of its reason, and how often it was retried."""
        rows = collect(self.group, self.service.ledger).dlq
        found = [(row.value, dict(row.headers)) for row in rows]
        return [
            (value, (headers[wire.RETRY_REASON] or b"").partition(b":")[0], headers[wire.RECONSUMETIMES])
            for value, headers in found
        ]


@pytest.fixture
def pod(new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar) -> Pod:
    group = create_group(new_group())
    service = start_service(lambda _request: BRIEF)
    return Pod(group, service, start_sidecar(group, service.url, overrides=CONFIG))


def produce_orders(group: GroupTopics) -> None:
    produce(group.bootstrap, group.main, [Out(b"order %d" % number, partition=number % 2) for number in range(RECORDS)])


@pytest.mark.parametrize("times", inner(0, [0, 1]))
def test_a_record_that_kills_its_pod_is_dead_lettered_after_three_deaths_and_all_others_proceed(
    pod: Pod, times: int
) -> None:
    """Given a record that is poison at its first attempt, or at its first retry, so that the other lane has it."""

    def poisoned(request: Request) -> Behaviour:
        if request.value != CULPRIT:
            return BRIEF
        return FAIL if request.times < times else pod.die()

    pod.service.script = poisoned
    produce_orders(pod.group)
    for _ in range(3):
        pod.succeed()
    await_quiet(pod.group, QUIET_WITHIN)
    reasons = {(part["not_delivered"], part["not_fetched"]) for part in pod.sidecar.status()["partitions"]}
    assert reasons == {(None, None)}, "nothing waits any more, though its partition is still delivered with care"
    dead = f'reconsume_dead_lettered_total{{reason="crashed-service",topic="{pod.group.main}"}}'
    assert pod.sidecar.metric(dead) == 1
    assert pod.sidecar.running
    pod.sidecar.stop()
    report = check(collect(pod.group, pod.service.ledger))
    assert (report.committed, report.waiting) == (RECORDS - 1, 0)
    assert pod.reasons() == [(CULPRIT, b"crashed-service", b"%d" % times)]
    deadly = [d for d in pod.service.ledger.deliveries() if d.value == CULPRIT and d.times == times]
    assert len(deadly) == 3
    assert "owner crashed, 2 in a row" in pod.sidecar.log()
    assert "goes to the DLQ: only it was with the service" in pod.sidecar.log()


@pytest.mark.long
@pytest.mark.parametrize("first", ["429", "500, retried in place"])
def test_a_record_that_kills_its_pod_only_when_it_comes_again_is_found_all_the_same(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, first: str
) -> None:
    """Its first delivery by each pod is answered, but does not settle it: that clears nobody."""
    group, service = create_group(new_group()), start_service(lambda _request: BRIEF)
    ordered = {**CONFIG, "deliver": {"concurrency": 16, "order": "key"}, "retry": {"ordered_interval": "200ms"}}
    config, answer = (CONFIG, LATER) if first == "429" else (ordered, FAIL)
    pod = Pod(group, service, start_sidecar(group, service.url, overrides=config))
    met: set[int] = set()

    def poisoned(request: Request) -> Behaviour:
        if request.value != CULPRIT:
            return BRIEF
        if pod.sidecar.pid in met:
            return pod.die()
        met.add(pod.sidecar.pid)
        return answer

    service.script = poisoned
    produce_orders(group)
    for _ in range(3):
        pod.succeed()
    await_quiet(group, QUIET_WITHIN)
    pod.sidecar.stop()
    assert {value for value, reason, _ in pod.reasons() if reason == b"crashed-service"} == {CULPRIT}
    taken = {d.value for d in service.ledger.deliveries() if d.means == TOOK}
    assert taken == {b"order %d" % number for number in range(RECORDS)} - {CULPRIT}


@pytest.mark.long
def test_a_record_that_kills_its_pod_from_a_queue_is_found_among_others_that_wait_there(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """A tenth of the records have failed once or twice, each of a key of its own, and come from the queue with it."""
    group = create_group(replace(new_group(), delays=(), queued=True))
    service = start_service(lambda _request: BRIEF)
    ladder = {"ordered_ladder": ["1s", "2s"], "max_reconsume_times": 20}
    order = {"concurrency": 16, "order": "key", "outage_failures": None}
    config = {"deliver": order, "retry": ladder, "kafka": KAFKA}
    pod = Pod(group, service, start_sidecar(group, service.url, overrides=config))

    def poisoned(request: Request) -> Behaviour:
        if request.value == CULPRIT:
            return pod.die() if request.times else FAIL
        failing = int(request.key or b"0") % 10 == 0
        return FAIL if failing and request.times < 2 else BRIEF

    service.script = poisoned
    orders = [Out(b"order %d" % number, key=b"%d" % number, partition=number % 2) for number in range(RECORDS)]
    produce(group.bootstrap, group.main, orders)
    for _ in range(3):
        pod.succeed()
    await_quiet(group, QUIET_WITHIN)
    pod.sidecar.stop()
    assert pod.reasons() == [(CULPRIT, b"crashed-service", b"1")]
    taken = {d.value for d in service.ledger.deliveries() if d.means == TOOK}
    assert taken == {order.value for order in orders} - {CULPRIT}


@pytest.mark.long
def test_a_slow_record_that_is_out_while_its_pod_is_killed_twice_is_delivered_in_the_end(pod: Pod) -> None:
    """Two nodes lost in a row: it is the same for the successor, but not one death more is laid to it."""
    kills = iter(range(2))

    def unlucky(request: Request) -> Behaviour:
        if request.value != CULPRIT:
            return BRIEF
        return Answer(after=1.0) if next(kills, None) is None else pod.die()

    pod.service.script = unlucky
    produce_orders(pod.group)
    for _ in range(2):
        pod.succeed()
    await_quiet(pod.group, QUIET_WITHIN)
    pod.sidecar.stop()
    report = check(collect(pod.group, pod.service.ledger))
    assert (report.committed, report.dead_lettered, report.waiting) == (RECORDS, 0, 0)
