"""Which Kafka a test run takes: the embedded one, a container, or one that runs already."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from reconsume.sidecar.dev.kafka.node_config import SMALL_AND_QUICK
from reconsume.sidecar.dev.kafka.releases import RELEASES, USUAL
from reconsume.sidecar.java.download_bar import progress_bar
from tests.support.deadline import until
from tests.support.kafka.one_for_all import one_for_all

RELEASE, PROTOCOL = "TESTED_KAFKA", "TESTED_GROUP_PROTOCOL"
"""Variables by which a run's options reach what starts brokers and sidecars of its own, in every worker."""
IMAGE = os.environ.get("RECONSUME_KAFKA_IMAGE", "apache/kafka:4.3.1")

UNFENCED = {"broker.session.timeout.ms": 60_000, "broker.heartbeat.interval.ms": 2_000}
"""Of a node that nobody stops. After 3 s in which a busy machine gave it no time its own controller would fence it: no
topic could be made, and no group be listed."""


def group_protocol() -> str:
    """Kafka's group protocol of the sidecars under test."""
    return os.environ.get(PROTOCOL, "classic")


class Broker(NamedTuple):
    """A Kafka that tests share: they make topics and groups of fresh names and never stop it."""

    bootstrap: str


@contextmanager
def broker(kind: str, folder: Path) -> Iterator[Broker]:
    """The Kafka of `--kafka`: an embedded one, `testcontainers`, or the `host:port` of one that runs.

    `folder`: the same for all workers of a run, which share the embedded one.
    """
    if release_of(kind) is not None:
        with one_for_all(folder, partial(embedded, properties=UNFENCED)) as bootstrap:
            yield Broker(bootstrap)
        return
    match kind:
        case "testcontainers":
            with _container() as bootstrap:
                yield Broker(bootstrap)
        case _:
            _await(kind)
            yield Broker(kind)


def release_of(kind: str) -> str | None:
    """The release that `--kafka` asks to be embedded: of `embedded`, `embedded:3.9` or `3.9`; None for another kind."""
    kind, _, release = kind.partition(":")
    if kind in RELEASES and not release:
        return kind
    return (release or USUAL) if kind == "embedded" else None


def embedded(nodes: int = 1, **more: Any) -> EmbeddedKafka:
    """A cluster of the release that the run is about."""
    with progress_bar() as progress:
        return EmbeddedKafka.start(nodes, release=os.environ.get(RELEASE, USUAL), progress=progress, **more)


@contextmanager
def _container() -> Iterator[str]:
    """One node in a container, from any engine that testcontainers finds."""
    from testcontainers.core.container import DockerContainer  # only here: a test run needs no container engine

    with socket.socket() as probe:  # the host's port must be known before the start, to be advertised
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    container = DockerContainer(IMAGE).with_bind_ports(9092, port)
    for name, value in _settings(port).items():
        container = container.with_env("KAFKA_" + name.upper().replace(".", "_"), str(value))
    with container:
        address = f"127.0.0.1:{port}"
        _await(address)
        yield address


def _settings(port: int) -> dict[str, object]:
    return {
        **SMALL_AND_QUICK,
        "node.id": 1,
        "process.roles": "broker,controller",
        # To itself the node talks inside: the host's port is not there, and no transaction would ever end.
        "listeners": "PLAIN://:9092,INSIDE://:9094,CONTROLLER://:9093",
        "advertised.listeners": f"PLAIN://127.0.0.1:{port},INSIDE://localhost:9094",
        "listener.security.protocol.map": "PLAIN:PLAINTEXT,INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "INSIDE",
        "controller.quorum.voters": "1@localhost:9093",
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
    }


def _await(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 500})

    def answers() -> bool:
        try:
            return bool(admin.list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    until(answers, 60, f"a Kafka answers at {bootstrap}")
