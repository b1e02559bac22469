"""Check whether all instances of the group consume the same topics, by their heartbeats."""

from __future__ import annotations

from collections.abc import Mapping

from reconsume.sidecar.core.record import Now
from reconsume.sidecar.doctor.checks.policy import NOBODY, UNKNOWN
from reconsume.sidecar.doctor.findings import Finding, fail, listed, not_checked, ok
from reconsume.sidecar.group_policy.state import ControlState, Peers
from reconsume.sidecar.hints import hint
from reconsume.sidecar.printable import plural


def subscriptions(state: ControlState | None, own: Mapping[str, str], now: Now) -> list[Finding]:
    """Report whether all running instances subscribe to what this configuration says."""
    if state is None:
        return [not_checked(UNKNOWN, hint("topics apply"))]
    running = len(state.beats.running(now.wall_ms))
    differing = Peers(NOBODY, own).differing(state.beats, now.wall_ms)
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
