"""Check whether all instances of the group consume the same topics, by their heartbeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reconsume.sidecar.core.record import Now
from reconsume.sidecar.doctor.checks.policy import NOBODY, UNKNOWN
from reconsume.sidecar.doctor.findings import Finding, fail, listed, not_checked, ok
from reconsume.sidecar.group_policy.heartbeat_reader import SILENT_AFTER, GroupMembers
from reconsume.sidecar.group_policy.topic import PolicyTopicRecord
from reconsume.sidecar.hints import hint
from reconsume.sidecar.printable import plural
from reconsume.topics.policy_record import InstanceHeard


def subscriptions(records: Sequence[PolicyTopicRecord] | None, own: Mapping[str, str], now: Now) -> list[Finding]:
    """Report whether all running instances subscribe to what this configuration says."""
    if records is None:
        return [not_checked(UNKNOWN, hint("topics apply"))]
    members = GroupMembers(NOBODY, own)
    alive: dict[str, bool] = {}
    for record in records:
        if isinstance(heartbeat := record.heard, InstanceHeard):
            members.hear(heartbeat.instance, heartbeat.record, now, live=False)
            alive[heartbeat.instance] = (
                heartbeat.record is not None and heartbeat.record.at > now.wall_ms - SILENT_AFTER
            )
    running = sum(alive.values())
    differing = members.differing(now)
    if differing:
        mend = "give all instances one configuration; while one is rolled out this passes by itself"
        return [
            fail(f"{name} subscribes to {spelled(theirs)}, and this configuration to {spelled(own)}", mend)
            for name, theirs in differing.items()
        ]
    if not running:
        return [not_checked("no instance runs", "start one")]
    return [ok(f"{plural(running, 'running instance')}, with the same topics and tags as here")]


def spelled(subscription: Mapping[str, str]) -> str:
    """Return a subscription in words: `orders, invoices (TagA)`."""
    return listed(topic if tags == "*" else f"{topic} ({tags})" for topic, tags in subscription.items())
