"""Check what running instances say of themselves: by their heartbeats, and by the `/status` of the one that is here."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from reconsume.sidecar.core.pace.pace import FailureEnd
from reconsume.sidecar.core.record import Now
from reconsume.sidecar.doctor.findings import Finding, fail, listed, not_checked, ok, warn
from reconsume.sidecar.group_policy.queries import live_queries
from reconsume.sidecar.group_policy.signs import Sign, sign_of_refused, signs_of, signs_of_pace
from reconsume.sidecar.group_policy.state import ControlState
from reconsume.sidecar.hints import hint
from reconsume.sidecar.http.sidecar_connection import SidecarConnection
from reconsume.sidecar.http.tokens import read_tokens
from reconsume.sidecar.printable import ago, as_of, plural
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.addresses import Listen
from reconsume.sidecar.settings.policy import failure_end
from reconsume.topics.policy_record import PaceTold, RefusedTold, SubscriptionRecord

ASK_SECONDS = 3.0
LARGEST_STATUS = 16 * 1024 * 1024
"""Bytes of an answer: 10 000 partitions take 3 MB."""
SEE = "see `partitions`, `pace_reason` and `last_error` in its /status"
ODD = (
    "the page 'What your service sees' of the documentation says what each means; `deliver.verdicts: header` reads no "
    "body"
)
JOIN = (
    "INCONSISTENT_GROUP_PROTOCOL: stop the group's other clients, which divide partitions in another way; "
    "INVALID_SESSION_TIMEOUT: bring kafka.session.timeout.ms within the brokers' bounds; "
    "GROUP_MAX_SIZE_REACHED: raise group.max.size on the brokers"
)
MORE_FILES = (
    "raise its limit of open files (ulimit -n, LimitNOFILE, or the container runtime's), or lower deliver.concurrency"
)
RUN = "start an instance"
SAYS: Mapping[str, tuple[Callable[[str, str], Finding], str]] = {
    "refused": (fail, ""),
    "outage": (fail, "look at its service"),
    "throttled": (warn, "look at its service"),
    "waiting": (warn, "start its service, or correct deliver.url and deliver.health_url"),
    "overdue": (warn, SEE),
    "away": (warn, "look at its service, and at `state` in its /status"),
}
"""How severe a sign is by its kind, and what to do."""
CLOCK_WARN_MS, CLOCK_FAIL_MS = 2_000, 10_000
"""ms by which clocks differ: of a warning, since a heartbeat takes some time to be written, and of a failure, the first
delay of the default ladder."""
SYNC = "synchronise the clocks of the pods and of the brokers (NTP)"


def instances(state: ControlState | None, settings: Settings, at: Now) -> list[Finding]:
    """Report instances of the group that stand, and since when. `settings`: those in force."""
    api, end = settings.api, failure_end(settings)
    status = status_of(settings.group, api.listen, api.token_file)
    local = None if status is None else str(status.get("instance"))
    running = {} if state is None else state.beats.running(at.wall_ms)
    findings = [finding for name, beat in running.items() for finding in beating(name, beat.record, at, local, end)]
    if status is not None:
        findings += standing(status, at, end)
    if status is None and not running and (queries := live_queries(state, at.wall_ms)):
        return [ok(f"{listed(query.described for query in queries)} consumes the group")]
    if status is None and not running:
        return [not_checked("no heartbeat of a running instance, and none answers on api.listen here", RUN)]
    where = "no instance answers on api.listen here" if status is None else "the one here is well"
    return findings or [ok(f"none of {plural(len(running), 'heartbeat')} reports an outage, and {where}")]


def clock(state: ControlState | None, at: Now) -> list[Finding]:
    """Report running instances whose clock is not the brokers', by the time at which the last heartbeat was appended.

    A heartbeat that was written late looks as if the clock were behind.
    """
    running = {} if state is None else state.beats.running(at.wall_ms)
    if not running and (queries := live_queries(state, at.wall_ms)):
        return [ok(f"{listed(query.described for query in queries)} consumes the group")]
    if not running:
        return [not_checked("no heartbeat of a running instance", RUN)]
    findings = []
    for name, beat in running.items():
        ahead = beat.record.at - beat.at
        where = "ahead of" if ahead > 0 else "behind"
        text = f"the clock of {name} is {abs(ahead) / 1000:.1f} s {where} the brokers': retries come early or late"
        if abs(ahead) >= CLOCK_WARN_MS:
            findings.append((fail if abs(ahead) >= CLOCK_FAIL_MS else warn)(f"{text} by as much", SYNC))
    return findings or [ok(f"within 2 s of the brokers', at {plural(len(running), 'running instance')}")]


def beating(
    name: str, beat: SubscriptionRecord, at: Now, local: str | None = None, end: FailureEnd = FailureEnd.DEAD_LETTER
) -> Iterator[Finding]:
    """Report what the last heartbeat of a running instance says.

    `local`: the instance whose `/status` is known. That is newer than its heartbeat, and tells of its service.
    """
    age = as_of(at.wall_ms - beat.at)
    signs = (sign for sign in signs_of(beat, end) if name != local or sign.kind == "overdue")
    for finding in judged(name, signs, at.wall_ms):
        yield replace(finding, finding=f"{finding.finding}{age}")


def judged(name: str, signs: Iterable[Sign], wall: int) -> Iterator[Finding]:
    """Yield a finding for each sign of an instance. `wall`: epoch ms. What is blocked the check of lag names."""
    for sign in signs:
        if sign.kind in SAYS:
            say, mend = SAYS[sign.kind]
            lasts = "" if sign.since is None else f", for {ago(max(0, wall - sign.since))}"
            why = f": {sign.reason}" if sign.reason else ""
            yield say(f"{name}: {sign.text[:1].lower()}{sign.text[1:]}{lasts}{why}", sign.fix or mend)


def standing(status: Mapping[str, Any], at: Now, end: FailureEnd = FailureEnd.DEAD_LETTER) -> Iterator[Finding]:
    """Report what the instance here says in its `/status`."""
    name = str(status.get("instance", "the instance here"))
    partitions = status.get("partitions", ())
    stopped = [partition for partition in partitions if partition["refusal"]]
    for partition in stopped[:10]:
        text = f"{name}: nothing of {partition['topic']}[{partition['partition']}] is delivered: {partition['refusal']}"
        yield fail(text, SEE)
    refused = sum(int(partition["refused_copies"]) for partition in partitions)
    if refused and not stopped:
        yield warn(f"{name}: Kafka refuses the copies of {plural(refused, 'record')}, which are tried again", SEE)
    if status.get("refused_by_group"):
        yield fail(f"{name} reads nothing, as its group does not take it: {status['refused_by_group']}", JOIN)
    files = status.get("files", {})
    if files.get("used_up"):
        yield warn(
            f"{name} has {plural(files['open'], 'open file')}, of {files['limit']} allowed: deliveries wait", MORE_FILES
        )
    if status.get("missing_topics"):
        yield fail(f"{name} waits for topics: {listed(status['missing_topics'])}", hint("topics apply"))
    shown = status.get("all_refused", ())
    refused_signs = (sign_of_refused(refused_of(one))._replace(fix=str(one["hint"])) for one in shown)
    yield from judged(name, refused_signs, at.wall_ms)
    odd = {str(kind): int(count) for kind, count in status.get("odd_verdicts", {}).items()}
    if any(odd.values()):
        kinds = listed(f"{kind} ({count})" for kind, count in odd.items() if count)
        yield warn(f"{name}: answers of its service look like verdicts and are none: {kinds}", ODD)
    if status.get("state") == "starting":
        yield warn(f"{name} has not started: {status.get('last_error') or 'it waits for Kafka'}", SEE)
    else:  # before that the service was not asked
        yield from judged(name, signs_of_pace(standing_pace(status, at), end), at.wall_ms)


def refused_of(shown: Mapping[str, Any]) -> RefusedTold:
    """Return an entry of `all_refused` in a `/status` as a heartbeat has it."""
    sent = shown["sent"]
    return RefusedTold(
        topic=str(shown["topic"]),
        status=int(shown["status"]),
        since=int(shown["since"]),
        method=str(sent["method"]),
        path=str(sent["path"]),
        content_type=str(sent["content_type"]),
    )


def standing_pace(status: Mapping[str, Any], at: Now) -> PaceTold:
    """Return the pace in a `/status` as a heartbeat has it."""
    if status.get("waiting_since"):
        return PaceTold("waiting", int(status["waiting_since"]), reason=str(status.get("waiting_reason") or ""))
    since, outage = int(status.get("pace_since", at.wall_ms)), status.get("outage") or {}
    reason, idle_since = str(status.get("pace_reason") or ""), outage.get("idle_since")
    cause = str(outage.get("cause", ""))
    return PaceTold(str(status.get("pace")), since, reason=reason, cause=cause, idle_since=idle_since)


def status_of(group: str, here: Listen, token_file: str | None) -> Mapping[str, Any] | None:
    """Return the `/status` of the group's instance that listens here.

    None if nothing listens, the instance does not let us ask, or it is of another group: the usual port is the same.
    """
    connection = SidecarConnection(here, ASK_SECONDS)
    try:
        tokens = () if token_file is None else read_tokens(Path(token_file)).tokens
        bearer = {"Authorization": f"Bearer {tokens[0].secret.decode('ascii')}"} if tokens else {}
        connection.request("GET", f"/groups/{group}/status", headers={"Host": "localhost", **bearer})
        answer = connection.getresponse()
        status = json.loads(answer.read(LARGEST_STATUS)) if answer.status == 200 else None
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return status if isinstance(status, dict) and status.get("group") == group and "partitions" in status else None
