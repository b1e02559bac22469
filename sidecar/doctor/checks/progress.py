"""Find progress that may be lost: offsets that expire because no instance runs, and records that are deleted unread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from reconsume.sidecar.clock import wall
from reconsume.sidecar.doctor.findings import Finding, ago, fail, hidden_topics, ok, warn
from reconsume.sidecar.group_policy.state import ControlState
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import PartitionName
from reconsume.sidecar.printable import plural
from reconsume.topics.acls import GroupShape

DAY_MS = 86_400_000
SHARE = 10
"""The part of a record's retention in which it is near its end: the last tenth."""
START = "start an instance, or reset the group by kafka-consumer-groups.sh if it is not needed any more"
GONE = (
    "it has expired, or the group was deleted: the main topics will be read from `start:`. To go on elsewhere, set its "
    "offsets by kafka-consumer-groups.sh before an instance starts"
)
FASTER = "raise retention.ms of {topic} until the group has caught up"


def progress(cluster: Cluster, group: GroupShape, state: ControlState | None) -> list[Finding]:
    """Report what the group's two consumer groups may lose.

    `state`: what the control log says, where instances say that they run.
    """
    if group.broadcast:
        return [ok("a broadcast keeps no progress")]
    now = wall()
    names = group.names
    findings: list[Finding] = []
    lasting = cluster.offset_retention()
    for name, topics in ((names.group, group.topics), (names.retry_group, (*group.levels, names.ready))):
        described, denied = cluster.topics(topics)
        findings += hidden_topics(denied)
        committed = cluster.committed(name, [partition for topic in described.values() for partition in topic.led])
        if not committed:
            if name == names.group and group.mode != "relay" and has_records(cluster, names.events):
                findings.append(fail(f"{name} has no progress, although its events tell of deliveries", GONE))
            continue
        group_state = cluster.groups([name]).get(name)
        if group_state is not None and not group_state.members:
            findings.append(idle(name, None if state is None else state.beats.last_at, lasting, now))
        findings += behind(cluster, name, committed, now)
    return findings or [ok("no progress is about to expire")]


def has_records(cluster: Cluster, topic: str) -> bool:
    """Return whether a topic exists and has records."""
    described, _ = cluster.topics([topic])
    spans = cluster.spans([partition for topic in described.values() for partition in topic.led])
    return any(begin < end for begin, end in spans.values())


def idle(name: str, since: int | None, lasting: int, now: int) -> Finding:
    """Return the finding for a group without members, whose offsets expire."""
    if since is None:
        return warn(
            f"{name} has no running member; its progress is deleted {ago(lasting)} after the last one left", START
        )
    remaining = since + lasting - now
    text = f"{name} has no running member since about {ago(now - since)}; its progress is deleted "
    if remaining < DAY_MS:
        return fail(text + ("at any time" if remaining <= 0 else f"in {ago(remaining)}"), START)
    return warn(text + f"in {ago(remaining)}", START)


def behind(cluster: Cluster, name: str, committed: Mapping[PartitionName, int], now: int) -> Iterator[Finding]:
    """Report records that were deleted unread, or soon will be."""
    topics, _ = cluster.topics({topic for topic, _ in committed})
    there = {partition for topic in topics.values() for partition in topic.led}
    partitions = [partition for partition in committed if partition in there]
    spans = cluster.spans(partitions)
    retention = {topic: retention_of(config) for topic, config in cluster.settings(topics).items()}
    for partition in partitions:
        topic, number = partition
        offset, (begin, end) = committed[partition], spans[partition]
        if offset < begin:
            text = f"{name}: {plural(begin - offset, 'offset')} of {topic}[{number}] deleted before being read"
            yield fail(text, FASTER.format(topic=topic))
        elif offset < end and (span := retention.get(topic)) is not None:
            near = due_to_go(cluster, partition, now - span + span // SHARE, end) - offset
            if near > 0:
                what = f"at most {plural(near, 'offset')} of {topic}[{number}]"
                text = f"{name}: {what} are deleted unread within {ago(span / SHARE)}"
                yield warn(text, FASTER.format(topic=topic))


def due_to_go(cluster: Cluster, partition: PartitionName, before: int, end: int) -> int:
    """Return the first offset that is not older than `before` (epoch ms)."""
    newer, _ = cluster.offsets([partition], before)[partition]
    return newer if newer >= 0 else end


def retention_of(config: Mapping[str, str]) -> int | None:
    """Return how long a topic keeps a record, in ms; None if for ever."""
    text = config.get("retention.ms", "")
    return int(text) if text.isdecimal() and "delete" in config.get("cleanup.policy", "delete") else None
