"""A real sidecar under load that loses packets while its transactions end: the checker judges what is left behind.

Every other incident is an abort: the group gets a new generation while the offsets of a transaction are under way.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer

from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from tests.packet_loss.late_frames import ENDLESS, LateFrames
from tests.support.deadline import until
from tests.support.kafka.broker import UNFENCED
from tests.support.kafka.group_topics import create_group, fresh_group
from tests.support.kafka.proxy import KafkaProxy
from tests.support.kafka.proxy_rules import Api, Gate, Moment, Rule
from tests.support.kafka.topic_io import create_topic
from tests.support.proof.checker import ViolationError, check
from tests.support.proof.evidence import collect
from tests.support.proof.load import Load, uneven
from tests.support.proof.quiet import await_quiet
from tests.support.service.service import Service
from tests.support.sidecar.process import SidecarProcess

RATE = 150
"""Records a second."""
SOON = 60.0
WORKS = 100
"""Deliveries after which a sidecar is taken to work again."""
CONFIG: Mapping[str, Any] = {"deliver": {"concurrency": 32}, "retry": {"ladder": ["1s"], "max_deaths": 1000}}
KINDS = ("abort", "commit", "abort", "offsets")
"""What of a transaction is lost: the end of an aborted one, of a committed one, or its offsets."""


class Incidents(NamedTuple):
    """What a run came to."""

    incidents: int
    aborted: int
    """Transactions that the sidecar's log says were aborted."""
    violations: list[str]
    figures: str
    late: LateFrames

    @property
    def sound(self) -> bool:
        """Whether the checker found nothing."""
        return not self.violations

    def __str__(self) -> str:
        return (
            f"{self.incidents} losses under a sidecar, {self.aborted} transactions aborted: {len(self.violations)} "
            f"violations {self.violations[:3]}; {self.figures}; {self.late}"
        )


class Guest:
    """A member of a lane's group that wants none of its topics: it comes and goes, and generations change."""

    def __init__(self, bootstrap: str, lane: str, topic: str) -> None:
        self._config = {
            "bootstrap.servers": bootstrap,
            "group.id": lane,
            "partition.assignment.strategy": "cooperative-sticky",
            "log_level": 2,
        }
        self._topic = topic
        self._left = threading.Event()
        self._polling: threading.Thread | None = None

    def come_or_go(self) -> None:
        """Begin a new generation; returns before the others know of it."""
        if self._polling is not None:
            self.leave()
            return
        self._left.clear()
        self._polling = threading.Thread(target=self._poll, name="guest", daemon=True)
        self._polling.start()

    def leave(self) -> None:
        """Leave the group, if a member."""
        self._left.set()
        if self._polling is not None:
            self._polling.join()
            self._polling = None

    def _poll(self) -> None:
        consumer = Consumer(self._config)
        consumer.subscribe([self._topic])
        while not self._left.is_set():
            consumer.poll(0.1)
        consumer.close()


class Lossy:
    """A sidecar behind a proxy, and the incidents that happen to it."""

    def __init__(self, kafka: EmbeddedKafka, proxy: KafkaProxy, folder: Path, stack: ExitStack) -> None:
        self.proxy, self.late = proxy, LateFrames([proxy])
        self.group = create_group(fresh_group(kafka.bootstrap))
        self.service = stack.enter_context(Service(folder / "ledger.jsonl", uneven))
        config = {**CONFIG, "kafka": {"bootstrap.servers": proxy.address}}
        self.sidecar = stack.enter_context(SidecarProcess(self.group, self.service.url, folder, overrides=config))
        self.load = stack.enter_context(Load(self.group, RATE))
        aside = f"aside-{uuid.uuid4().hex[:8]}"
        create_topic(kafka.bootstrap, aside)
        self.guests = {lane: Guest(kafka.bootstrap, lane, aside) for lane in self.lanes}
        for guest in self.guests.values():
            stack.callback(guest.leave)
        self._delivers()

    @property
    def lanes(self) -> tuple[str, str]:
        """The consumer groups of both lanes."""
        return self.group.group, self.group.names.retry_group

    def incident(self, number: int, seconds: float) -> None:
        """Lose packets for so long, from the moment at which a transaction of a lane is about to end."""
        lane, kind = self.lanes[number // len(KINDS) % 2], KINDS[number % len(KINDS)]
        client = f"-{lane}-{self.sidecar.pod}"
        last = Api.ADD_OFFSETS_TO_TXN if kind == "offsets" else Api.TXN_OFFSET_COMMIT
        # Each of them: of one that is late from the loss before, no answer comes through.
        answered = self.proxy.add(Rule(last, client, Moment.ANSWERED, times=ENDLESS, gate=Gate()))
        if kind == "abort":
            self._overtake(self.guests[lane], client)
        until(answered.fired.is_set, SOON, f"a transaction of {lane} is about to end")
        with self.proxy.packets_lost():
            self.proxy.remove(answered)
            threading.Event().wait(seconds)
        self._delivers()

    def _overtake(self, guest: Guest, client: str) -> None:
        """Have a new generation begin while the offsets of a transaction are on their way to the broker."""
        held = self.proxy.add(Rule(Api.TXN_OFFSET_COMMIT, client, Moment.ARRIVED, times=ENDLESS, gate=Gate()))
        until(held.fired.is_set, SOON, "offsets are on their way")
        joined = self.proxy.add(Rule(Api.JOIN_GROUP, client, Moment.DONE, times=ENDLESS))
        guest.come_or_go()
        until(joined.fired.is_set, SOON, "the sidecar is of a new generation")
        self.proxy.remove(joined)
        self.proxy.remove(held)

    def _delivers(self) -> None:
        ledger = self.service.ledger
        before = len(ledger.deliveries())
        until(lambda: len(ledger.deliveries()) >= before + WORKS, SOON, f"{WORKS} records are delivered")

    def judged(self, incidents: int) -> Incidents:
        """Wait until nothing is left to do, stop the sidecar, and have all checked that is left behind."""
        self.load.end()
        for guest in self.guests.values():
            guest.leave()
        await_quiet(self.group, SOON)
        aborted = round(self.sidecar.metric('reconsume_transactions_total{result="aborted"}'))
        self.sidecar.stop()
        violations, figures = list[str](), ""
        try:
            figures = str(check(collect(self.group, self.service.ledger)))
        except ViolationError as wrong:
            violations = wrong.found
        return Incidents(incidents, aborted, violations, figures, self.late)


def sidecar_under_loss(release: str, incidents: int, seed: int, folder: Path) -> Incidents:
    """So many losses under one sidecar with the defaults of its client."""
    chance = random.Random(seed)
    with ExitStack() as stack:
        proxy = stack.enter_context(KafkaProxy())
        kafka = stack.enter_context(
            EmbeddedKafka.start(
                release=release, advertised=lambda _node: proxy.address, properties=UNFENCED, seconds=240
            )
        )
        proxy.target(kafka.node(0).plan.proxied_port)
        lossy = Lossy(kafka, proxy, folder, stack)
        for number in range(incidents):
            lossy.incident(number, chance.uniform(2.5, 8.0))
        return lossy.judged(incidents)
