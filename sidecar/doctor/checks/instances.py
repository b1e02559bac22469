"""Check what running instances say of themselves: by their heartbeats, and by the `/status` of the one that is here."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from reconsume.sidecar.core.pace.refusals import hint_of
from reconsume.sidecar.core.record import Now
from reconsume.sidecar.core.status import STOPPED
from reconsume.sidecar.doctor.findings import Finding, ago, fail, listed, not_checked, ok, warn
from reconsume.sidecar.group_policy.state import ControlState
from reconsume.sidecar.hints import hint
from reconsume.sidecar.http.sidecar_connection import SidecarConnection
from reconsume.sidecar.http.tokens import read_tokens
from reconsume.sidecar.printable import plural
from reconsume.sidecar.settings.addresses import Listen
from reconsume.topics.policy_record import RefusedTold, SubscriptionRecord

ASK_SECONDS = 3.0
LARGEST_STATUS = 16 * 1024 * 1024
"""Bytes of an answer: 10 000 partitions take 3 MB."""
LATE = 60_000
"""ms by which a retry may be late."""
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
PACES = ("outage", "probing")
OUTAGES = {
    "unreachable": "now its service is unreachable, so that nothing is delivered",
    "failing": "now one record a second is delivered, and all fail: each failure uses up a retry",
    "unwell": "now its health URL does not say that the service is well, so that nothing is delivered",
}
"""What is so in an outage at present, by its cause. An outage can change its cause, so its duration stands before."""
RUN = "start an instance"
START = "start its service, or correct deliver.url and deliver.health_url"


def instances(state: ControlState | None, group: str, here: Listen, token_file: str | None, at: Now) -> list[Finding]:
    """Report instances of the group that stand, and since when. `here`: where one of them may listen."""
    status = status_of(group, here, token_file)
    local = None if status is None else str(status.get("instance"))
    running = {} if state is None else state.beats.running(at.wall_ms)
    findings = [finding for name, beat in running.items() for finding in beating(name, beat.record, at, local)]
    if status is not None:
        findings += standing(status, at)
    if status is None and not running:
        return [not_checked("no heartbeat of a running instance, and none answers on api.listen here", RUN)]
    where = "no instance answers on api.listen here" if status is None else "the one here is well"
    return findings or [ok(f"none of {plural(len(running), 'heartbeat')} reports an outage, and {where}")]


def beating(name: str, beat: SubscriptionRecord, at: Now, local: str | None = None) -> Iterator[Finding]:
    """Report what the last heartbeat of a running instance says.

    `local`: the instance whose `/status` is known. That is newer than its heartbeat, and tells of its service.
    """
    pace = beat.pace
    if name != local:
        since = 0 if pace is None else at.wall_ms - pace.since
        paced = [] if pace is None else list(slowed(name, pace.state, since, pace.reason, pace.cause or ""))
        if not paced and beat.well is False:
            text = f"{name} takes no records, or its service is away: its heartbeat says that it does not work"
            paced = [warn(text, "look at its service, and at `state` in its /status")]
        yield from paced
        yield from rejecting(name, beat.all_refused, at.wall_ms)
    if beat.overdue > LATE:
        yield warn(f"{name} has a retry that is {ago(beat.overdue)} late", SEE)


def rejecting(name: str, refused: Sequence[RefusedTold], wall: int) -> Iterator[Finding]:
    """Report the topics whose records the service of an instance rejects. `wall`: epoch ms."""
    for one in refused:
        sent = " ".join(filter(None, (one.method, one.path, one.content_type)))
        text = f"{name}: the service answers {one.status} to every record of {one.topic}, for {ago(wall - one.since)}"
        yield fail(f"{text}; sent: {sent}", hint_of(one.status))


def slowed(name: str, pace: str, duration: int, reason: str, cause: str = "") -> Iterator[Finding]:
    """Report a pace that is not open. `duration`: ms for which it has lasted. `cause`: of an outage."""
    said = f": {reason}" if reason else ""
    why = f", for {ago(duration)}{said}"
    if pace in PACES:
        now = OUTAGES.get(cause, "now only probes are delivered")
        yield fail(f"{name} has been in an outage for {ago(duration)}; {now}{said}", "look at its service")
    elif pace == "throttled":
        yield warn(f"{name} is slowed down{why}", "look at its service")
    elif pace == "waiting":
        yield warn(f"{name} takes no records and waits for its service{why}", START)


def standing(status: Mapping[str, Any], at: Now) -> Iterator[Finding]:
    """Report what the instance here says in its `/status`."""
    name = str(status.get("instance", "the instance here"))
    partitions = status.get("partitions", ())
    stopped = [partition for partition in partitions if str(partition["state"]).startswith(STOPPED)]
    for partition in stopped[:10]:
        yield fail(f"{name}: {partition['topic']}[{partition['partition']}] is {partition['state']}", SEE)
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
    yield from rejecting(name, [refused_of(one) for one in status.get("all_refused", ())], at.wall_ms)
    odd = {str(kind): int(count) for kind, count in status.get("odd_verdicts", {}).items()}
    if any(odd.values()):
        kinds = listed(f"{kind} ({count})" for kind, count in odd.items() if count)
        yield warn(f"{name}: answers of its service look like verdicts and are none: {kinds}", ODD)
    if status.get("state") == "starting":
        yield warn(f"{name} has not started: {status.get('last_error') or 'it waits for Kafka'}", SEE)
    else:  # before that the service was not asked
        yield from slowed(name, *standing_pace(status, at))


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


def standing_pace(status: Mapping[str, Any], at: Now) -> tuple[str, int, str, str]:
    """Return the pace in a `/status`, the ms for which it has lasted, why it is not open, and an outage's cause."""
    if status.get("waiting_since"):
        return "waiting", at.wall_ms - int(status["waiting_since"]), str(status.get("waiting_reason") or ""), ""
    since, outage = int(status.get("pace_since", at.wall_ms)), status.get("outage") or {}
    reason, cause = str(status.get("pace_reason") or ""), str(outage.get("cause", ""))
    return str(status.get("pace")), at.wall_ms - since, reason, cause


def status_of(group: str, here: Listen, token_file: str | None) -> Mapping[str, Any] | None:
    """Return the `/status` of the group's instance that listens here.

    None if nothing listens, the instance does not let us ask, or it is of another group: the usual port is the same.
    """
    connection = SidecarConnection(here, ASK_SECONDS)
    try:
        tokens = () if token_file is None else read_tokens(Path(token_file)).tokens
        bearer = {"Authorization": f"Bearer {tokens[0].secret.decode('ascii')}"} if tokens else {}
        connection.request("GET", "/status", headers={"Host": "localhost", **bearer})
        answer = connection.getresponse()
        status = json.loads(answer.read(LARGEST_STATUS)) if answer.status == 200 else None
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return status if isinstance(status, dict) and status.get("group") == group and "partitions" in status else None
