"""A stop in the midst of a rebalance, as when two pods of a group end together: what is answered is still committed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.kafka.broker import group_protocol
from tests.support.kafka.group_topics import create_group, fresh_group
from tests.support.kafka.proxy_rules import Api, Moment, Rule
from tests.support.kafka.topic_io import Out, produce
from tests.support.proof.checker import check
from tests.support.proof.evidence import collect
from tests.support.service.behaviours import OK, Answer, Behaviour, Request
from tests.support.service.service import Service
from tests.support.sidecar.owned import owned
from tests.support.sidecar.process import SidecarProcess
from tests.support.sidecar.scene import Proxied

PARTITIONS, HALF = 6, 3
SOON = 30.0
LATER = 2.0
"""Seconds from the signal to the answer of JoinGroup: other members were asked meanwhile."""


class TwoPods:
    """Two sidecars that share a group. The service holds back what the second delivers, until it is let go."""

    def __init__(self, proxied: Proxied, folder: Path, stack: ExitStack) -> None:
        self.proxy = proxied.proxy
        self.group = create_group(fresh_group(proxied.kafka.bootstrap), PARTITIONS)
        self.let_go = threading.Event()
        self.service = stack.enter_context(Service(folder / "ledger.jsonl", self._script))
        self._folder = folder
        self.first, self.second = (stack.enter_context(self._sidecar(pod)) for pod in ("pod-0", "pod-1"))
        for sidecar in (self.first, self.second):
            sidecar.wait_ready()
        self.first.until(lambda: len(owned(self.first)) == len(owned(self.second)) == HALF, SOON, "each has half")

    def _script(self, request: Request) -> Behaviour:
        return Answer(until=self.let_go) if request.path.endswith("pod-1") else OK

    def _sidecar(self, pod: str) -> SidecarProcess:
        overrides = {"kafka": {"bootstrap.servers": self.proxy.address}}
        return SidecarProcess(self.group, f"{self.service.url}/{pod}", self._folder, pod=pod, overrides=overrides)

    def work(self) -> None:
        """Wait until the first has done its records and the second has some out."""
        produce(self.group.bootstrap, self.group.main, [Out(b"x", partition=n) for n in range(PARTITIONS)])
        self.first.until(lambda: len(self.service.ledger.taken()) == HALF, SOON, "the first has done its half")
        self.second.until(lambda: self.service.in_flight > 0, SOON, "the second has records out")


@pytest.fixture
def pods(cleared: Proxied, tmp_path: Path) -> Iterator[TwoPods]:
    with ExitStack() as stack:
        yield TwoPods(cleared, tmp_path, stack)


@pytest.mark.long
@pytest.mark.skipif(group_protocol() != "classic", reason="by the newer protocol no member joins a generation")
def test_a_pod_that_is_told_to_stop_while_it_rejoins_the_group_commits_what_is_answered(pods: TwoPods) -> None:
    """Given a JoinGroup that is answered after the SIGTERM: Kafka takes commits of the new generation alone, and a
    client that is closing by then does not read the answer (librdkafka 2.16)."""
    pods.work()
    stop = Rule(
        Api.JOIN_GROUP,
        f"-{pods.group.group}-pod-1",
        Moment.ANSWERED,
        lambda _request: pods.second.signal(signal.SIGTERM),
        delay=LATER,
    )
    pods.proxy.add(stop)
    assert pods.first.stop().code == 0
    assert stop.fired.wait(SOON)
    pods.let_go.set()
    assert pods.second.wait().code == 0
    report = check(collect(pods.group, pods.service.ledger))
    assert (report.committed, report.duplicates) == (len(pods.service.ledger.taken()), 0), report
    assert "left=0" in pods.second.log()
