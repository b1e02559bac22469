"""A run in which the service was away or asked for time: what it cost, and how many were with the service at once."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

from reconsume.sidecar.core.pace.topic_turns import RESERVE
from tests.support.kafka.group_topics import GroupTopics
from tests.support.kafka.topic_io import produce
from tests.support.proof.checker import Report, check
from tests.support.proof.evidence import Evidence, collect
from tests.support.proof.ledger import Delivery
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import Answer, Behaviour, Request
from tests.support.service.service import Service
from tests.support.sidecar.process import SidecarProcess

FULL = 32
"""Deliveries in flight at full pace."""
ALONE = FULL - FULL // RESERVE
"""What one topic takes of them: it leaves a way for others (contract 8.8)."""
LOAD = 2_000
TAKES = 0.02
"""Seconds that the service takes for a record, so that what is in flight can be seen."""


class Run(NamedTuple):
    """One sidecar's work, and what it said of it."""

    evidence: Evidence
    report: Report
    log: str
    back: int
    """When all was well again, epoch ms."""

    @property
    def spent(self) -> int:
        """Retries in Kafka."""
        return sum(len(rows) for rows in self.evidence.retries.values())

    def since(self) -> list[Delivery]:
        """What was delivered when all was well again."""
        return [delivery for delivery in self.evidence.deliveries if delivery.received >= self.back]

    def events(self) -> list[str]:
        """The pace's log lines, by name."""
        words = [word.rstrip(":") for line in self.log.splitlines() for word in line.split()[2:3]]
        return [word for word in words if word.startswith("pace-")]


def crowd(deliveries: Iterable[Delivery]) -> list[tuple[int, int]]:
    """At the arrival of each delivery: how many are with the service, it included, and how many were answered."""
    found, ends = [], []
    for delivery in sorted(deliveries, key=lambda one: one.received):
        ended = sum(end <= delivery.received for end in ends)
        ends.append(delivery.answered or 2**63)
        found.append((len(ends) - ended, ended))
    return found


def own_partitions(sidecar: SidecarProcess) -> None:
    """Wait until both lanes own partitions: before, the topic of one is alone, and takes all places."""
    sidecar.until(lambda: len({one["lane"] for one in sidecar.status()["partitions"]}) == 2, 15, "both lanes own")


def wall() -> int:
    """Now, epoch ms."""
    return time.time_ns() // 1_000_000


def slowly(_request: Request) -> Behaviour:
    """A script that takes everything."""
    return Answer(after=TAKES)


def values(name: str, count: int) -> list[bytes]:
    """Values for `by_name`."""
    return [b"%s:%d" % (name.encode(), number) for number in range(count)]


def warm_up(group: GroupTopics, service: Service, sidecar: SidecarProcess, count: int) -> frozenset[str]:
    """Have `count` records taken and committed, after which as many may be out at once: a start is a slow start. Their
    ids."""
    produce(group.bootstrap, group.main, values("warm", count))
    sidecar.until(lambda: len(service.ledger.taken()) == count, 20, "the slow start is over")
    await_quiet(group, 20)
    return frozenset(service.ledger.taken())


def finish(group: GroupTopics, service: Service, sidecar: SidecarProcess, back: int) -> Run:
    """Stop the sidecar and check all that is left behind."""
    assert sidecar.stop().code == 0
    log = sidecar.log()  # its end has the last change of the pace, which may come within 30 s of the one before
    evidence = collect(group, service.ledger)
    return Run(evidence, check(evidence), log, back)


def pace_is(sidecar: SidecarProcess, *states: str) -> None:
    """Wait until `/status` shows one of these."""
    sidecar.until(lambda: sidecar.status()["pace"] in states, 15, f"the pace is one of {states}")
