"""Check whether topics that left the configuration still have retries in levels or queues of their own.

Levels of their own they have only with the prefix `{topic}-{group}`, and a running sidecar passes these retries on.
What waits in a queue stays there, and nobody reads it.
"""

from __future__ import annotations

from reconsume.sidecar.doctor.findings import Finding, listed, ok, warn
from reconsume.sidecar.group_policy.levels import leftovers, unowned_queues
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.topics.acls import GroupShape

MEND = "put {topic} back into topics: until its retries are done, or let a running sidecar make dead letters of them"


def removed_topics(cluster: Cluster, group: GroupShape, *, in_order: bool) -> list[Finding]:
    """Report each removed topic whose levels hold retries, and each queue of which partitions hold records unread.

    `in_order`: as in `unowned_queues`.
    """
    if group.broadcast:
        return [ok("a broadcast has no retries")]
    findings = [*_in_levels(cluster, group), *_in_queues(cluster, group, in_order=in_order)]
    return findings or [ok("no topic that left the configuration has retries, of those that this user may see")]


def _in_queues(cluster: Cluster, group: GroupShape, *, in_order: bool) -> list[Finding]:
    text = "up to {} records wait in {}[{}], which nobody reads: {}"
    return [
        warn(text.format(one.waiting, one.name, listed(map(str, one.partitions)), one.because), one.mend)
        for one in unowned_queues(cluster, group.names, group.topics, in_order=in_order)
    ]


def _in_levels(cluster: Cluster, group: GroupShape) -> list[Finding]:
    waiting: dict[str, dict[str, int]] = {}
    for level, count in leftovers(cluster, group.names, group.topics):
        waiting.setdefault(level.topic, {})[level.name] = count
    text = "topic {} left the configuration, and up to {} retries of it wait in {}"
    return [
        warn(text.format(topic, sum(counts.values()), listed(counts)), MEND.format(topic=topic))
        for topic, counts in waiting.items()
    ]
