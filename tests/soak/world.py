"""All that a soak holds: the cluster, the pods, the service, the load, and what is in force. Faults act on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeAlias

from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from tests.soak.book import Book
from tests.soak.cluster import Cluster
from tests.soak.journal import Journal
from tests.soak.layout import Layout
from tests.soak.load import SoakLoad
from tests.soak.network import Network
from tests.soak.ordered.load import OrderedLoad
from tests.soak.ordered.side import OrderedSide
from tests.soak.pods import Pods
from tests.soak.schedule import Step
from tests.soak.service import SlimLedger
from tests.support.kafka.group_topics import GroupTopics
from tests.support.service.service import Service


class World:
    """One soak's parts."""

    def __init__(
        self,
        kafka: EmbeddedKafka,
        group: GroupTopics,
        layout: Layout,
        service: Service,
        ledger: SlimLedger,
        pods: Pods,
        load: SoakLoad,
        journal: Journal,
        network: Network,
        ordered: Sequence[OrderedSide],
    ) -> None:
        self.kafka, self.group, self.layout, self.service, self.ledger = kafka, group, layout, service, ledger
        self.pods, self.load, self.journal, self.network = pods, load, journal, network
        self.ordered = ordered
        self.cluster = Cluster(kafka, group)
        self.book = Book()
        self.stopping = threading.Event()
        self.in_force: dict[int, str] = {}
        self.broken: list[str] = []
        """Faults that did not do what they say: the soak's own trouble, or the cluster's."""

    @property
    def all_pods(self) -> list[Pods]:
        """The pods of every group, the soak's own first."""
        return [self.pods, *(side.pods for side in self.ordered)]

    @property
    def loads(self) -> list[SoakLoad | OrderedLoad]:
        """What produces, for every group."""
        return [self.load, *(side.load for side in self.ordered)]

    def sleep(self, seconds: float) -> bool:
        """Wait; True when the schedule is over."""
        return self.stopping.wait(max(0.0, seconds))

    def confirm(self, step: Step, said: str) -> None:
        """Write down what the cluster, or the system, says of a fault."""
        self.journal.tell("confirmed", number=step.number, kind=step.kind, said=said)


Fault: TypeAlias = Callable[[World, Step], AbstractContextManager[str]]
"""Brings about what the step says, gives what the cluster says of it, and heals it at the end."""


def run_track(world: World, faults: dict[str, Fault], steps: tuple[Step, ...]) -> None:
    """Carry out the steps of one track, one after another; a late one begins at once."""
    for step in steps:
        if world.sleep(step.at - world.journal.seconds):
            return
        world.journal.tell("begin", number=step.number, kind=step.kind, lasts=step.lasts, pick=step.pick)
        world.in_force[step.number] = step.kind
        try:
            with faults[step.kind](world, step) as said:
                world.confirm(step, said)
                world.sleep(step.lasts)
        except Exception as failure:  # noqa: BLE001 - the other tracks go on, and the run has failed
            world.broken.append(f"{step}: {failure!r}")
            world.journal.tell("broken", number=step.number, kind=step.kind, said=repr(failure))
        finally:
            del world.in_force[step.number]
            world.journal.tell("end", number=step.number, kind=step.kind)
