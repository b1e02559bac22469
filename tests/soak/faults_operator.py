"""What an operator does to a group that runs: partitions added, logs cut, topics made anew, the policy set.

What is destroyed is read first and written into the book.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from confluent_kafka import KafkaException

from reconsume.topics.durations import render_duration
from reconsume.topics.names import Kind
from tests.soak.admin import UnansweredError
from tests.soak.cluster import INSIST, NotSoError, insist
from tests.soak.layout import IN_SYNC, PARTITIONS, REPLICAS
from tests.soak.repeats import keep_repeats
from tests.soak.schedule import Step
from tests.soak.world import Fault, World
from tests.support.kafka.group_topics import create_specs, specs_of
from tests.support.kafka.topic_io import Row, dump_part
from tests.support.proof.evidence import PartitionName, Progress
from tests.support.sidecar.policy import write

FOLLOWED = 60.0
"""Seconds within which a running pod follows the policy."""


@contextmanager
def partition_added(world: World, step: Step) -> Iterator[str]:
    """A partition more for a main topic."""
    topic = world.group.mains[step.pick % len(world.group.mains)]
    yield f"{topic} has {world.cluster.add_partition(topic)} partitions"


@contextmanager
def level_partition_added(world: World, step: Step) -> Iterator[str]:
    """A partition more for a level, the ready topic or the DLQ."""
    topics = (*world.group.retries, world.group.dlq)
    topic = topics[step.pick % len(topics)]
    yield f"{topic} has {world.cluster.add_partition(topic)} partitions"


@contextmanager
def done_deleted(world: World, step: Step) -> Iterator[str]:
    """The log of the longest partition is cut below what is done: nobody may notice."""
    yield _cut(world, step, unread=False)


@contextmanager
def unread_deleted(world: World, step: Step) -> Iterator[str]:
    """The log of one of the partitions where most waits is cut above what is done."""
    yield _cut(world, step, unread=True)


def _cut(world: World, step: Step, *, unread: bool) -> str:
    cluster = world.cluster
    lane = cluster.lanes[world.group.names.retry_group if unread or step.pick % 2 else world.group.group]
    ends = insist(lambda: cluster.ends(lane, stable=True), "ends")
    progress = _progress(world, *lane)
    spans = {}
    for place, end in ends.items():
        done = min(progress[place].next, end.high) if place in progress else end.low
        spans[place] = (done, end.high) if unread else (end.low, done)
    longest = sorted(spans, key=lambda place: spans[place][1] - spans[place][0])[-3:]
    place = longest[step.pick % len(longest)]
    low, high = spans[place]
    before = low + (high - low) * (1 + step.pick // 8 % 4) // 4
    if high <= low or before <= ends[place].low:
        return f"nothing to cut in {place}"
    topic, partition = place
    rows = _read(world, topic, {partition: (ends[place].low, before)})
    # Of what is done now: a record that is done between this look and the cut counts as destroyed, and as taken.
    progress = _progress(world, topic)
    undone = world.book.destroy(topic, rows, progress)
    start = cluster.delete_records(topic, partition, before)
    if start < before:
        raise NotSoError(f"{topic}[{partition}] begins at {start}, not at {before}")
    return f"{topic}[{partition}] begins at {start} instead of {ends[place].low}; {undone} records were not done"


def _read(world: World, topic: str, parts: dict[int, tuple[int, int]]) -> list[Row]:
    """What is there; nothing is an answer too."""
    return insist(lambda: (dump_part(world.group.bootstrap, topic, parts),), f"{topic} is read")[0]


def _progress(world: World, *topics: str) -> dict[PartitionName, Progress]:
    return insist(lambda: (world.cluster.progress(*topics),), f"the progress in {topics[0]} is known")[0]


@contextmanager
def level_recreated(world: World, step: Step) -> Iterator[str]:
    """A level topic is deleted with what waits in it, is away for a while, and made again."""
    levels = [topic for topic, delay in world.group.levels.items() if render_duration(delay) in world.layout.ladder]
    with _recreated(world, levels[step.pick % len(levels)]) as said:
        yield said
    world.confirm(step, "it is there again, with another id")


@contextmanager
def dlq_recreated(world: World, step: Step) -> Iterator[str]:
    """The DLQ is deleted with its letters, is away for a while, and made again."""
    with _recreated(world, world.group.dlq) as said:
        yield said
    world.confirm(step, "it is there again, with another id")


@contextmanager
def _recreated(world: World, topic: str) -> Iterator[str]:
    cluster = world.cluster
    since = time.time_ns() // 1_000_000
    old = insist(lambda: cluster.topic_id(topic), f"{topic} has an id")
    reads = topic in world.group.retries
    progress = _progress(world, topic) if reads else {}
    ends = insist(lambda: cluster.ends([topic], stable=True), f"the ends of {topic}")
    parts = {partition: (end.low, end.high) for (_, partition), end in ends.items()}
    rows = _read(world, topic, parts)
    undone = world.book.destroy(topic, rows, progress)
    keep_repeats(world, topic, rows)
    cluster.delete_topic(topic)
    try:
        yield f"{topic} is deleted with {len(rows)} records, {undone if reads else 0} of them not done"
    finally:
        insist(lambda: _made(world, topic), f"{topic} is made again")
        if insist(lambda: cluster.topic_id(topic), f"{topic} has an id") == old:
            raise NotSoError(f"{topic} is still the same topic")
        world.book.made_anew(topic, since)


def _made(world: World, topic: str) -> bool:
    """Make the topic as it was in the beginning. One that is already there was made by an earlier try."""
    specs = specs_of(world.group, PARTITIONS, REPLICAS, also=(Kind.POLICY,))
    assert {spec.config["min.insync.replicas"] for spec in specs} == {str(IN_SYNC)}
    if topic not in world.cluster.admin.list_topics(timeout=10).topics:
        with suppress(AssertionError, UnansweredError):
            world.cluster.away.ask(create_specs, [spec for spec in specs if spec.name == topic], seconds=INSIST / 4)
    return world.cluster.partitions(topic) == PARTITIONS


@contextmanager
def policy_set(world: World, step: Step) -> Iterator[str]:
    """The group's policy, live; taken back at the end."""
    policies = world.layout.policies
    policy = policies[step.pick % len(policies)]
    began = time.monotonic()
    try:
        insist(lambda: _written(world, policy), "the policy is written")
        followers = insist(lambda: _followers(world, policy), f"a pod follows {policy}", FOLLOWED)
        yield f"{policy}: followed by {followers} after {time.monotonic() - began:.1f} s"
    finally:
        insist(lambda: _written(world, None), "the policy is taken back")


def _written(world: World, policy: object) -> bool:
    value = None if policy is None else json.dumps({"v": 1, "policy": policy, "who": "soak", "at": 1}).encode()
    try:
        write(world.group, value)
    except AssertionError as late:  # not confirmed in time
        raise KafkaException(str(late)) from late
    return True


def _followers(world: World, policy: object) -> list[str]:
    """The pods whose policy has these values; one under another configuration may have reason to refuse them."""
    found = []
    for pod in world.pods.all():
        with suppress(OSError, http.client.HTTPException, ValueError, KeyError):
            if pod.wanted and dict(policy).items() <= _policy_of(pod).items():  # type: ignore[call-overload]
                found.append(pod.name)
    return found


def _policy_of(pod: object) -> dict[str, object]:
    reply = pod.process.request("GET", "/v1/policy", 2.0).json  # type: ignore[attr-defined]
    return dict(reply["policy"])


def heal_all(world: World) -> None:
    """The configuration's own policy, and every topic is there."""
    insist(lambda: _written(world, None), "the policy is taken back")
    for topic in (*world.group.retries, world.group.dlq):
        insist(lambda topic=topic: world.cluster.partitions(topic), f"{topic} is there")


FAULTS: dict[str, Fault] = {
    "partition-add": partition_added,
    "level-partition-add": level_partition_added,
    "records-done-deleted": done_deleted,
    "records-unread-deleted": unread_deleted,
    "level-recreated": level_recreated,
    "dlq-recreated": dlq_recreated,
    "policy-set": policy_set,
}
