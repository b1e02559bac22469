"""One ordered group of a soak: its topics, its pods, its service with a ledger, its load, and its person."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from tests.soak.cluster import Cluster
from tests.soak.journal import Journal
from tests.soak.ordered.kinds import OrderedKind
from tests.soak.ordered.load import OrderedLoad
from tests.soak.ordered.settler import Settler
from tests.soak.pods import Pods
from tests.soak.service import SlimLedger
from tests.support.service.service import Service


class OrderedSide:
    """A group. What it enters into `stack` ends with the run. `bootstrap`: by which pods reach the cluster."""

    def __init__(
        self,
        kind: OrderedKind,
        seed: int,
        folder: Path,
        kafka: EmbeddedKafka,
        bootstrap: str,
        journal: Journal,
        stack: ExitStack,
    ) -> None:
        self.kind, self.folder = kind, folder / kind.name
        self.folder.mkdir()
        self.group = kind.new_group(kafka.bootstrap)
        self.ledger = SlimLedger(self.folder / "ledger.jsonl")
        service = stack.enter_context(Service(self.ledger, kind.script))
        config = partial(kind.config, bootstrap=bootstrap)
        self.pods = Pods(self.group, service.url, self.folder, journal, kind.slots, config, kind.name)
        stack.callback(self.pods.abandon)
        self.cluster = Cluster(kafka, self.group)
        stack.callback(self.cluster.close)
        self.settler = Settler(self.cluster, self.pods)
        stack.callback(self.settler.close)
        self.load = OrderedLoad(self.group, kind.keys, kind.rate, f"{seed}/{kind.name}")
