"""One soak, from the first node to the checker's word."""

from __future__ import annotations

import faulthandler
import shutil
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console

from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from tests.soak import faults_network, faults_nodes, faults_operator, faults_ordered, faults_pods, faults_service
from tests.soak.account import collect
from tests.soak.growth import LOOK, WINDOW, Growth
from tests.soak.journal import Journal
from tests.soak.layout import SLOTS, Layout
from tests.soak.load import SoakLoad
from tests.soak.network import Network, network
from tests.soak.ordered.judging import judge_ordered
from tests.soak.ordered.kinds import ORDERED
from tests.soak.ordered.side import OrderedSide
from tests.soak.pods import Pods
from tests.soak.repeats import keep_repeats
from tests.soak.report import EVIDENCE, Verdict, figures, journeys, judge, keep
from tests.soak.schedule import GAPS, Schedule
from tests.soak.service import ALWAYS_FAIL, MOST_ATTEMPTS, soak_service
from tests.soak.watch import Watch
from tests.soak.world import Fault, World, run_track

FAULTS: dict[str, Fault] = {
    **faults_nodes.FAULTS,
    **faults_pods.FAULTS,
    **faults_network.FAULTS,
    **faults_service.FAULTS,
    **faults_operator.FAULTS,
    **faults_ordered.FAULTS,
}
NO_ELR = {"eligible.leader.replicas.version": 0}
"""Kafka 4.3.1 forgets a topic's eligible leader replicas (KIP-966) when its min.insync.replicas is changed, but not for
each broker: once that topic is deleted, its controller resigns at every broker that comes back, and none ever does."""
SLACK = 60.0
"""Seconds: two rebalances, a slow start, and hops of what was of a topic unknown for a while."""
DRAINED = 60
"""Records a second that the pods get through besides, at least."""
JUDGING = 600.0
"""Seconds to read and judge all, and to end nodes, pods and clients; then each thread shows where it hangs."""


@dataclass
class Outcome:
    """What a soak came to."""

    figures: str = ""
    ordered: list[str] = field(default_factory=list)
    """The figures of the ordered groups."""
    violations: list[str] = field(default_factory=list)
    """What breaks a rule, the product's or the cluster's doing."""
    journeys: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """Faults that did not do what they say."""
    findings: list[str] = field(default_factory=list)
    """What pods did that no pod should: to be read, and no violation by itself."""
    growth: list[str] = field(default_factory=list)
    """What the pods that lived longest had of memory, threads and descriptors, after their warm-up and in the end."""

    @property
    def clean(self) -> bool:
        """Whether all is well."""
        return not self.violations and not self.broken


def soak(schedule: Schedule, folder: Path, console: Console, sets: Mapping[str, object] | None = None) -> Outcome:
    """Carry the schedule out, wait until all is at rest, and check everything. `sets`: of each pod, by dotted key."""
    outcome = Outcome()
    with ExitStack() as stack:
        stack.callback(faulthandler.cancel_dump_traceback_later)  # last of all, and also when something is raised
        journal = Journal(folder / "journal.jsonl")
        stack.callback(journal.close)
        journal.tell("schedule", seed=schedule.seed, length=schedule.seconds, steps=[str(s) for s in schedule.steps])
        between = stack.enter_context(network(faults_nodes.NODES))
        kafka = stack.enter_context(
            EmbeddedKafka.start(faults_nodes.NODES, features=NO_ELR, advertised=between.address, seconds=240)
        )
        between.connect(kafka)
        stack.callback(lambda: _keep_logs(kafka, folder))
        world = _world(schedule, folder, kafka, between, journal, stack, sets or {})
        watch, growths = Watch(world, schedule.seconds, console), [Growth(pods) for pods in world.all_pods]
        lookers: list[Watch | Growth] = [watch, *growths]
        for looker in lookers:
            looker.start()
            stack.callback(looker.end)
        for load in world.loads:
            load.start()
        _carry_out(world, schedule)
        rest, bound = _come_to_rest(world, watch)
        watch.phase = "a last look at what the pods hold"
        world.sleep(WINDOW + 2 * LOOK)  # the last person's call has clients of its own until its time is over
        faulthandler.dump_traceback_later(JUDGING, exit=True)
        watch.phase = "checking"
        for growth, pods in zip(growths, world.all_pods, strict=True):
            growth.end()
            pods.end()
        verdict = _judge(world, outcome, folder)
        outcome.figures = figures(verdict, rest, bound)
        if rest is None:
            outcome.violations.insert(0, f"not at rest within {bound:.0f} s: {'; '.join(watch.seen.behind)}")
        crashes = [line for pods in world.all_pods for line in pods.crashes]
        grown = [line for growth in growths for line in growth.violations]
        outcome.violations = [*crashes, *grown, *outcome.violations]
        outcome.growth = [line for growth in growths for line in growth.report]
        outcome.broken, outcome.findings = world.broken, [line for pods in world.all_pods for line in pods.findings]
        journal.tell(
            "outcome",
            figures=outcome.figures,
            ordered=outcome.ordered,
            violations=outcome.violations,
            findings=outcome.findings,
            growth=outcome.growth,
        )
    return outcome


def _world(
    schedule: Schedule,
    folder: Path,
    kafka: EmbeddedKafka,
    between: Network,
    journal: Journal,
    stack: ExitStack,
    sets: Mapping[str, object],
) -> World:
    layout = Layout.of(schedule.seconds)
    group = layout.new_group(kafka.bootstrap)
    service, ledger = soak_service(folder)
    stack.enter_context(service)
    config = partial(layout.config, group, sets={"kafka.bootstrap.servers": kafka.proxied_bootstrap, **sets})
    pods = Pods(group, service.url, folder, journal, SLOTS, config)
    stack.callback(pods.abandon)
    load = SoakLoad(group, lambda: schedule.rate(journal.seconds), schedule.seed)
    ordered = [
        OrderedSide(kind, schedule.seed, folder, kafka, kafka.proxied_bootstrap, journal, stack) for kind in ORDERED
    ]
    world = World(kafka, group, layout, service, ledger, pods, load, journal, between, ordered)
    stack.callback(world.cluster.close)
    for each in world.all_pods:
        each.launch_all()
    journal.begun = time.monotonic()
    return world


def _carry_out(world: World, schedule: Schedule) -> None:
    """Every track beside the others, until the time is over; then what is in force is healed."""
    tracks = [
        threading.Thread(target=run_track, args=(world, FAULTS, schedule.of(track)), name=track, daemon=True)
        for track in GAPS
    ]
    for track in tracks:
        track.start()
    world.sleep(schedule.seconds - world.journal.seconds)
    world.stopping.set()
    for track in tracks:
        track.join()
    world.stopping.clear()
    for part in (faults_nodes, faults_network, faults_service, faults_operator, faults_pods, faults_ordered):
        part.heal_all(world)
    world.journal.tell("healed")


def _come_to_rest(world: World, watch: Watch) -> tuple[float | None, float]:
    """How long it took until nothing was left to do, or None; and how long it might have taken."""
    unconfirmed = sum(load.end() for load in world.loads)
    if unconfirmed:
        world.broken.append(f"{unconfirmed} records of the load are not confirmed")
    begin, looks = time.monotonic(), watch.looks
    undone = world.load.confirmed - len(world.ledger.took)
    # In the end only records are left that always fail. That is an outage: each pod makes one attempt a second (in
    # short soaks five), and one pod may have them all (seed 202: 485 attempts took 346 s).
    bound = world.layout.longest + SLACK + undone / DRAINED + undone * ALWAYS_FAIL / 1000 * MOST_ATTEMPTS
    world.journal.tell("resting", bound=bound, undone=undone)
    while time.monotonic() - begin < bound:
        watch.phase = f"{bound - (time.monotonic() - begin):.0f} s to rest"
        # Of looks that began after the load ended, two in a row: a look is no snapshot.
        if watch.looks >= looks + 3 and not watch.seen.behind:
            rest = time.monotonic() - begin
            world.journal.tell("rest", seconds_taken=round(rest, 1))
            return rest, bound
        if watch.seen.behind:
            looks = watch.looks - 1
            _settle(world)
        time.sleep(0.5)
    world.journal.tell("no rest", behind=watch.seen.behind)
    return None, bound


def _settle(world: World) -> None:
    """What is parked waits for a person, and is at rest only then."""
    for side in world.ordered:
        if side.settler.parked():
            world.journal.tell("settled", said=side.settler.settle())


def _judge(world: World, outcome: Outcome, folder: Path) -> Verdict:
    evidence = collect(world.cluster, world.book, world.ledger)
    verdict = judge(evidence, world.load)
    if verdict.found:
        keep(folder / EVIDENCE, evidence, world.load)
        for topic in world.group.retries:
            keep_repeats(world, topic, evidence.retries[topic])
    outcome.violations = list(verdict.found)
    outcome.journeys = list(journeys(evidence, verdict.found))
    for side in world.ordered:
        said = judge_ordered(side)
        outcome.ordered.append(said.figures)
        outcome.violations += said.violations
        outcome.journeys += said.journeys
    return verdict


def _keep_logs(kafka: EmbeddedKafka, folder: Path) -> None:
    """The nodes' logs go with the nodes, unless they are copied."""
    for node in kafka.nodes:
        if node.plan.log.exists():
            shutil.copy(node.plan.log, folder / f"node-{node.id}.log")
