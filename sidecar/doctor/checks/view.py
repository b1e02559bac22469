"""Check whether the view is up to date: Spark must have written to it since the newest event."""

from __future__ import annotations

from sidecar.doctor.findings import Finding, ago, fail, ok, warn
from sidecar.kafka.admin.cluster import Cluster
from sidecar.kafka.admin.descriptions import Offset, Topic
from topics.acls import GroupShape

LATE = 60_000
"""ms. The job writes every second by default, and its restart takes half a minute."""
RUN = "start the job: reconsume view run; where it runs, see its log"


def dead_view(cluster: Cluster, group: GroupShape) -> list[Finding]:
    """Report how far the view is behind the events."""
    if not group.view:
        return [ok("not followed here (view.enabled is false)")]
    names = group.names
    found, _ = cluster.topics([names.events, names.view])
    if names.view not in found:
        return [fail(f"{names.view} does not exist, or this user may not see it", "reconsume topics apply")]
    if names.events not in found:
        return [warn(f"{names.events} does not exist, or this user may not see it", "reconsume topics apply")]
    event, view = newest(cluster, found[names.events]), newest(cluster, found[names.view])
    if event is None:
        return [ok("there are no events yet")]
    if view is None:
        return [fail("there are events, and the view has never been written", RUN)]
    behind = event - view
    if behind > LATE:
        return [fail(f"the newest event is {ago(behind)} newer than the view: the answers of views are as old", RUN)]
    return [ok(f"it is at most {ago(max(behind, 0))} behind the events")]


def newest(cluster: Cluster, topic: Topic) -> int | None:
    """Return the greatest timestamp of a topic's records (epoch ms); None if the topic is empty."""
    found = cluster.offsets(topic.led, Offset.NEWEST).values()
    return max((timestamp for _, timestamp in found if timestamp >= 0), default=None)
