"""Check what the control log says: the group's policy, its holds, and whether all instances want the same records.

Each check gets what the log says; None if there is no policy topic. `checks/instances.py` and `checks/sums.py` judge
what heartbeats say of instances and of the last minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from reconsume.sidecar.core.record import Now
from reconsume.sidecar.doctor.findings import RIGHTS, Finding, fail, listed, not_checked, ok, unseen, warn
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.group_policy.state import ControlState, Peers
from reconsume.sidecar.hints import ABSENT, hint
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.printable import ago, plural
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.group_policy import applied, differences, overridden
from reconsume.topics.acls import GroupShape
from reconsume.topics.durations import render_duration
from reconsume.topics.hold_record import HoldRecord
from reconsume.topics.policy_record import PolicyRecord

NOBODY = "?"
"""A name that no instance has, so that all instances are compared."""
UNKNOWN = f"the policy topic is {ABSENT}"


def policy(state: ControlState | None, settings: Settings) -> list[Finding]:
    """Report whether the group's policy can be applied."""
    if state is None:
        return [not_checked(UNKNOWN, hint("topics apply"))]
    record = state.policies.in_force
    if record is None:
        return [ok("none is set: each instance follows its configuration")]
    return list(judged_policy(record, settings))


def judged_policy(record: PolicyRecord, settings: Settings) -> Iterator[Finding]:
    """Report what is wrong with the policy that is set."""
    try:
        theirs = overridden(settings, record.policy)
    except ConfigError as fault:
        for problem in fault.problems:
            text = f"it cannot be applied: {problem}; running instances keep the previous policy"
            yield fail(text, hint("policy set KEY=VALUE"))
        return
    keys = [difference.key for difference in differences(settings, theirs)]
    if keys and settings.policy_mode == "strict":
        text = f"policy_mode is strict, and an instance with this configuration refuses to start: {listed(keys)} differ"
        yield fail(text, f"write the group's values into the configuration: {hint('policy show')}")
    elif keys:
        yield ok(f"the group's values hold for {listed(keys)}")
    else:
        yield ok("as configured here")


def in_force(state: ControlState | None, settings: Settings) -> Settings:
    """Return the settings with the group's policy applied; the settings alone if the policy cannot be applied."""
    record = None if state is None else state.policies.in_force
    return applied(settings, None if record is None else record.policy)  # the check `policy` reports what it cannot be


RETENTION = "retention.ms"
CONFIRMED_MS = 10_000
"""ms after which every running instance has said that it obeys a hold."""
LOOK = "look at `holds_ignored` in its /status, and at its log"


def holds(cluster: Cluster, state: ControlState | None, group: GroupShape, wall: int) -> list[Finding]:
    """Report the holds that are in force at `wall` (epoch ms)."""
    if state is None:
        return [not_checked(UNKNOWN, hint("topics apply"))]
    live = state.holds.in_force(wall).records
    settings = cluster.settings(group.topics) if live else {}
    kept = retentions(settings)
    findings = [finding for ident, record in live.items() for finding in judged_hold(ident, record, kept, wall)]
    findings += disobeyed(state, live, wall)
    if live and (hidden := set(group.topics) - settings.keys()):
        findings.append(unseen(f"how long {listed(hidden)} keeps its records: DESCRIBE_CONFIGS is missing", RIGHTS))
    return findings or [ok("nothing is held")]


def disobeyed(state: ControlState, live: Mapping[str, HoldRecord], wall: int) -> Iterator[Finding]:
    """Report running instances whose heartbeats do not say that they obey a hold that is in force."""
    telling = {name: beat.record.obeys for name, beat in state.beats.running(wall).items() if beat.record.obeys}
    for ident, record in live.items():
        names = [name for name, obeys in telling.items() if ident not in obeys.holds]
        if names and wall - record.since > CONFIRMED_MS:
            yield fail(f"{listed(names)} did not confirm hold {ident}, and may deliver what it holds", LOOK)


def retentions(settings: Mapping[str, Mapping[str, str]]) -> dict[str, int]:
    """Return how long each topic keeps its records (ms); without those that keep them for ever."""
    values = {name: config.get(RETENTION, "") for name, config in settings.items()}
    return {name: int(value) for name, value in values.items() if value.isdecimal()}


def judged_hold(ident: str, record: HoldRecord, kept: Mapping[str, int], wall: int) -> Iterator[Finding]:
    """Report one hold. `kept`: as `retentions` returns it, of the main topics."""
    mend = hint(f"release {ident}")
    rest = render_duration(max(0, record.until - wall) // 1000 * 1000)
    yield warn(
        f"{record.who} has held {record.what} for {ago(wall - record.since)}, {rest} are left: {record.why}", mend
    )
    lasts = record.until - record.since
    for topic, ms in kept.items():
        if record.topic in (None, topic) and record.level in (None, "main") and lasts > ms:
            text = f"{topic} keeps its records for {render_duration(ms)}: what hold {ident} keeps back may be deleted"
            yield warn(text, f"{mend} before, or raise retention.ms of {topic}")


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
