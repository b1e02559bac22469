"""One story from its seed: some sidecars, a group that moves partitions about, and whatever goes wrong meanwhile.

Time is virtual. The story ends when nothing is left to do: an idle lane asks for nothing, so the agenda runs empty.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random
from typing import NamedTuple

from msgspec.structs import replace

from sidecar.core.order import By
from sidecar.core.policy import InPlace
from sidecar.core.record import Partition
from tests.sim import samples
from tests.sim.kafka_model import KafkaModel
from tests.sim.process import Process
from tests.sim.samples import WALL
from tests.sim.service_model import ServiceModel, Weights
from topics.headers import Headers

GROUPS = ("billing", "billing-RETRY")
TABLE = (1_000, 5_000, 10_000)
INTERVAL = 700
"""ms between two tries in place, where a plan is ordered."""
LOCK = 3_000
"""ms that a revoked partition waits for its deliveries."""
LONGEST_STORY = 2 * 3_600_000
MOST_STEPS = 100_000


class Fault(NamedTuple):
    """Something that goes wrong: what, when, for how long, to which of them (any number)."""

    kind: str
    at: int
    lasts: int
    whom: int


class Plan(NamedTuple):
    """Everything that a story depends on."""

    seed: int
    records: int = 20
    sidecars: int = 1
    partitions: int = 2
    concurrency: int = 4
    room: int = 1 << 20
    retries: int = 3
    deaths: int | None = 3
    """Deaths after which a record is put into the DLQ."""
    killers: tuple[tuple[int, int], ...] = ()
    """Records, by number, that kill the process which delivers them for the n-th retry; before that they fail."""
    put_off: int = 0
    """How often each process is told to come back later before such a record fails or kills."""
    failures: int | None = None
    """Failures in a row that are an outage."""
    spread: int = 3_000
    """ms over which the records arrive."""
    weights: Weights = Weights()
    fates: tuple[int, int, int] = (1, 0, 0)
    """How likely a transaction is committed, aborted, or ends nobody knows how."""
    faults: tuple[Fault, ...] = ()
    order: By | None = None
    """What is delivered one at a time."""
    tries: int | None = None
    """Retries in place before an ordered record goes to the DLQ; None: without limit."""
    stall: int = 30
    """ms that a hand-over from the consumer's thread to the loop takes at most."""


class World:
    """Runs one plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.random = Random(plan.seed)
        self.steady = 0
        self.policy = samples.policy(ladder="pulsar", table=TABLE, retries=plan.retries, deaths=plan.deaths)
        if plan.order is not None:
            self.policy = replace(self.policy, in_place=InPlace(INTERVAL, plan.tries))
        self.kafka = KafkaModel(lambda: WALL + self.steady, plan.partitions)
        self.service = ServiceModel(self.random, plan.weights)
        self.sent: dict[str, tuple[bytes | None, bytes | None, Headers]] = {}
        """What was put on the main topic, by id, without what a main topic's record may not say."""
        self.broken: set[tuple[str, str, Partition, int]] = set()
        """Tenures that ended without order: only they explain a second delivery."""
        self.oversized: set[str] = set()
        self.killers: dict[str, int] = {}
        self.deaths: Counter[str] = Counter()
        """How often each of the killers has killed."""
        self.throttled = 0
        self.refused = False
        """Whether Kafka has ever refused anything."""
        self.stepped = 0
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._epochs = count(1)
        self._names = count()
        self.kafka.appended = self._appended
        topics = {"billing": ["orders"], "billing-RETRY": sorted(samples.waits(self.policy))}
        create = self.kafka.create
        self.places = {group: [place for name in names for place in create(name)] for group, names in topics.items()}
        for topic in ("billing-DLQ", "billing-RETRY-EVENTS"):
            self.kafka.create(topic)
        self.processes = [self._start() for _ in range(plan.sidecars)]
        self.holders: dict[tuple[str, Partition], Process | None] = {}
        """Whom the group has given each partition to; None while it is between two owners."""
        self.leaving: set[tuple[str, Partition]] = set()
        """Partitions that their holder has been asked to give up."""

    def next_epoch(self) -> int:
        return next(self._epochs)

    def later(self, ms: int, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (self.steady + ms, next(self._order), act))

    def run(self) -> World:
        """Live through the whole story."""
        for group, places in self.places.items():
            for place in places:
                self._give(group, place, self.random.choice(self.processes))
        for index in range(self.plan.records):
            self.later(self.random.randint(0, self.plan.spread), partial(self._produce, index))
        for fault in self.plan.faults:
            self.later(fault.at, partial(self._strike, fault))
        steps = 0
        while self._agenda:
            self.steady, _, act = heapq.heappop(self._agenda)
            act()
            steps += 1
            assert steps < MOST_STEPS, "the lanes never come to rest"
            assert self.steady < LONGEST_STORY, "something is still waiting after hours"
        return self

    # --- what comes in -----------------------------------------------------------------------------------------------

    def _produce(self, index: int) -> None:
        """A record with every oddity that must come through: nulls, doubles, and names that are ours."""
        choose = self.random.choice
        source = Partition("orders", self.random.randrange(self.plan.partitions))
        key, value = choose((None, b"", b"k%d" % (index % 3))), choose((None, b"", b"value %d" % index))
        own: Headers = [("a", b"1"), ("b", None), ("a", b"")] if index % 2 else []
        forged: Headers = [("RECONSUMETIMES", b"9"), ("RETRY_DUE_AT", b"9" * 15)] if index % 5 == 0 else []
        offset = self.kafka.send(source, key, value, forged + own)
        self.sent[f"orders:{source.number}:{offset}"] = (key, value, own)
        if index in dict(self.plan.killers):
            self.killers[f"orders:{source.number}:{offset}"] = dict(self.plan.killers)[index]

    def _appended(self, source: Partition) -> None:
        for process in self.processes:
            for host in process.hosts.values():
                if source in host.slots:
                    host.fetch_soon(source)

    # --- the group ---------------------------------------------------------------------------------------------------

    def _start(self) -> Process:
        return Process(self, f"billing-{next(self._names)}")

    def _give(self, group: str, place: Partition, process: Process | None = None) -> None:
        """Assign a partition to somebody who lives."""
        if self.holders.get((group, place)) is not None:
            return None
        process = process or self.random.choice([process for process in self.processes if process.alive])
        if not process.alive:
            return self._give(group, place)
        self.holders[group, place] = process
        host = process.hosts[group]
        if place in host.slots:  # it has not learned yet that it had lost it
            host.lose(place, host.slots[place])
        host.assign([place])
        return None

    def _take(self, group: str, place: Partition, after: int) -> None:
        """Leave a partition without an owner, and give it to somebody after a while."""
        self.holders[group, place] = None
        self.leaving.discard((group, place))
        self.kafka.owners.pop((group, place), None)
        self.later(after, lambda: self._give(group, place))

    def _some(self, fault: Fault) -> dict[str, list[Partition]]:
        """A part of what one process holds."""
        alive = [process for process in self.processes if process.alive]
        victim = alive[fault.whom % len(alive)]
        held = [key for key, holder in self.holders.items() if holder is victim and key not in self.leaving]
        chosen = [key for key in held if self.random.random() < 0.6]
        return {group: [place for found, place in chosen if found == group] for group in GROUPS}

    # --- what goes wrong ---------------------------------------------------------------------------------------------

    def _strike(self, fault: Fault) -> None:
        getattr(self, f"_{fault.kind}")(fault)

    def _crash(self, fault: Fault) -> None:
        alive = [process for process in self.processes if process.alive]
        self._kill(alive[fault.whom % len(alive)], fault.lasts)

    def killed_by(self, origin: str, victim: Process) -> None:
        """A record's delivery ends with the death of its process."""
        self.deaths[origin] += 1
        self._kill(victim, self.random.choice((0, 30, 3_000)))

    def _kill(self, victim: Process, lasts: int) -> None:
        for group, host in victim.hosts.items():
            self.broken |= {host.tenure(source) for source in host.slots}
            for source in host.slots:
                if self.holders.get((group, source)) is victim:
                    self._take(group, source, lasts)
        victim.alive = False
        self.processes.remove(victim)
        self.processes.append(self._start())

    def _revoke(self, fault: Fault) -> None:
        for group, places in self._some(fault).items():
            if not places:
                continue
            holder = self.holders[group, places[0]]
            assert holder is not None
            host = holder.hosts[group]
            if self.refused:  # what Kafka refuses is left to the next owner
                self.broken |= {host.tenure(place) for place in places}
            self.leaving |= {(group, place) for place in places}
            host.revoke(places, LOCK, partial(self._taken, group, places, fault.lasts % 500))

    def _taken(self, group: str, places: list[Partition], after: int) -> None:
        for place in places:
            self._take(group, place, after)

    def _lose(self, fault: Fault) -> None:
        for group, places in self._some(fault).items():
            for place in places:
                holder = self.holders[group, place]
                assert holder is not None
                host = holder.hosts[group]
                self.broken.add(host.tenure(place))
                self._take(group, place, fault.lasts)
                holder.later(fault.lasts // 2, partial(host.lose, place, host.slots[place]))

    def _step(self, fault: Fault) -> None:
        process = self.processes[fault.whom % len(self.processes)]
        by = self.random.choice((-4_000, -300, 250, 6_000))
        process.skew += by
        self.stepped += abs(by)

    def _outage(self, fault: Fault) -> None:
        self.service.away = True
        self.later(fault.lasts, partial(setattr, self.service, "away", False))

    def _failing(self, fault: Fault) -> None:
        self.service.failing = True
        self.later(fault.lasts, partial(setattr, self.service, "failing", False))

    def _refuse(self, fault: Fault) -> None:
        topic = self.random.choice(("billing-DLQ", "billing-RETRY-1s", "billing-RETRY-5s", "billing-RETRY-EVENTS"))
        self._refuses()
        self.kafka.refusing.add(topic)
        self.later(fault.lasts, partial(self.kafka.refusing.discard, topic))

    def _oversize(self, fault: Fault) -> None:
        self._refuses()
        self.oversized |= set(sorted(self.sent)[fault.whom % 3 :: 3])
        self.later(fault.lasts, self.oversized.clear)

    def _refuses(self) -> None:
        self.refused = True
        for group, place in self.leaving:
            holder = self.holders[group, place]
            if holder is not None and place in holder.hosts[group].slots:
                self.broken.add(holder.hosts[group].tenure(place))
