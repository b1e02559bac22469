"""Shutdowns of pods, each a play with real processes: what the pod is at when it is deleted, and what goes wrong.

After each shutdown a second sidecar, with a service that is well, finishes the work, and the checker looks at all.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from tests.flow.lifecycle.pod import LEAST_GRACE, Deletion, Pod
from tests.support.deadline import until
from tests.support.kafka.group_topics import create_group, fresh_group
from tests.support.kafka.topic_io import open_topics, produce
from tests.support.proof.checker import Report, check
from tests.support.proof.evidence import collect
from tests.support.proof.ledger import TOOK, Delivery
from tests.support.proof.quiet import await_quiet
from tests.support.service.pod_service import ServiceProcess
from tests.support.service.service import Service
from tests.support.sidecar.process import SidecarProcess

RECORDS = 120
IN_FLIGHT = 8
"""What one topic may have out. One place more is kept for the levels (contract 8.8)."""
GRACE, DRAIN = 20.0, "8s"
"""Shorter than the defaults of 30 s and 25 s, and further apart: a loaded machine must not decide what is proven."""
SOON = 90.0
"""Seconds in which a machine that is busy with other tests does what takes two."""
LAST_ATTEMPT = {"max_reconsume_times": 0}
"""A failure that counted would be a dead letter at once."""


class Seen(NamedTuple):
    """What the pod's service saw, and then the heir's: one ledger."""

    parts: tuple[tuple[Delivery, ...], ...]

    def deliveries(self) -> tuple[Delivery, ...]:
        """All of them, in the order of their arrival."""
        return tuple(sorted((one for part in self.parts for one in part), key=lambda one: one.received))


@dataclass
class Play:
    """One shutdown under way."""

    service: ServiceProcess
    sidecar: SidecarProcess
    pod: Pod
    kafka: EmbeddedKafka | None
    notes: dict[str, Any] = field(default_factory=dict)

    def produce(self, first: int, end: int) -> None:
        """Put orders into the main topic, from number `first` to the one before `end`."""
        group = self.sidecar.group
        produce(group.bootstrap, group.main, [b"order %d" % number for number in range(first, end)])

    def busy(self) -> None:
        """Wait until all places are taken that the topic may take."""
        self.sidecar.until(lambda: self.service.unanswered() >= IN_FLIGHT, SOON, "all places are taken")

    def under_way(self) -> None:
        """Wait until all places are taken, and some work is done."""
        self.sidecar.until(lambda: len(self.service.deliveries()) > 3 * IN_FLIGHT, SOON, "some work is done")
        self.busy()

    def draining(self) -> None:
        """Wait until the drain has begun."""
        self.sidecar.until(lambda: self.sidecar.status()["state"] == "draining", SOON, "the drain has begun")


Act = Callable[[Play], Deletion]


def idle(play: Play) -> Deletion:
    """Nothing is left to do, and the hook is the command."""
    await_quiet(play.sidecar.group, SOON)
    play.pod.drain = play.pod.run_drain
    return play.pod.delete()


def busy(play: Play) -> Deletion:
    """In the middle of the work; the service finishes what it has."""
    play.under_way()
    return play.pod.delete()


def full(play: Play) -> Deletion:
    """All places are taken by what takes long, or waits for the end of the service."""
    play.busy()
    return play.pod.delete()


def once_draining(play: Play) -> Deletion:
    """As `full`, and the service is kept alive until the drain has begun: who comes first is not left to luck."""
    play.busy()
    play.pod.pre_stop = lambda _seconds: play.draining()
    return play.pod.delete()


def service_gone(play: Play) -> Deletion:
    """The service is killed, and only then the pod is deleted. What it had is all that there was: a record sent to a
    port that is being closed counts as an attempt, and no ledger would know of it."""
    play.busy()
    play.service.process.kill()
    play.service.process.wait(60)
    play.produce(IN_FLIGHT, RECORDS)
    play.sidecar.until(lambda: play.sidecar.status()["pace"] == "outage", SOON, "the outage is noticed")
    return play.pod.delete()


def kafka_down(play: Play) -> Deletion:
    """Kafka stands still first; what the service answers then can be told to nobody.

    It is not killed: a broker that comes back finds its partitions without a leader, takes them for deleted, and leaves
    out the marker that ends a transaction which was about to end (4.3): the partition's readers then wait for ever.
    """
    assert play.kafka is not None
    play.under_way()
    play.kafka.node(0).pause()
    return play.pod.delete()


def impatient(play: Play) -> Deletion:
    """SIGTERM comes during the drain, again and again."""
    play.busy()

    def press() -> None:
        play.draining()
        begin = time.monotonic()
        while play.sidecar.running and time.monotonic() < begin + SOON:
            play.sidecar.signal(signal.SIGTERM)
            time.sleep(0.05)
        play.notes["ended"] = play.sidecar.process.wait(1), time.monotonic() - begin

    pressing = threading.Thread(target=press)
    pressing.start()
    deletion = play.pod.delete()
    pressing.join(SOON)
    return deletion


def too_short(play: Play) -> Deletion:
    """The service's hook takes all the time there is and a little more, and the service goes on hanging: were it killed
    first, the sidecar could use the moment that is left to end in order."""
    play.busy()
    play.pod.pre_stop = lambda seconds: time.sleep(seconds + LEAST_GRACE / 2)
    return play.pod.delete()


class Plot(NamedTuple):
    """A shutdown: what the service does with records and at SIGTERM, and what happens when."""

    act: Act
    work: str
    at_term: str
    retry: Mapping[str, Any] = {}
    grace: float = GRACE
    own_kafka: bool = False
    first: int = RECORDS
    """How many records there are from the start."""


PLOTS = {
    "idle": Plot(idle, "steady", "finish"),
    "busy": Plot(busy, "steady", "finish"),
    "slow service": Plot(full, "slow", "finish", LAST_ATTEMPT),
    "service gone first": Plot(service_gone, "hang", "cut", first=IN_FLIGHT),
    "service cuts off": Plot(once_draining, "hang", "cut", LAST_ATTEMPT),
    "service breaks": Plot(once_draining, "broken", "finish", LAST_ATTEMPT),
    "kafka down": Plot(kafka_down, "steady", "finish", own_kafka=True),
    "second sigterm": Plot(impatient, "hang", "ignore", LAST_ATTEMPT, grace=5.0),
    "grace too short": Plot(too_short, "hang", "ignore", LAST_ATTEMPT, grace=3.0),
}


class Shutdown(NamedTuple):
    """What came of one."""

    deletion: Deletion
    by_pod: tuple[Delivery, ...]
    by_heir: tuple[Delivery, ...]
    report: Report
    notes: Mapping[str, Any]

    @property
    def cut_off(self) -> int:
        """How many deliveries never got an answer."""
        return sum(delivery.answered is None for delivery in self.by_pod)

    @property
    def taken_again(self) -> set[str]:
        """What the pod's service took, and got again from the heir."""
        return {delivery.id for delivery in self.by_pod if delivery.means == TOOK} & {got.id for got in self.by_heir}


def play(plot: Plot, bootstrap: str, folder: Path) -> Shutdown:
    """Play one shutdown, and let an heir finish the work."""
    with ExitStack() as stack:
        kafka = stack.enter_context(EmbeddedKafka.start()) if plot.own_kafka else None
        group = create_group(fresh_group(bootstrap if kafka is None else kafka.bootstrap))
        service = stack.enter_context(ServiceProcess(folder / "pod.jsonl", plot.work, plot.at_term))
        overrides = {
            "deliver": {"concurrency": IN_FLIGHT + 1, "timeout": "60s"},
            "retry": plot.retry,
            "drain_timeout": DRAIN,
        }
        sidecar = stack.enter_context(SidecarProcess(group, service.url, folder, overrides=overrides))
        scene = Play(service, sidecar, Pod(service, sidecar, plot.grace), kafka)
        scene.produce(0, plot.first)
        deletion = plot.act(scene)
        if kafka is not None:
            kafka.heal()
        by_pod = service.deliveries()
        heirs = stack.enter_context(Service(folder / "heir.jsonl"))
        finish(stack.enter_context(heir_of(sidecar, heirs.url, folder / "heir", overrides, same=plot.own_kafka)))
        by_heir = heirs.ledger.deliveries()
        report = check(collect(group, Seen((by_pod, by_heir))))  # type: ignore[arg-type]
        return Shutdown(deletion, by_pod, by_heir, report, scene.notes)


def heir_of(
    sidecar: SidecarProcess, url: str, folder: Path, overrides: Mapping[str, Any], *, same: bool
) -> SidecarProcess:
    """Whoever takes the work up: another pod, or the `same` again, which ends a transaction that it left open."""
    return SidecarProcess(sidecar.group, url, folder, pod=sidecar.pod if same else "pod-1", overrides=overrides)


def finish(heir: SidecarProcess) -> None:
    """Let it do all that is left, and end."""
    heir.wait_ready(SOON)
    await_quiet(heir.group, SOON)
    ended = heir.stop(SOON)
    assert ended.code == 0, ended
    topics = (*heir.group.mains, *heir.group.retries, heir.group.dlq, heir.group.names.events)
    until(lambda: not open_topics(heir.group.bootstrap, *topics), SOON, "no transaction is open")
