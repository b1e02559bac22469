"""What the heartbeat of an instance says is wrong, in words for people: the dashboard's alarms, and `doctor`. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from reconsume.sidecar.clock import utc
from reconsume.sidecar.core.pace.pace import FailureEnd, outage_now
from reconsume.sidecar.core.pace.refusals import SAID_ELSEWHERE, hint_of
from reconsume.sidecar.group_policy.blocking import Blocking
from reconsume.topics.policy_record import PaceTold, RefusedTold, SubscriptionRecord

OVERDUE = 60_000
"""ms by which a retry is late at least."""
BLOCKS = 60_000
"""ms for which a record is retried in place before that is a sign."""
TEXTS = {
    "outage": "Outage: now {}",
    "waiting": "Waiting: no records are taken before the service is there",
    "throttled": "Throttled: the service asked for time. Deliveries are slowed down, and no retries are used up",
    "overdue": "Overdue: retries come later than they are due",
    "away": "Not well: outside the group, or the service cannot be reached",
}
"""For each kind of sign of an instance as a whole, the worst first. That of an outage says what is so now."""
PACES = ("outage", "waiting", "throttled")
"""States of a pace that are signs."""


class Sign(NamedTuple):
    """One thing that is wrong. `since`: epoch ms, None if it is not known.

    `fix`: what likely helps; empty if that depends on who reads it. `record`: the id of the record that it is about.
    """

    kind: str
    text: str
    since: int | None
    reason: str = ""
    fix: str = ""
    record: str = ""


def sign_of_refused(one: RefusedTold) -> Sign:
    """Return the sign of a topic whose records a service rejects."""
    sent = " ".join(filter(None, (one.method, one.path, one.content_type)))
    text = f"All refused: the service answers {one.status} to every record of {one.topic}"
    return Sign("refused", text, one.since, f"sent: {sent}", hint_of(one.status, SAID_ELSEWHERE if one.said else ""))


def signs_of_pace(pace: PaceTold | None, end: FailureEnd) -> Iterator[Sign]:
    """Yield the sign of a pace that is not open. `end`: what becomes of a record that fails again and again."""
    if pace is not None and pace.state in PACES:
        now = outage_now(pace.cause, end, is_idle=pace.idle_since is not None)
        idle = "" if pace.idle_since is None else f"no record since {utc(pace.idle_since)}; before that: "
        yield Sign(pace.state, TEXTS[pace.state].format(now), pace.since, idle + pace.reason)


def signs_of(record: SubscriptionRecord, end: FailureEnd) -> Iterator[Sign]:
    """Yield what a heartbeat says is wrong. `end`: as in `signs_of_pace`."""
    yield from map(sign_of_refused, record.all_refused)
    yield from signs_of_pace(record.pace, end)
    if record.overdue >= OVERDUE:
        yield Sign("overdue", TEXTS["overdue"], max(0, record.at - record.overdue))
    for tried in record.in_place:
        if record.at - tried.since >= BLOCKS:
            text, fails = f"Blocked: what follows {tried.id} waits for it", Blocking(tried, record.at).fails(record.at)
            yield Sign("blocked", text, tried.since, fails, record=tried.id)
    if record.well is False and (record.pace is None or record.pace.state not in ("outage", "waiting")):
        yield Sign("away", TEXTS["away"], None)
