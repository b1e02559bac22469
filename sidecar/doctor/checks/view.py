"""Check whether the view is up to date: by the Spark job, which must have written since the newest event, or by this
group's own readers, which need the events alone.
"""

from __future__ import annotations

from reconsume.sidecar.doctor.findings import Finding, ago, fail, hidden_topics, ok, warn
from reconsume.sidecar.hints import hint
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import Offset, Topic
from reconsume.topics.acls import GroupShape

LATE = 60_000
"""ms. The job writes every second by default, and its restart takes half a minute."""


def start_job() -> str:
    """Return what to do while no Spark job writes the view."""
    return f"start the job: {hint('view run')}; where it runs, see its log"


def dead_view(cluster: Cluster, group: GroupShape) -> list[Finding]:
    """Report how far the view is behind the events."""
    if not group.view:
        return [ok("not used here (view.enabled is false)")]
    names = group.names
    topics, denied = cluster.topics([names.events, *group.rows])
    if denied:
        return hidden_topics(denied)
    if names.events not in topics:
        return [warn(f"{names.events} does not exist", hint("topics apply"))]
    if group.source == "events":
        return [ok("it is made from the events (view.source is events)")]
    if names.view not in topics:
        return [fail(f"{names.view} does not exist, or this user may not see it", hint("topics apply"))]
    event, view = newest(cluster, topics[names.events]), newest(cluster, topics[names.view])
    if event is None:
        return [ok("there are no events yet")]
    return [behind_events(event, view)]


def behind_events(event: int, view: int | None) -> Finding:
    """Compare the times of the newest event and of the job's newest row (epoch ms)."""
    if view is None:
        return fail(
            "there are events, and the view has never been written",
            f"start the job: {hint('view run')}; where it runs, see its log",
        )
    behind = event - view
    if behind <= LATE:
        return ok(f"it is at most {ago(max(behind, 0))} behind the events")
    return fail(
        f"the newest event is {ago(behind)} newer than the view: the answers of views are as old",
        f"start the job: {hint('view run')}; where it runs, see its log",
    )


def newest(cluster: Cluster, topic: Topic) -> int | None:
    """Return the greatest timestamp of a topic's records (epoch ms); None if the topic is empty."""
    offsets = cluster.offsets(topic.led, Offset.NEWEST).values()
    return max((timestamp for _, timestamp in offsets if timestamp >= 0), default=None)
