"""A crash test's stage: a broker behind the proxy, a group under load, its service, and one pod's sidecar."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from tests.support.deadline import until
from tests.support.kafka.broker import UNFENCED, embedded
from tests.support.kafka.group_topics import create_group, fresh_group
from tests.support.kafka.proxy import KafkaProxy
from tests.support.kafka.proxy_rules import Api, Moment, Request, Rule
from tests.support.proof.checker import Report, check
from tests.support.proof.evidence import collect
from tests.support.proof.load import SLOW, Load, uneven
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import Script
from tests.support.service.service import Service
from tests.support.sidecar.process import SidecarProcess

RATE = 150
"""Records a second: as much as a loaded machine can do beside the kills."""
SOON = 60.0
"""Seconds within which a sidecar delivers, whatever happened before."""
QUIET_WITHIN = 20.0
AT_RISK = 1.0 + SLOW + 0.4
"""Seconds. Progress is committed once a second: what was delivered so long before a transaction begins is in it."""
LANES = ("main", "retry")
ENDLESS = 1_000_000_000
KAFKA = {"session.timeout.ms": 2_000}
"""The dead member is missed after 2 s, not 8: until then its partitions have no owner."""
UNKNOWN = "a transaction's end is unknown"
"""What the sidecar's log says when only Kafka can tell whether a transaction happened."""
CONFIG: Mapping[str, Any] = {"deliver": {"concurrency": 32}, "retry": {"ladder": ["1s"], "max_deaths": 1000}}
"""Deaths are the rule here: after two in a row suspects would go one by one, which test_crashed_service.py looks at."""


class Proxied(NamedTuple):
    """A broker, and the proxy through which sidecars reach it."""

    kafka: EmbeddedKafka
    proxy: KafkaProxy


@contextmanager
def proxied_kafka() -> Iterator[Proxied]:
    """A single node behind a proxy."""
    with KafkaProxy() as proxy, embedded(advertised=lambda _node: proxy.address, properties=UNFENCED) as kafka:
        proxy.target(kafka.node(0).plan.proxied_port)
        yield Proxied(kafka, proxy)


class Scene:
    """Begin it, let things happen, `verify` at the end. The sidecar alone goes through the proxy.

    `deliver`: more of that section.
    """

    def __init__(
        self, proxied: Proxied, folder: Path, stack: ExitStack, deliver: Mapping[str, Any] | None = None
    ) -> None:
        self.proxy = proxied.proxy
        self.group = create_group(fresh_group(proxied.kafka.bootstrap))
        self.service = stack.enter_context(Service(folder / "ledger.jsonl", uneven))
        more = {"deliver": {**CONFIG["deliver"], **(deliver or {})}}
        config = {**CONFIG, **more, "kafka": {**KAFKA, "bootstrap.servers": proxied.proxy.address}}
        self.sidecar = SidecarProcess(self.group, self.service.url, folder, overrides=config)
        self.load = Load(self.group, RATE)
        self._ends: dict[str, deque[int]] = {}
        """By lane, when its last but one transaction ended and when its last did, epoch ms."""
        self._at_risk: list[tuple[str, int, int]] = []
        """For each kill and lane, from when to when its deliveries may be repeated, epoch ms."""
        self._stack = stack

    @property
    def script(self) -> Script:
        """What the service does with requests."""
        return self.service.script

    @script.setter
    def script(self, script: Script) -> None:
        self.service.script = script

    def begin(self) -> None:
        """Start the sidecar and the load."""
        for lane in LANES:
            ends = self._ends[lane] = deque([0, 0], maxlen=2)
            note = partial(_note, ends)
            self.proxy.add(Rule(Api.END_TXN, self.client(lane), Moment.DONE, note, times=ENDLESS))
        self._stack.enter_context(self.sidecar)
        self._stack.enter_context(self.load)

    def client(self, lane: str) -> str:
        """What the client ids of a lane contain, and those of the other do not."""
        group = self.group.group if lane == "main" else self.group.names.retry_group
        return f"-{group}-{self.sidecar.pod}"

    def transactional_id(self, lane: str) -> str:
        """The id of a lane's producer."""
        return f"{self.group.group}-{lane}-{self.sidecar.pod}"

    def kill(self, _request: Request | None = None) -> None:
        """SIGKILL, without waiting: the action of a rule."""
        os.kill(self.sidecar.pid, signal.SIGKILL)
        for lane, (begun, _) in self._ends.items():  # a transaction begins when the one before it has ended
            self._at_risk.append((lane, begun - round(AT_RISK * 1_000), _now_ms()))

    def delivers(self, more: int = 1) -> None:
        """Wait until so many more records have been delivered."""
        before = len(self.service.ledger.deliveries())
        until(lambda: len(self.service.ledger.deliveries()) >= before + more, SOON, f"{more} records are delivered")

    def asks(self, seconds: float) -> None:
        """Wait until the sidecar has said that it must ask Kafka what became of a transaction."""
        self.sidecar.wait_log(UNKNOWN, seconds)

    def asked(self, times: int) -> None:
        """Wait until Kafka has answered so often what became of a transaction. The log says it once, then sums up."""
        unknown = 'reconsume_transactions_total{result="unknown"}'
        until(lambda: self.sidecar.metric(unknown) >= times, SOON, f"it has asked Kafka {times} times")

    def succeed(self) -> None:
        """Wait for the end of the killed sidecar and start its successor, the same pod again."""
        until(lambda: not self.sidecar.running, SOON, "the sidecar is killed")
        self.sidecar.start()
        self.delivers()

    def verify(self, quiet_within: float = QUIET_WITHIN) -> Report:
        """Wait until nothing is left to do, stop the sidecar, and check all that is left behind."""
        self.load.end()
        await_quiet(self.group, quiet_within)
        assert self.sidecar.running
        self.sidecar.stop()
        report = check(collect(self.group, self.service.ledger))
        assert report.waiting == 0
        assert report.committed + report.dead_lettered == self.load.sent
        assert report.duplicates <= self._repeatable()
        return report

    def _repeatable(self) -> int:
        """How many deliveries were made so shortly before a kill that they may be repeated."""
        deliveries = [(LANES[d.times > 0], d.received) for d in self.service.ledger.deliveries()]
        return sum(
            at == lane and begin <= received <= end for at, received in deliveries for lane, begin, end in self._at_risk
        )


def _note(ends: deque[int], _request: Request) -> None:
    ends.append(_now_ms())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
