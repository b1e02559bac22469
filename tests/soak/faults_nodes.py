"""Faults of nodes: killed, stopped and paused, one at a time, or two so that nothing can be written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import psutil
from confluent_kafka import Producer

from reconsume.sidecar.dev.kafka.node import Node
from tests.soak.cluster import NotSoError, insist
from tests.soak.pods import await_state
from tests.soak.schedule import Step
from tests.soak.world import Fault, World
from tests.support.kafka.group_topics import set_config
from tests.support.kafka.topic_io import SECONDS

NODES = 3


def killed(world: World, step: Step) -> AbstractContextManager[str]:
    """SIGKILL of one node, until it is started again."""
    return _gone(world, step, Node.kill, "killed")


def stopped(world: World, step: Step) -> AbstractContextManager[str]:
    """SIGTERM of one node: its leaderships move before it ends."""
    return _gone(world, step, Node.stop, "stopped")


@contextmanager
def paused_shortly(world: World, step: Step) -> Iterator[str]:
    """SIGSTOP of one node for less than its session: nobody else takes over."""
    with _down(world, step) as node:
        leads = world.cluster.led_by(node.id)
        node.pause()
        yield f"node {node.id} is {await_state(node.pid, psutil.STATUS_STOPPED)}, leader of {leads}"


def paused_long(world: World, step: Step) -> AbstractContextManager[str]:
    """SIGSTOP of one node beyond its session: its partitions get other leaders, and it wakes as one of the past."""
    return _gone(world, step, Node.pause, "paused")


@contextmanager
def _gone(world: World, step: Step, take: Callable[[Node], object], word: str) -> Iterator[str]:
    """Take one node away, until the cluster lists it no longer."""
    with _down(world, step) as node:
        leads = world.cluster.led_by(node.id)
        take(node)
        alive = world.cluster.await_gone(node.id)
        yield f"node {node.id} {word}, leader of {leads}; the cluster lists {sorted(alive)}"


@contextmanager
def two_killed(world: World, step: Step) -> Iterator[str]:
    """SIGKILL of two nodes: neither a quorum nor enough replicas are left."""
    with _two_down(world, step) as nodes:
        for node in nodes:
            node.kill()
        yield f"nodes {[node.id for node in nodes]} killed; {_refused(world)}"


@contextmanager
def two_paused(world: World, step: Step) -> Iterator[str]:
    """SIGSTOP of two nodes."""
    with _two_down(world, step) as nodes:
        for node in nodes:
            node.pause()
        yield f"nodes {[node.id for node in nodes]} paused; {_refused(world)}"


@contextmanager
def too_few_in_sync(world: World, step: Step) -> Iterator[str]:
    """One topic wants three replicas in sync while one node is down: it can be read and not be written."""
    group = world.group
    topics = (*group.mains, *group.retries, group.dlq, group.names.events)
    topic = topics[step.pick // NODES % len(topics)]
    with _down(world, step) as node:
        try:
            # Another fault may have deleted the topic, and is about to make it again.
            insist(lambda: _set(world, topic, "3"), f"min.insync.replicas of {topic} is set")
            node.kill()
            world.cluster.await_gone(node.id)
            found = insist(lambda: world.cluster.in_sync(topic), f"{topic} has replicas in sync", 30)
            if found >= NODES:
                raise NotSoError(f"{topic} has {found} replicas in sync without node {node.id}")
            yield f"{topic} has {found} replicas in sync and wants 3; node {node.id} is down"
        finally:
            insist(lambda: _set(world, topic, "2"), f"min.insync.replicas of {topic} is set back")


def _set(world: World, topic: str, replicas: str) -> bool:
    world.cluster.away.ask(set_config, topic, "min.insync.replicas", replicas)
    return True


@contextmanager
def _down(world: World, step: Step) -> Iterator[Node]:
    """The node that is meant; afterwards all are there again, with every replica in sync."""
    try:
        yield world.kafka.node(step.pick % NODES)
    finally:
        _heal(world)


@contextmanager
def _two_down(world: World, step: Step) -> Iterator[list[Node]]:
    left = step.pick % NODES
    try:
        yield [node for node in world.kafka.nodes if node.id != left]
    finally:
        _heal(world)


def _heal(world: World) -> None:
    world.kafka.heal()
    world.cluster.await_whole()


def _refused(world: World) -> str:
    """What the cluster says to a record of the policy topic's: it must not be able to confirm one."""
    errors: list[str] = []
    producer = Producer({"bootstrap.servers": world.group.bootstrap, "message.timeout.ms": 3_000, "log_level": 0})
    producer.produce(
        world.group.names.policy,
        b"{}",
        b"soak/probe",
        on_delivery=lambda error, _message: errors.append("confirmed" if error is None else error.name()),
    )
    producer.flush(SECONDS)
    if errors in ([], ["confirmed"]):
        raise NotSoError(f"a record was confirmed with two nodes down: {errors}")
    return f"a record is refused: {errors[0]}"


def heal_all(world: World) -> None:
    """Whatever was left behind by faults that broke."""
    _heal(world)
    topics = (*world.group.mains, *world.group.retries, world.group.dlq, world.group.names.events)
    for topic in topics:
        insist(lambda topic=topic: _set(world, topic, "2"), f"min.insync.replicas of {topic} is set")


FAULTS: dict[str, Fault] = {
    "node-kill": killed,
    "node-stop": stopped,
    "node-pause-short": paused_shortly,
    "node-pause-long": paused_long,
    "two-nodes-killed": two_killed,
    "two-nodes-paused": two_paused,
    "min-isr": too_few_in_sync,
}
