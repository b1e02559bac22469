"""A real Apache Kafka of one or more KRaft nodes on 127.0.0.1, for tests, demos and first steps. Needs Java 17.

    with EmbeddedKafka.start() as kafka:
        print(kafka.bootstrap)

Plans the cluster, formats its folders, starts it and removes it. Not for production: small heaps, no security.
"""

from __future__ import annotations

import random
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType

import msgspec
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from reconsume.sidecar.dev.kafka.class_archive import ClassArchive
from reconsume.sidecar.dev.kafka.first_metadata import cluster_id, format_folder, is_formatted
from reconsume.sidecar.dev.kafka.node import Node
from reconsume.sidecar.dev.kafka.node_config import HOST, LOG4J, Plan, heap, java_command, server_properties
from reconsume.sidecar.dev.kafka.releases import USUAL, lock_of
from reconsume.sidecar.errors import SetupError
from reconsume.sidecar.files import temporary_path, write_private
from reconsume.sidecar.java.find_java import find_java
from reconsume.sidecar.java.jars import Progress, fetch
from reconsume.sidecar.java.orphan_guard import OrphanGuard
from reconsume.sidecar.kafka.clients import make_client

READY_SECONDS = 60.0
"""Seconds that a start may take; alone it needs 2 to 4 s, on a loaded machine several times that."""
# Below the ports that systems give to outgoing connections (Linux from 32768, macOS from 49152). While a node is down,
# a client that keeps trying such a port could otherwise get it as its own and connect to itself.
PORTS = range(20_000, 32_000)


class EmbeddedKafka:
    """A running cluster, as a context manager: its end stops every node and removes its temporary files."""

    def __init__(
        self, folder: Path, plans: Sequence[Plan], command: partial[list[str]], classes: ClassArchive, *, keep: bool
    ) -> None:
        """Plan a cluster that does not run yet; use `start`."""
        self.folder, self._classes, self._keep, self._ran = folder, classes, keep, False
        self._storage_tool = command((), "kafka.tools.StorageTool")
        # Of several nodes none stops cleanly without the others: they write nothing.
        start = command(classes.options(write=len(plans) == 1), "kafka.Kafka")
        words = [[*start, str(plan.properties)] for plan in plans]
        self.nodes = tuple(map(partial(Node, changed=self._tell_guard, ready=self._await_node), plans, words))
        self._guard = OrphanGuard(None if keep else folder)
        self._cluster = cluster_id([plan.data for plan in plans])

    @classmethod
    def start(
        cls,
        nodes: int = 1,
        properties: Mapping[str, object] | None = None,
        folder: Path | None = None,
        *,
        release: str = USUAL,
        features: Mapping[str, int] | None = None,
        port: int = 0,
        advertised: Callable[[int], str] | None = None,
        progress: Progress = lambda _done, _total: None,
        seconds: float = READY_SECONDS,
    ) -> EmbeddedKafka:
        """Start a cluster of a release (`releases.py`) and wait until all its nodes answer.

        `properties` override server.properties on each node. `features` override the levels that the release gives to
        Kafka's features (`kafka-features.sh describe` lists them). `folder` keeps the data after `close` until the next
        `start`; without it the data is temporary. `port` is node 0's, node 1 has the next one, and so on; 0 picks free
        ports. `progress` is called while jars are downloaded.

        `advertised` returns, for a node id, the `host:port` of a proxy in front of the node. The node then also listens
        on `plan.proxied_port`, for the proxy to connect to. `{port}` in the address is replaced by that port: this
        gives a second listener with other properties, without a proxy.

        Raises SetupError if Java or a jar is not available, or if a node does not answer in `seconds`. Raises
        ConfigError if the release is not known.
        """
        lock, java = lock_of(release), find_java()
        jars = fetch(lock, progress=progress)
        home = temporary_path("reconsume-kafka-") if folder is None else folder.absolute()
        plans = _plans(nodes, home, port, advertised)
        command = partial(java_command, java, jars, home / LOG4J_FILE, heap(len(plans)))
        kafka = cls(home, plans, command, ClassArchive.of(lock, java, jars, home), keep=folder is not None)
        try:
            kafka._write_files(properties or {})
            kafka._format_all(lock, features or {}, seconds)
            kafka._launch_all(seconds)
        except BaseException:
            kafka.close()
            raise
        return kafka

    @property
    def bootstrap(self) -> str:
        """`bootstrap.servers` of all nodes."""
        return ",".join(node.address for node in self.nodes)

    @property
    def proxied_bootstrap(self) -> str:
        """`bootstrap.servers` through the proxies; empty without `advertised`."""
        return ",".join(node.plan.advertised for node in self.nodes if node.plan.advertised)

    def node(self, number: int) -> Node:
        """Return the node whose broker id is `number`, from 0."""
        return self.nodes[number]

    def heal(self) -> None:
        """Wake every paused node, start every node that is down, and wait until all nodes list each other."""
        for node in self.nodes:
            if node.paused:
                node.wake()
            elif not node.running:
                node.launch()
        for node in self.nodes:
            self._await_node(node, everyone=True)

    def close(self) -> None:
        """Stop every node, and remove the folder unless the caller gave it. A second call does nothing."""
        # The first single node of a release on a machine ends 2 s later, for those that come.
        clean = self._keep or (self._ran and len(self.nodes) == 1 and not self._classes.fits)
        if clean:
            for node in self.nodes:  # all at once: when a majority is gone, the rest cannot hand over and would wait
                node.ask_to_stop()
        for node in self.nodes:
            node.stop() if clean else node.kill()
        self._classes.take(ran=self._ran)
        if not self._keep:
            with suppress(FileNotFoundError):
                shutil.rmtree(self.folder)
        self._guard.close()

    def __enter__(self) -> EmbeddedKafka:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write_files(self, overrides: Mapping[str, object]) -> None:
        plans = [node.plan for node in self.nodes]
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for plan in plans:
            plan.folder.mkdir(parents=True, exist_ok=True)
            write_private(plan.properties, server_properties(plan, plans, overrides))
        write_private(self.folder / LOG4J_FILE, LOG4J)

    def _format_all(self, lock: Path, features: Mapping[str, int], seconds: float) -> None:
        """Write the cluster id and the first metadata into each empty data folder."""
        for node in self.nodes:
            if not is_formatted(node.plan.data):
                format_folder(node, self._storage_tool, lock, self._cluster, features, seconds)

    def _launch_all(self, seconds: float) -> None:
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            self._await_node(node, seconds, everyone=True)
        self._ran = True

    def _await_node(self, node: Node, seconds: float = READY_SECONDS, *, everyone: bool = False) -> None:
        """Wait until `node` itself answers a metadata request that lists it, or all nodes with `everyone`.

        Another Kafka may answer on its port, of a program that took it in the meantime: the node then ends.
        """
        wanted = {other.id for other in self.nodes} if everyone else {node.id}
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if not node.running:
                raise _why_ended(node)
            if _listens(node.plan.port) and wanted <= _brokers(node.address, self._cluster):
                return
            time.sleep(0.03)
        raise SetupError(f"Kafka node {node.id} did not answer within {seconds:g} s:", node.log_tail())

    def _tell_guard(self) -> None:
        self._guard.watch([node.pid for node in self.nodes if node.running])


LOG4J_FILE = "log4j2.properties"
TAKEN = re.compile(r"failed to bind to (\S+): Address already in use")
QUIET: dict[str, str | int | float | bool] = {
    "log_level": 0,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "socket.timeout.ms": 2000,
}


def _plans(nodes: int, home: Path, port: int, advertised: Callable[[int], str] | None) -> list[Plan]:
    free = _free_ports()
    return [_plan(number, home, port + number if port else next(free), advertised, free) for number in range(nodes)]


def _plan(number: int, home: Path, port: int, advertised: Callable[[int], str] | None, free: Iterator[int]) -> Plan:
    plan = Plan(id=number, folder=home / f"node-{number}", port=port, controller_port=next(free))
    if advertised is None:
        return plan
    behind = next(free)
    address = advertised(number).replace("{port}", str(behind))
    return msgspec.structs.replace(plan, proxied_port=behind, advertised=address)


def _free_ports() -> Iterator[int]:
    """Yield free ports, each once, in random order: several clusters may start at the same time."""
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        yield port


def _why_ended(node: Node) -> SetupError:
    log = node.log_tail()
    if (taken := TAKEN.search(log)) is not None:
        return SetupError(f"Kafka node {node.id} cannot listen on {taken[1]}: another program has that port")
    return SetupError(f"Kafka node {node.id} ended while it started:", log)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def _brokers(address: str, cluster: str) -> set[int]:
    """Return the ids of the brokers that a metadata answer lists; empty if there is none from this cluster.

    Each call has a client of its own. A node that has just woken lists topics and no broker, itself included. Once in
    50 times a client that asked then got no answer any more, where a new one did (as in librdkafka#5301).
    """
    client = make_client(AdminClient, QUIET | {"bootstrap.servers": address})
    try:
        metadata = client.list_topics(timeout=1)
    except KafkaException:
        return set()
    return set(metadata.brokers) if metadata.cluster_id == cluster else set()
