"""Check what the control log says: the settings in force, holds, decisions, and whether all instances agree.

Each check gets what the log says; None if there is no policy topic. `checks/instances.py` and `checks/sums.py` judge
what heartbeats say of instances and of the last minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from reconsume.sidecar.doctor.findings import RIGHTS, Finding, fail, listed, not_checked, ok, unseen, warn
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.group_policy.agreement import InForce, differences_of, group_settings, named
from reconsume.sidecar.group_policy.decisions import DecisionStatus, what_of
from reconsume.sidecar.group_policy.queries import live_queries, reads_of
from reconsume.sidecar.group_policy.state import Beat, ControlState
from reconsume.sidecar.hints import ABSENT, hint
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.printable import ago, plural
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.group_policy import Origin, agreed_values, differences, overridden
from reconsume.sidecar.settings.policy import heartbeat_of
from reconsume.topics.acls import GroupShape
from reconsume.topics.agreement import SettingsRecord, digest_of
from reconsume.topics.durations import render_duration
from reconsume.topics.hold_record import HoldRecord
from reconsume.topics.policy_record import PolicyRecord

HERE = "this configuration"
"""The name of this configuration among the instances with which it is compared."""
SETTLED_WITHIN_MS = 600_000
"""ms after which a decision without a rate that is still open is a warning: has each partition an owner?"""
UNKNOWN = f"the policy topic is {ABSENT}"


def policy(state: ControlState | None, settings: Settings, wall: int) -> list[Finding]:
    """Report whose settings are in force at `wall` (epoch ms), and whether all instances apply them."""
    if state is None:
        return [not_checked(UNKNOWN, hint("topics apply"))]
    record = state.policies.in_force
    findings = [] if record is None else list(judged_policy(record, settings))
    findings += judged_agreement(state, group_settings(settings, state, wall), settings, wall)
    return findings or [ok("none is set, and no instance that runs is followed: each goes by its configuration")]


def judged_agreement(state: ControlState, in_force: InForce, settings: Settings, wall: int) -> Iterator[Finding]:
    """Report the settings of instances that apply, and the instances that do not follow them."""
    if in_force.agreed is not None:
        origins = in_force.origins(settings)
        keys = [key for key, origin in origins.items() if origin is Origin.INSTANCES]
        keys = [one.key for one in differences(settings, in_force.settings) if one.key in keys]
        whose = f"settings {in_force.agreed.digest} of {named(in_force.agreed.instances)} are the newest and apply"
        yield ok(f"{whose}; this configuration has others for {listed(keys)}" if keys else whose)
    newest = next(iter(state.live_settings(wall)), None)
    running = state.beats.running(wall)
    if newest is None or wall - min(running[name].record.started for name in newest.instances) < CONFIRMED_MS:
        return
    lagging = [
        name
        for name, beat in running.items()
        if beat.record.settings and beat.record.obeys is not None and beat.record.obeys.settings != newest.digest
    ]
    if lagging:
        text = f"{listed(lagging)} cannot apply the newest settings, {newest.digest} of {named(newest.instances)}"
        yield fail(text, "look at `policy.settings_refused` in its /status, and at its log (settings-refused)")


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


def decisions(statuses: Sequence[DecisionStatus], wall: int) -> list[Finding]:
    """Report the decisions about waiting records that are open at `wall` (epoch ms). `statuses`: of these."""
    findings = []
    for status in statuses:
        record = status.record
        assert record is not None, "an open decision is in the log"
        finished = f"{status.finished} of {plural(status.partitions, 'partition')} finished"
        settled = f"{plural(status.done, 'record')} settled, {finished}"
        named = f"decision {status.id} of {record.who} ({record.how}: {what_of(record)}), {ago(wall - record.at)}"
        text = f"{named}: {settled}"
        is_old = not record.rate and wall - record.at > SETTLED_WITHIN_MS
        findings.append(warn(text, hint(f"settle --end {status.id}")) if is_old else ok(text))
    return findings or [ok("none is open")]


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


def instances_differ(state: ControlState | None, settings: Settings, wall: int) -> list[Finding]:
    """Report how the running instances, and this configuration, differ from each other at `wall` (epoch ms)."""
    if state is None:
        return [not_checked(UNKNOWN, hint("topics apply"))]
    running = state.beats.running(wall)
    if not running and (queries := live_queries(state, wall)):
        return [ok(f"no instance runs: {', '.join(map(reads_of, queries))}")]
    if not running:
        return [not_checked("no instance runs", "start one")]
    own = {digest_of(agreed_values(settings)): SettingsRecord(agreed_values(settings), 1)}
    here = {HERE: Beat(heartbeat_of(settings), 0, 0, 0)}
    in_force = group_settings(settings, state, wall)
    differing = differences_of({**running, **here}, {**own, **state.settings.records}, in_force)
    mend = "give all instances one configuration; while one is rolled out this passes by itself"
    return [
        (fail if one.origin is None else warn)(f"{one.sentence}, for {ago(wall - one.since)}", mend)
        for one in differing
    ] or [ok(f"{plural(len(running), 'running instance')}, configured as here")]
