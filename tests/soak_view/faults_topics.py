"""Faults of groups and topics: they come, go, are made anew, get partitions, and lose events to retention."""

from __future__ import annotations

from contextlib import closing

from confluent_kafka import Consumer, TopicPartition

from tests.soak_view.groups import Group
from tests.soak_view.schedule import Round
from tests.soak_view.world import World
from tests.support.deadline import until
from tests.support.kafka.topic_io import SECONDS
from tests.support.sidecar.view_process import SELDOM

READ_SECONDS = 120.0


def group_added(world: World, _group: Group, turn: Round) -> None:
    """A group that is new."""
    world.groups.append(world.group())
    world.groups[-1].live(turn.records)


def group_removed(world: World, group: Group, _turn: Round) -> None:
    """A group without which another one is left."""
    if sum(one.there for one in world.groups) > 1:
        group.delete()


def group_made_anew(_world: World, group: Group, turn: Round) -> None:
    """It soon has more events than the old one."""
    make_anew(group, turn)


def make_anew(group: Group, turn: Round) -> None:
    """All topics of the group."""
    group.delete()
    group.create()
    group.live(2 * turn.records)


def group_made_anew_while_stopped(world: World, group: Group, turn: Round) -> None:
    """The same, and the job does not see it."""
    world.stop()
    make_anew(group, turn)
    world.job.start()


def view_recreated(_world: World, group: Group, turn: Round) -> None:
    """The topic that the job writes: rows of all events at hand must come back."""
    group.recreate_view()
    group.live(turn.records)


def view_recreated_while_stopped(world: World, group: Group, turn: Round) -> None:
    """The same, and the job does not see it."""
    world.stop()
    view_recreated(world, group, turn)
    world.job.start()


def partitions_added(_world: World, group: Group, turn: Round) -> None:
    """A record's later events may lie in another partition."""
    group.widen()
    group.live(turn.records)


def events_overtaken(world: World, group: Group, turn: Round) -> None:
    """The job is away for so long that retention deletes what it has not read."""
    until(lambda: group.ends().items() <= read(world, group).items(), READ_SECONDS, "all so far is read", SELDOM)
    world.stop()
    group.live(turn.records)
    world.lost += group.cut(read(world, group), turn.pick % 100 / 100)
    world.job.start()


def read(world: World, group: Group) -> dict[int, int]:
    """How far the job has read, as it has committed it."""
    with closing(Consumer({"bootstrap.servers": world.bootstrap, "group.id": group.names.view_group})) as consumer:
        numbers = consumer.list_topics(group.names.events, timeout=SECONDS).topics[group.names.events].partitions
        parts = [TopicPartition(group.names.events, number) for number in numbers]
        return {part.partition: max(0, part.offset) for part in consumer.committed(parts, timeout=SECONDS)}
