"""One story from its seed: some sidecars, groups that move partitions about, and whatever goes wrong meanwhile.

Time is virtual. The story ends when nothing is left to do: an idle lane asks for nothing, so the agenda runs empty.
"""

from __future__ import annotations

import heapq
import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from random import Random
from typing import Self

from msgspec.structs import replace

from reconsume.sidecar.core.order import OrderBy
from reconsume.sidecar.core.partition import AssignedPartition
from reconsume.sidecar.core.policy import InPlace, Policy
from reconsume.sidecar.core.record import Partition
from reconsume.topics.retry_headers import Headers
from tests.sim import samples
from tests.sim.coordinator import Coordinator
from tests.sim.decision_model import DecisionModel
from tests.sim.faults import Faults
from tests.sim.hold_model import HoldModel
from tests.sim.kafka_model import KafkaModel, Stored
from tests.sim.lane_view import CHOSEN, MakeLane, view
from tests.sim.plan import INTERVAL, Config, Plan
from tests.sim.process import LaneHost, Process
from tests.sim.reset_model import ResetModel
from tests.sim.samples import WALL
from tests.sim.service_model import ServiceModel

GROUPS = ("billing", "billing-RETRY")
LONGEST_STORY = 3 * 3_600_000
MOST_STEPS = 300_000
LOOK_FOR_LEVELS = 15_000
"""ms after which levels are found that nobody is configured with and that hold records."""
BEGINNING = 3_000
"""ms after which the start of a group that begins at the latest record is committed: what comes then is delivered."""

CHECK_EVERY = 1 if "RECONSUME_SIM_EXAMPLES" in os.environ else 20
"""Steps of a process after which its lanes are checked (`Lane.check`): all of them in `make soak-sim`."""


class World:
    """Runs one plan."""

    most_steps = MOST_STEPS
    check_every = CHECK_EVERY

    def __init__(self, plan: Plan, lane: MakeLane = CHOSEN) -> None:
        """`lane`: the class of the lanes of its processes."""
        self.plan, self.make_lane = plan, lane
        self.random = Random(plan.seed)
        self.steady_ms = 0
        self.hang = self.losses = 0
        """ms that a commit takes longer than it should; how many faults have requests sent twice."""
        self.policies = [self._policy(config) for config in plan.configs]
        self.deployed = 0
        """Which configuration a process that starts now has."""
        self.kafka = KafkaModel(lambda: WALL + plan.broker_skew + self.steady_ms, plan.partitions)
        self.service = ServiceModel(self.random, plan.weights)
        self.sent: dict[str, tuple[bytes | None, bytes | None, Headers]] = {}
        """What was put on the main topics, by id, without what a main topic's record may not say."""
        self.excused: set[str] = set()
        """Records that nobody could have saved."""
        self.broken: set[tuple[str, str, Partition, int]] = set()
        """Tenures that ended without order: only they explain a second delivery."""
        self.given_up: set[Partition] = set()
        """Partitions whose parting commit did not come through: for the next owner that is a crash."""
        self.oversized: set[str] = set()
        self.killers: dict[str, int] = {}
        self.deaths: Counter[str] = Counter()
        """How often each of the killers has killed."""
        self.throttled = 0
        self.refused = False
        """Whether Kafka has ever refused anything."""
        self.stepped = max(plan.skews) - min(plan.skews) + max(abs(plan.broker_skew - skew) for skew in plan.skews)
        """How far clocks have been apart, at most."""
        self.apart = max(plan.skews) - min(plan.skews)
        """How far the clocks of pods have been apart: what is due by one is due later by another."""
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._names = count()
        self.granted_at: dict[tuple[str, Partition], int] = {}
        """When each group first began with each partition."""
        self._widths: dict[str, int] = {}
        self.gaps: list[tuple[Partition, int, int]] = []
        """Offsets that a truncated log has used twice."""
        self.kafka.appended = self._appended
        self._create_topics()
        self.holding = HoldModel(self)
        self.deciding = DecisionModel(self)
        self.resetting = ResetModel(self)
        self.groups = {group: Coordinator(self, group) for group in GROUPS}
        self.processes: list[Process] = []
        self.faults = Faults(self)
        for _ in range(plan.sidecars):
            self.start(at_once=True)

    def _policy(self, config: Config) -> Policy:
        plan = self.plan
        policy = samples.policy(
            ladder=config.ladder,
            table=config.table,
            retries=plan.retries if config.retries is None else config.retries,
            deaths=plan.deaths,
            topics=config.topics,
            queued=plan.queued,
        )
        if plan.queued:
            policy = replace(policy, max_waiting=plan.most_waiting, parks=config.parks or plan.parks)
            in_place = InPlace(INTERVAL, plan.tries)
            return replace(policy, queued=False, drained=True, in_place=in_place) if config.in_place else policy
        return policy if plan.order is None else replace(policy, in_place=InPlace(INTERVAL, plan.tries))

    @property
    def order(self) -> OrderBy | None:
        """What its lanes deliver one at a time."""
        return self.plan.order

    @property
    def everything(self) -> Policy:
        """A policy that knows every topic and level of the story, to read what was written."""
        tables = {delay for config in self.plan.configs for delay in config.table}
        topics = dict.fromkeys(topic for config in self.plan.configs for topic in config.topics)
        return samples.policy(ladder="pulsar", table=tuple(sorted(tables)), topics=tuple(topics))

    @property
    def mains(self) -> tuple[str, ...]:
        """All main topics."""
        return self.everything.topics

    @property
    def removed(self) -> set[str]:
        """Main topics that the configuration of now does not have."""
        return set(self.mains) - set(self.policies[self.deployed].topics)

    def _create_topics(self) -> None:
        for topic in (*self.mains, *sorted(samples.waits(self.everything)), "billing-DLQ", "billing-RETRY-EVENTS"):
            self.kafka.create(topic)
        self.kafka.create(self.everything.names.policy, 2)
        for topic in self.everything.names.queues_of(self.mains) if self.plan.queued else ():
            if self.plan.queue_made_at:
                self.refused = True
                self.later(self.plan.queue_made_at, partial(self.kafka.create, topic))
            else:
                self.kafka.create(topic)

    def leftovers(self, policy: Policy) -> dict[str, int]:
        """Levels outside a policy that still hold waiting records: they are read too, as the product does it."""
        levels, own = samples.waits(self.everything), samples.waits(policy)
        return {topic: wait for topic, wait in levels.items() if topic not in own and self._waits_in(topic)}

    def _waits_in(self, topic: str) -> bool:
        return topic in self.kafka.sizes and any(
            not self.kafka.progress("billing-RETRY", place).covers(stored.offset)
            for place in self.kafka.places(topic)
            for stored in self.kafka.logs[place].records
        )

    def origin(self, place: Partition, stored: Stored) -> str:
        """The id of the record that lies somewhere."""
        if place.topic in self.mains:
            return f"{place.topic}:{place.number}:{stored.offset}"
        life, fault = samples.read(stored.headers, self.everything, stored.appended + 10**12)
        assert life is not None, fault
        return life.id

    # --- time --------------------------------------------------------------------------------------------------------

    def later(self, ms: int, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (self.steady_ms + ms, next(self._order), act))

    def run(self) -> Self:
        """Live through the whole story."""
        for index in range(self.plan.records):
            self.later(self.random.randint(0, self.plan.spread), partial(self._produce, index))
        for fault in self.plan.faults:
            self.later(fault.at, partial(self.faults.strike, fault))
        try:
            self._live()
        finally:
            for process in self.processes:
                process.end()
        return self

    def _live(self) -> None:
        steps = 0
        while self._agenda or self.deciding.decide_parked():
            self.steady_ms, _, act = heapq.heappop(self._agenda)
            act()
            steps += 1
            assert steps < self.most_steps, "the lanes never come to rest"
            assert self.steady_ms < LONGEST_STORY, "something is still waiting after hours"

    # --- what comes in -----------------------------------------------------------------------------------------------

    def _produce(self, index: int) -> None:
        """A record with every oddity that must come through: nulls, doubles, and names that are ours."""
        choose = self.random.choice
        topic = choose(self.policies[self.deployed].topics)
        source = Partition(topic, self.random.randrange(self.kafka.sizes[topic]))
        key, value = choose((None, b"", b"k%d" % (index % 3))), choose((None, b"", b"value %d" % index))
        own: Headers = [("a", b"1"), ("b", None), ("a", b"")] if index % 2 else []
        forged: Headers = [("RECONSUMETIMES", b"9"), ("RETRY_DUE_AT", b"9" * 15)] if index % 5 == 0 else []
        offset = self.kafka.send(source, key, value, forged + own)
        self.sent[f"{topic}:{source.number}:{offset}"] = (key, value, own)
        began = self.granted_at.get(("billing", source), self.steady_ms)
        if (
            self.plan.start == "latest"
            and source.number < self.first_width(topic)
            and self.steady_ms - began < BEGINNING
        ):
            self.excused.add(f"{topic}:{source.number}:{offset}")
        if index in dict(self.plan.killers):
            self.killers[f"{topic}:{source.number}:{offset}"] = dict(self.plan.killers)[index]

    def _appended(self, source: Partition) -> None:
        for host in self.hosts():
            host.queues.appended(source)
            if (toppar := host.client.toppars.get(source)) is not None and toppar.assigned:
                host.turn_soon(3)

    # --- processes ---------------------------------------------------------------------------------------------------

    def hosts(self) -> list[LaneHost]:
        """All lanes of all processes that live."""
        return [host for process in self.processes for host in process.hosts.values()]

    def start(self, *, at_once: bool = False) -> Process:
        """Another process, under the configuration of now."""
        process = Process(self, f"billing-{next(self._names)}", self.policies[self.deployed])
        self.processes.append(process)
        for group, host in process.hosts.items():
            self.groups[group].join(host, at_once=at_once)
        return process

    def granted(self, host: LaneHost, grants: Sequence[AssignedPartition]) -> None:
        """Partitions begin."""
        for grant in grants:
            self.granted_at.setdefault((host.group, grant.partition), self.steady_ms)
            self._widths.setdefault(grant.partition.topic, self.kafka.sizes[grant.partition.topic])

    def first_width(self, topic: str) -> int:
        """How many partitions a topic had when its group began to read it; later ones begin at their beginning."""
        return self._widths.get(topic, self.kafka.sizes[topic])

    def gives_up(self, host: LaneHost, places: Sequence[Partition]) -> None:
        """Partitions are about to be released; what Kafka refuses is left to the next owner."""
        if self.refused:
            self.broken |= {host.tenure(place) for place in places if place in host.assignment.owned_partitions}

    def given_away(self, host: LaneHost, places: Sequence[Partition]) -> None:
        """Partitions are another member's before they were given up: what is under way of them happens twice."""
        self.broken |= {host.tenure(place) for place in places if place in host.assignment.owned_partitions}
        self.given_up |= set(places)

    def cut(self, host: LaneHost, place: Partition, low: int) -> None:
        """A log begins at `low` now: what the lane has let go of, to read it again, is gone with it."""
        away = view(host.lane).away(place)
        for stored in self.kafka.logs[place].everything if away and place in self.kafka.logs else ():
            if stored.offset in away and stored.offset < low:
                self.excused.add(self.origin(place, stored))

    def truncated(self, host: LaneHost, place: Partition) -> None:
        """A partition's log has ended before what was read, and it is granted anew."""
        self.broken.add(host.tenure(place))

    def killed_by(self, origin: str, victim: Process) -> None:
        """A record's delivery ends with the death of its process."""
        self.deaths[origin] += 1
        self.kill(victim, self.random.choice((0, 30, 3_000)))

    def kill(self, victim: Process, lasts: int) -> None:
        """A process is gone, and another one comes; what it held is free so many ms later."""
        for group, host in victim.hosts.items():
            self.broken |= host.tenures()
            if host.member in self.groups[group].hosts:
                self.groups[group].expel(host, lasts)
        self.retire(victim)
        self.start(at_once=True)

    def retire(self, process: Process) -> None:
        """A process is over."""
        process.end()
        if process in self.processes:
            self.processes.remove(process)
        self.later(LOOK_FOR_LEVELS, self._look_for_levels)

    def _look_for_levels(self) -> None:
        """What the one that has gone wrote last may lie in a level that nobody else is configured with."""
        for process in self.processes:
            process.later(0, process.read_leftovers)
