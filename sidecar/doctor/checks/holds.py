"""Check what operators hold: each hold is named, and one that may outlive the records that it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from reconsume.sidecar.doctor.checks.policy import UNKNOWN
from reconsume.sidecar.doctor.findings import RIGHTS, Finding, ago, fail, listed, not_checked, ok, warn
from reconsume.sidecar.group_policy.state import ControlState
from reconsume.sidecar.hints import hint
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.topics.acls import GroupShape
from reconsume.topics.durations import render_duration
from reconsume.topics.hold_record import HoldRecord

RETENTION = "retention.ms"
CONFIRMED_MS = 10_000
"""ms after which every running instance has said that it obeys a hold."""
LOOK = "see `holds` and `holds_ignored` in its /status"


def holds(cluster: Cluster, state: ControlState | None, group: GroupShape, wall: int) -> list[Finding]:
    """Report the holds that are in force at `wall` (epoch ms)."""
    if state is None:
        return [not_checked(UNKNOWN, hint("topics apply"))]
    live = state.holds.in_force(wall).records
    settings = cluster.settings(group.topics) if live else {}
    kept = retentions(settings)
    findings = [finding for ident, record in live.items() for finding in judged(ident, record, kept, wall)]
    findings += disobeyed(state, live, wall)
    if live and (hidden := set(group.topics) - settings.keys()):
        findings.append(
            not_checked(f"how long {listed(hidden)} keeps its records: DESCRIBE_CONFIGS is missing", RIGHTS)
        )
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


def judged(ident: str, record: HoldRecord, kept: Mapping[str, int], wall: int) -> Iterator[Finding]:
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
