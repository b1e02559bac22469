"""The configuration of an embedded Kafka node: its plan, server.properties, Log4j configuration and Java command line.

Pure: values in, text and tuples out. Nothing here writes a file, picks a port or starts a process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

HOST = "127.0.0.1"


class Plan(msgspec.Struct, frozen=True):
    """One combined KRaft node (broker and controller): its id, ports and folder, kept over restarts."""

    id: int
    folder: Path
    port: int
    """The port of the PLAIN listener: clients and the other brokers."""
    controller_port: int
    proxied_port: int = 0
    """The port of the PROXY listener, where a proxy connects to; 0 without one."""
    advertised: str = ""
    """`host:port` that the PROXY listener advertises to clients: the proxy's own address."""

    @property
    def address(self) -> str:
        """`host:port` of the PLAIN listener."""
        return f"{HOST}:{self.port}"

    @property
    def data(self) -> Path:
        """The folder of the partitions' logs."""
        return self.folder / "data"

    @property
    def properties(self) -> Path:
        """The node's server.properties."""
        return self.folder / "server.properties"

    @property
    def log(self) -> Path:
        """The broker's log, over all its starts."""
        return self.folder / "broker.log"


def server_properties(plan: Plan, plans: Sequence[Plan], overrides: Mapping[str, object]) -> str:
    """Return the text of server.properties for one node of the cluster `plans`; `overrides` win."""
    merged = {**_identity(plan, plans), **_copies(len(plans)), **SMALL_AND_QUICK, **overrides}
    return "".join(f"{name}={value}\n" for name, value in merged.items())


def _identity(plan: Plan, plans: Sequence[Plan]) -> dict[str, object]:
    listeners = [("PLAIN", plan.port, plan.address), ("CONTROLLER", plan.controller_port, "")]
    if plan.proxied_port:
        listeners.append(("PROXY", plan.proxied_port, plan.advertised))
    return {
        "process.roles": "broker,controller",
        "node.id": plan.id,
        # The quorum is fixed in the configuration: its members need not join, and any node may start first.
        "controller.quorum.voters": ",".join(f"{p.id}@{HOST}:{p.controller_port}" for p in plans),
        "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port, _ in listeners),
        "advertised.listeners": ",".join(f"{name}://{address}" for name, _, address in listeners if address),
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name, _, _ in listeners),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAIN",
        "log.dirs": plan.data,
    }


def _copies(nodes: int) -> dict[str, object]:
    """Return replication settings that survive the loss of one of three nodes; with fewer nodes, one copy of
    everything."""
    copies, in_sync = (3, 2) if nodes >= 3 else (1, 1)
    internal = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
    factors: dict[str, object] = {f"{name}.replication.factor": copies for name in internal}
    return factors | {
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.min.isr": in_sync,
    }


SMALL_AND_QUICK: dict[str, object] = {
    "auto.create.topics.enable": "false",  # a misspelt topic must be an error
    "offsets.topic.num.partitions": 3,  # 50 by default: seconds and memory at the first use of a group
    "transaction.state.log.num.partitions": 3,
    "share.coordinator.state.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,  # 3 s by default, paid by every first member
    "group.min.session.timeout.ms": 1000,  # lets a test lose a member quickly
    # For groups with the protocol of KIP-848, whose members cannot choose these: 45 s and 5 s by default.
    "group.consumer.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 3000,
    "group.consumer.min.heartbeat.interval.ms": 200,
    "group.consumer.heartbeat.interval.ms": 500,
    # 10 s by default: the open transaction of a crashed producer ends that much after its timeout.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
    # 9 s by default: a killed node cannot register again before its old session has ended.
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 500,
    "controller.quorum.election.timeout.ms": 500,
    "controller.quorum.election.backoff.max.ms": 200,
    "metadata.max.idle.interval.ms": 10_000,  # 500 by default: a third of an idle node's CPU, for empty records
    "log.cleaner.dedupe.buffer.size": 2 << 20,  # 128 MiB of heap by default
    "num.network.threads": 2,
    "num.io.threads": 4,
    "background.threads": 4,
}

# Log to the console, which is the node's log file: a crash of the JVM itself is then in the same file.
LOG4J = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %c{1}: %m%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
# Hundreds of lines of settings at each start and for each client.
logger.config.name = org.apache.kafka.common.config.AbstractConfig
logger.config.level = warn
"""


def heap(nodes: int) -> str:
    """Return the largest heap of one node: three nodes must fit beside a test."""
    return "512m" if nodes == 1 else "320m"


def java_command(
    java: Path, jars: Sequence[Path], log4j: Path, most_heap: str, options: Sequence[str], *arguments: str
) -> list[str]:
    """Return the command line of one JVM, tuned for a fast start rather than for hours of speed.

    `options` are further options of Java.
    """
    return [
        str(java),
        f"-Xmx{most_heap}",
        "-Xms64m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",
        "-XX:+ExitOnOutOfMemoryError",
        "-Xshare:auto",
        "-Djava.awt.headless=true",
        f"-Dlog4j2.configurationFile={log4j}",
        *options,
        "-cp",
        ":".join(map(str, jars)),
        *arguments,
    ]
