"""Check what running instances say of themselves: by their heartbeats, and by the `/status` of the one that is here."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sidecar.core.record import Now
from sidecar.doctor.findings import Finding, ago, fail, listed, ok, warn
from sidecar.group_policy.members import SILENT_AFTER
from sidecar.group_policy.topic import PolicyTopicRecord
from sidecar.http.sidecar_connection import SidecarConnection
from sidecar.http.tokens import read_tokens
from sidecar.settings.addresses import Listen
from topics.policy_record import InstanceHeard

ASK_SECONDS = 3.0
LARGEST_STATUS = 16 * 1024 * 1024
"""Bytes of an answer: 10 000 partitions take 3 MB."""
LATE = 60_000
"""ms by which a retry may be late."""
SEE = "see `partitions`, `pace_reason` and `last_error` in its /status"
ODD = "docs/service.md says what each means; `deliver.verdicts: header` reads no body"
JOIN = (
    "INCONSISTENT_GROUP_PROTOCOL: stop the group's other clients, which divide partitions in another way; "
    "INVALID_SESSION_TIMEOUT: bring kafka.session.timeout.ms within the brokers' bounds; "
    "GROUP_MAX_SIZE_REACHED: raise group.max.size on the brokers"
)
PACES = ("outage", "probing")


def instances(told: Sequence[PolicyTopicRecord] | None, here: Listen, token_file: str | None, at: Now) -> list[Finding]:
    """Report instances that are held up, and since when."""
    findings = [finding for record in told or () for finding in beating(record, at)]
    status = status_of(here, token_file)
    if status is not None:
        findings += standing(status, at)
    where = "no instance answers on api.listen here" if status is None else "the one here is well"
    return findings or [ok(f"no heartbeat tells of an outage, and {where}")]


def beating(record: PolicyTopicRecord, at: Now) -> Iterator[Finding]:
    """Report what an instance's last heartbeat tells."""
    heard = record.heard
    if not isinstance(heard, InstanceHeard) or heard.record is None or heard.record.at <= at.wall - SILENT_AFTER:
        return
    name, pace = heard.instance, heard.record.pace
    if pace is not None and pace.state in PACES:
        why = f": {pace.reason}" if pace.reason else ""
        yield fail(f"{name} delivers nothing, for {ago(at.wall - pace.since)}{why}", "look at its service")
    elif pace is not None and pace.state == "throttled":
        yield warn(f"{name} is slowed down, for {ago(at.wall - pace.since)}: {pace.reason}", "look at its service")
    elif heard.record.well is False:
        text = f"{name} takes no records, or its service is away: its heartbeat says that it does not work"
        yield warn(text, "look at its service, and at `state` in its /status")
    if heard.record.overdue > LATE:
        yield warn(f"{name} has a retry that is {ago(heard.record.overdue)} late", SEE)


def standing(status: Mapping[str, Any], at: Now) -> Iterator[Finding]:
    """Report what the instance here says in its `/status`."""
    name = str(status.get("instance", "the instance here"))
    held = [part for part in status.get("partitions", ()) if str(part.get("state", "")).startswith("held")]
    for part in held[:10]:
        yield fail(f"{name}: {part['topic']}[{part['partition']}] is {part['state']}", SEE)
    refused = sum(int(part.get("held", 0)) for part in status.get("partitions", ()))
    if refused and not held:
        yield warn(f"{name}: Kafka refuses the copies of {refused} records, which are tried again", SEE)
    if status.get("refused_by_group"):
        yield fail(f"{name} reads nothing, as its group does not take it: {status['refused_by_group']}", JOIN)
    if status.get("missing_topics"):
        yield fail(f"{name} waits for topics: {listed(status['missing_topics'])}", "reconsume topics apply")
    if status.get("waiting_since"):
        waits = ago(at.wall - int(status["waiting_since"]))
        text = f"{name} has waited for its service for {waits}: until that listens it takes no partition"
        yield warn(text, "look at its service, and at deliver.url and deliver.health_url")
    odd = {str(kind): int(count) for kind, count in status.get("odd_verdicts", {}).items()}
    if any(odd.values()):
        kinds = listed(f"{kind} ({count})" for kind, count in odd.items() if count)
        yield warn(f"{name}: answers of its service look like verdicts and are none: {kinds}", ODD)
    if status.get("state") == "starting":
        yield warn(f"{name} has not started: {status.get('last_error') or 'it waits for Kafka'}", SEE)
    if str(status.get("pace")) in PACES:
        since = ago(at.wall - int(status.get("pace_since", at.wall)))
        yield fail(f"{name} delivers nothing, for {since}: {status.get('pace_reason') or ''}", "look at its service")


def status_of(place: Listen, token_file: str | None) -> Mapping[str, Any] | None:
    """Return the `/status` of the instance that listens here; None if there is none, or it does not let us ask."""
    connection = SidecarConnection(place, ASK_SECONDS)
    try:
        tokens = () if token_file is None else read_tokens(Path(token_file)).tokens
        bearer = {"Authorization": f"Bearer {tokens[0].secret.decode('ascii')}"} if tokens else {}
        connection.request("GET", "/status", headers={"Host": "localhost", **bearer})
        answer = connection.getresponse()
        found = json.loads(answer.read(LARGEST_STATUS)) if answer.status == 200 else None
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return found if isinstance(found, dict) and "partitions" in found else None
