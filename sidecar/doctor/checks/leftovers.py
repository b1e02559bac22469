"""Check whether topics that left the configuration still have retries in levels of their own.

This is only possible with the prefix `{topic}-{group}`. A running sidecar passes these retries on.
"""

from __future__ import annotations

from sidecar.doctor.findings import Finding, listed, ok, warn
from sidecar.group_policy.removed_topics import leftovers
from sidecar.kafka.admin.cluster import Cluster
from topics.acls import GroupShape

MEND = "put {topic} back into topics: until its retries are done, or let a running sidecar make dead letters of them"


def removed_topics(cluster: Cluster, group: GroupShape) -> list[Finding]:
    """Report each removed topic whose levels hold retries."""
    if group.broadcast or not group.names.per_topic:
        return [ok("levels belong to no single main topic")]
    waiting: dict[str, dict[str, int]] = {}
    for level, count in leftovers(cluster, group.names, group.topics):
        waiting.setdefault(level.topic, {})[level.name] = count
    text = "topic {} left the configuration, and up to {} retries of it wait in {}"
    findings = [
        warn(text.format(topic, sum(counts.values()), listed(counts)), MEND.format(topic=topic))
        for topic, counts in waiting.items()
    ]
    return findings or [ok("no topic that left the configuration has retries")]
