"""Check whether other clients read this group's retry topics, or use its consumer groups.

If they do, it is chance which client gets a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from reconsume.sidecar.doctor.findings import Finding, fail, hidden_topics, listed, not_checked, ok, warn
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import ConsumerGroup, PartitionName
from reconsume.sidecar.printable import plural
from reconsume.topics.acls import GroupShape
from reconsume.topics.removed import removed_role

MOST = 2_000
"""Groups that are looked at. Each costs a request of a millisecond."""
SIDECARS = "-RETRY"
"""The end of the name of the group by which a sidecar reads its level topics."""


def groups(cluster: Cluster, group: GroupShape) -> list[Finding]:
    """Report groups that read topics of this group alone, and members of its own groups that read other topics."""
    if group.broadcast:
        return [ok("a broadcast shares nothing")]
    names = group.names
    every = cluster.group_names()
    others = [name for name in every if name not in (names.group, names.retry_group, names.redrive_group)]
    described = cluster.groups([*others[:MOST], names.group, names.retry_group])
    own = (*group.levels, names.ready)
    waiting, denied = cluster.topics(own)
    partitions = [partition for topic in waiting.values() for partition in topic.led]
    findings = [
        *(
            finding
            for name in others[:MOST]
            if name in described
            for finding in other(cluster, partitions, name, described[name])
        ),
        *strangers(names.retry_group, retry := described.get(names.retry_group), (*own, *removed(group, retry))),
        *strangers(names.group, described.get(names.group), (*group.topics, *relayed(group))),
    ]
    findings += [*neighbours(names.group, others), *hidden_topics(denied)]
    if len(others) > MOST:
        findings.append(not_checked(f"{len(others) - MOST} of {plural(len(others), 'other group')}"))
    if not others:
        return findings or [ok("this user sees no other group")]
    return findings or [
        ok(f"none of {plural(len(others), 'other group')} that this user may see reads this group's topics")
    ]


def neighbours(own: str, others: Iterable[str]) -> Iterator[Finding]:
    """Report groups whose transactional ids this group's rights reach, or the other way round.

    Rights on transactional ids are given by prefix, because an id ends with the name of an instance.
    """
    near = {
        name
        for name in others
        for one, other in ((own, name), (name, own))
        if any(f"{other}-".startswith(f"{one}-{lane}-") for lane in ("main", "retry", "post"))
    }
    # A group has two consumer groups of its own; the main one says it all.
    for name in sorted(near - {f"{name}{SIDECARS}" for name in near}):
        yield warn(
            f"group {name}: the rights of one of {own} and {name} on transactional ids reach the other's",
            "another name for one of the two, without -main-, -retry- or -post-",
        )


def relayed(group: GroupShape) -> tuple[str, ...]:
    """Return what the service of a relay reads in addition to its main topics."""
    return (group.names.ready,) if group.mode == "relay" else ()


def removed(group: GroupShape, described: ConsumerGroup | None) -> Iterator[str]:
    """Yield the topics of members that are levels of main topics that left the configuration: sidecars empty them."""
    for member in () if described is None else described.members:
        yield from (name for name in member.topics if removed_role(group.names, name, group.topics) is not None)


def other(cluster: Cluster, partitions: Sequence[PartitionName], name: str, group: ConsumerGroup) -> Iterator[Finding]:
    """Report what another group reads of this group's retry topics."""
    reads = {topic for member in group.members for topic in member.topics} & {topic for topic, _ in partitions}
    # Members are looked at in every group, progress only in those of sidecars: it takes a client for each group.
    needed = partitions if name.endswith(SIDECARS) and not reads else ()
    kept = {topic for topic, _ in cluster.committed(name, needed)}
    if not reads and not kept:
        return
    verb = "reads" if reads else "has read"
    text = f"group {name} {verb} {listed(reads or kept)}"
    if name.endswith(SIDECARS):
        yield fail(
            f"{text}: the sidecars of two groups share them, and a retry goes to both",
            "give one of the two another group name, or another topic_prefix",
        )
    else:
        yield warn(f"{text}: whatever it does with retries is done twice", "stop it, unless it only looks")


def strangers(name: str, described: ConsumerGroup | None, topics: Iterable[str]) -> Iterator[Finding]:
    """Report members of this group's own consumer groups that read topics of others."""
    known = set(topics)
    for member in () if described is None else described.members:
        foreign = member.topics - known
        if foreign:
            yield fail(
                f"group {name} has a member ({member.client} at {member.host}) that reads {listed(foreign)}",
                f"only this group's instances, all with one configuration, may use the group {name}",
            )
