"""Faults of what the job runs on: the broker, and the executors and workers of Spark's cluster."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil
from confluent_kafka import KafkaException

from tests.soak_view.groups import Group
from tests.soak_view.schedule import Round
from tests.soak_view.world import World
from tests.support.deadline import until
from tests.support.kafka.view_topics import view_of
from tests.support.processes import kill

LONGEST_AWAY = 26
"""Seconds: the job waits 5 s for an answer, and 10 s for a record that a broker does not take."""
BACK_SECONDS = 60.0


def away(turn: Round) -> None:
    """Wait as long as the broker is to be away."""
    time.sleep(2 + turn.pick % LONGEST_AWAY)


def broker_killed(world: World, group: Group, turn: Round) -> None:
    """SIGKILL of the only broker, which comes back."""
    node = world.kafka.node(0)
    node.kill()
    away(turn)
    node.launch()
    await_back(group)


def broker_paused(world: World, group: Group, turn: Round) -> None:
    """SIGSTOP of the only broker: its connections stay open, and nothing answers."""
    node = world.kafka.node(0)
    node.pause()
    away(turn)
    node.wake()
    await_back(group)


def await_back(group: Group) -> None:
    """Wait until a topic can be read."""

    def readable() -> bool:
        with suppress(KafkaException):
            view_of(group.bootstrap, group.names.group)
            return True
        return False

    until(readable, BACK_SECONDS, "the broker is back")


def executor_killed(world: World, group: Group, turn: Round) -> None:
    """The process of a task, while tasks run; nothing where the driver itself runs them."""
    group.live(turn.records)
    for executor in executors(world)[: 1 + turn.pick % 2]:
        kill(executor)


def executors(world: World) -> list[psutil.Process]:
    """The processes that run Spark's tasks."""
    return world.job.executors() if world.spark is None else world.spark.executors()


def worker_killed(world: World, group: Group, turn: Round) -> None:
    """A worker and its executors, as when a machine is lost; later another one comes. Without workers, nothing."""
    if world.spark is None:
        return
    group.live(turn.records // 2)
    world.spark.kill_worker(turn.pick)
    group.live(turn.records // 2)
    world.spark.add_worker()
