"""Start and remove everything that the demo needs: Kafka, the topics, the sample service, the sidecar.

The service and the sidecar are processes of their own, as in production. If the demo is killed, a guard ends them and
removes the folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from reconsume.sidecar.dev.demo.ledger import LedgerReader, Opened
from reconsume.sidecar.dev.demo.modes import Mode
from reconsume.sidecar.dev.demo.orders import TOPIC
from reconsume.sidecar.dev.demo.plan import Plan
from reconsume.sidecar.dev.demo.processes import Child, ProcessGroup
from reconsume.sidecar.dev.demo.shop.web import HOST, free_port
from reconsume.sidecar.dev.demo.view import start_job
from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from reconsume.sidecar.errors import BrokerError, SetupError
from reconsume.sidecar.files import temporary_path, write_private
from reconsume.sidecar.java.download_bar import progress_bar
from reconsume.sidecar.java.orphan_guard import OrphanGuard
from reconsume.sidecar.kafka.admin.changes import CreateState, TopicAdmin
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import source_of
from reconsume.sidecar.settings import Settings, load
from reconsume.topics.names import Kind
from reconsume.topics.specs import TopicSpec, group_specs

GROUP = "billing"
PARTITIONS = 3
START_SECONDS = 60.0


class Additions(NamedTuple):
    """What a caller wants beside the plan. `settings` returns sections of the configuration, given the folder."""

    jars: Sequence[Path] = ()
    """The jars of the Spark job. Without them it is not started."""
    port: int = 0
    """Kafka's port; 0 takes a free one."""
    settings: Callable[[Path], Mapping[str, Any]] = lambda _home: {}
    own: Mapping[str, Any] | None = None
    """The configuration of a user's own service, which runs elsewhere. None: the sample service is started."""
    log: Path | None = None
    """The file for the sidecar's log. None: one beside its configuration, which is gone at the end."""
    speed: int = 1
    """What the waits of retries are divided by."""


class Environment:
    """The running demo: its configuration, ledger and processes. `open_environment` creates it."""

    def __init__(
        self,
        file: Path,
        settings: Settings,
        ledger: LedgerReader,
        kafka: EmbeddedKafka,
        shop: Child | None,
        sidecar: Child,
        job: Child | None,
    ) -> None:
        self.file, self.settings, self.ledger, self.kafka = file, settings, ledger, kafka
        self.shop, self.sidecar, self.job = shop, sidecar, job
        """`shop` is None if the service is the user's own, `job` if Spark does not run."""

    @property
    def bootstrap(self) -> str:
        return self.settings.kafka["bootstrap.servers"]

    @property
    def topics(self) -> tuple[str, ...]:
        """Every topic that is used: main, levels, ready, DLQ and events."""
        names, mains = self.settings.names, self.settings.topic_names
        levels = names.levels_of(self.settings.delays, mains)
        return (*mains, *levels, names.ready, *names.dlqs_of(mains), names.events)

    def check(self) -> None:
        """Raise SetupError if a process has ended by itself."""
        if not all(node.running for node in self.kafka.nodes):
            raise SetupError("a node of the embedded Kafka has ended by itself")
        for child in (self.shop, self.sidecar, self.job):
            if child is not None:
                child.check()


class EnvironmentBuilder:
    """Starts the service and the sidecar, given a folder, a running Kafka, an empty ledger and a process group."""

    def __init__(
        self,
        plan: Plan,
        home: Path,
        kafka: EmbeddedKafka,
        crew: ProcessGroup,
        additions: Additions,
        say: Callable[[str], None],
    ) -> None:
        self._plan, self._home, self._kafka, self._crew, self._say = plan, home, kafka, crew, say
        self._file, self._log = home / "reconsume.yaml", home / "ledger.jsonl"
        self._additions = additions

    def serve(self, ledger: LedgerReader, options: Sequence[str]) -> Environment:
        """Start the shop first: the sidecar must know the shop's address."""
        front = "batch" if self._plan.mode is Mode.BATCH else "push"
        shop = self._shop(front, *options)
        url = f"http://{HOST}:{await_port(ledger, shop)}/orders"
        self._say(f"the sample service listens at {url}")
        settings = self._prepare(f"{HOST}:0", url)
        return Environment(self._file, settings, ledger, self._kafka, shop, self._sidecar(), self._job(GROUP))

    def wait_for(self, own: Mapping[str, Any], ledger: LedgerReader) -> Environment:
        """Start the sidecar of a user's own service. It waits for a service that does not run yet."""
        settings = self._write({**own, "kafka": {"bootstrap.servers": self._kafka.bootstrap}})
        job = self._job(settings.group)
        return Environment(self._file, settings, ledger, self._kafka, None, self._sidecar(), job)

    def call(self, ledger: LedgerReader, options: Sequence[str]) -> Environment:
        """Start the sidecar first: the shop must know the address of the sidecar's API."""
        port = free_port()
        settings = self._prepare(f"{HOST}:{port}", None)
        sidecar, job = self._sidecar(), self._job(GROUP)
        does = "calls" if self._plan.mode is Mode.PULL else "reads Kafka itself, and calls"
        self._say(f"the sample service {does} the sidecar at http://{HOST}:{port}")
        api_options = ("--api", str(port), "--bootstrap", self._kafka.bootstrap, "--group", GROUP)
        topics = ("--topics", TOPIC, settings.names.ready)
        shop = self._shop(self._plan.mode, *api_options, *topics, *options)
        await_port(ledger, shop)
        return Environment(self._file, settings, ledger, self._kafka, shop, sidecar, job)

    def _shop(self, front: str, *options: str) -> Child:
        return self._crew.start("shop", "reconsume.sidecar.dev.demo.shop", str(self._log), "--front", front, *options)

    def _sidecar(self) -> Child:
        file, speed = str(self._file), self._additions.speed
        usual = ("reconsume.sidecar", "run", "-c", file)
        words = usual if speed == 1 else ("reconsume.sidecar.cli.dev.fast_sidecar", file, str(speed))
        return self._crew.start("sidecar", *words, log=self._additions.log)

    def _job(self, group: str) -> Child | None:
        """Start the Spark job if there are jars for it."""
        if not self._additions.jars:
            return None
        self._say("Spark starts, which takes a while")
        job = start_job(self._crew, self._kafka.bootstrap, group, self._additions.jars, self._say)
        self._say("Spark keeps the view: reconsume view run")
        return job

    def _prepare(self, listen: str, url: str | None) -> Settings:
        return self._write(self._plan.configuration(GROUP, self._kafka.bootstrap, listen, url))

    def _write(self, tree: Mapping[str, Any]) -> Settings:
        tree = {**tree, **self._additions.settings(self._home)}
        if self._additions.jars:  # the job writes the view into topics of its own
            view = tree.get("view", {})
            tree["view"] = {**(view if isinstance(view, Mapping) else {"enabled": view}), "source": "spark"}
        settings = write_settings(self._file, tree)
        self._say(f"{create_topics(settings)} topics are made for group {settings.group}")
        return settings


@contextmanager
def open_environment(
    plan: Plan, shop: Sequence[str], folder: Path | None, additions: Additions, say: Callable[[str], None]
) -> Iterator[Environment]:
    """Start everything that the plan needs. `shop`: options of the sample service.

    With `folder` all data is kept there. Raises SetupError or BrokerError if something cannot be started.
    """
    with ExitStack() as stack:
        home = folder or temporary_path("reconsume-demo-")
        guard = OrphanGuard(None if folder is not None else home)
        stack.callback(guard.close)
        home.mkdir(mode=0o700, exist_ok=True)
        stack.callback(guard.watch, [])  # all have ended by then, and other processes may have their ids
        with progress_bar() as progress:
            kept = home / "kafka" if folder is not None else None
            kafka = EmbeddedKafka.start(folder=kept, port=additions.port, progress=progress)
        stack.enter_context(kafka)
        say(f"Apache Kafka runs at {kafka.bootstrap}")
        ledger = stack.enter_context(LedgerReader(home / "ledger.jsonl"))
        scaffold = EnvironmentBuilder(plan, home, kafka, ProcessGroup(stack, home, guard), additions, say)
        if additions.own is not None:
            yield scaffold.wait_for(additions.own, ledger)
        else:
            yield scaffold.serve(ledger, shop) if plan.mode.is_served else scaffold.call(ledger, shop)


def await_port(ledger: LedgerReader, service: Child) -> int:
    """Wait until the service is up, and return the port that it listens on; 0 if the service is the caller."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        for line in ledger.read():
            if isinstance(line, Opened):
                return line.port
        service.check()
        time.sleep(0.02)
    raise SetupError(f"the sample service did not start within {START_SECONDS:.0f} s:", service.log_tail())


def write_settings(file: Path, tree: dict[str, Any]) -> Settings:
    """Write the sidecar's configuration, and load it as the sidecar will."""
    write_private(file, yaml.safe_dump(tree, sort_keys=False))
    return load(file, (), {})


def create_topics(settings: Settings) -> int:
    """Create the main topics, and the group's own topics as `topics apply` does; return the number of those. Raises
    BrokerError."""
    cluster, mains = Cluster(settings.kafka), settings.topic_names
    create(cluster, [TopicSpec(main, Kind.MAIN, PARTITIONS, 1, {}) for main in mains])
    existing = cluster.find_topics(mains)
    rows = settings.view.source == "spark"
    specs = group_specs(
        settings.names,
        [source_of(existing[main]) for main in mains],
        settings.delays,
        rows=rows,
        ordered=settings.queued,
    )
    create(cluster, specs)
    return len(specs)


def create(cluster: Cluster, specs: Sequence[TopicSpec]) -> None:
    """Create topics that are not there yet. Raises BrokerError."""
    for result in TopicAdmin(cluster).create(specs):
        if result.state is CreateState.FAILED:
            raise BrokerError(f"topic {result.name} cannot be created: {result.error}")
