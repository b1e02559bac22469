"""What an operator must see on every page: outages, throttling, overdue retries, services that are away, and what
another operator holds. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from reconsume.sidecar.core.pace.refusals import hint_of
from reconsume.sidecar.group_policy.heartbeat_reader import SILENT_AFTER
from reconsume.topics.hold_record import HoldRecord
from reconsume.topics.policy_record import SubscriptionRecord

OVERDUE = 60_000
"""ms by which a retry is late at least."""
REMEMBERED = 60_000
"""ms for which the alarms that were last asked for are shown before those of now have come."""
MOST_NAMED = 3
"""Instances that are named; of more the number is given."""
MOST_REFUSED = 5
"""Topics that a service rejects which are shown."""
MOST_HELD = 5
"""Holds that are shown; of more the number is given."""
TEXTS = {
    "outage": "Outage: only probes are delivered",
    "waiting": "Waiting: these instances take no records before their service is there",
    "throttled": "Throttled: the service asked for time. Deliveries are slowed down, and no retries are used up",
    "overdue": "Overdue: retries come later than they are due",
    "away": "Not well: these instances are outside the group, or their service cannot be reached",
}
"""For each kind of alarm, the worst first."""
OUTAGES = {
    "unreachable": "Outage: the service is unreachable. One record at a time probes it, and no retries are used up",
    "failing": "Outage: the service fails everything. One record a second is delivered, and each failure uses up a "
    "retry: records become dead letters when theirs are used up",
    "unwell": "Outage: the health URL does not say that the service is well. Nothing is sent, and no retries are used "
    "up",
}
"""For each cause of an outage."""
REASONED = ("outage", "waiting", "throttled")
"""States of a pace that are alarms, with their reason."""


class Alarm(NamedTuple):
    """One thing that is wrong. `since`: epoch ms, None if it is not known. `who`: instances, in words.

    `hold`: the id of the hold that it tells of, which whoever may can release here; empty if it tells of none.
    """

    kind: str
    text: str
    since: int | None
    reason: str
    who: str
    hold: str = ""
    text_without_key: str = ""
    """What a reader who may not see keys is told of a hold."""


class Sign(NamedTuple):
    """What one heartbeat says is wrong. `since`: epoch ms, None if it is not known."""

    kind: str
    text: str
    since: int | None
    reason: str = ""


def signs_of(record: SubscriptionRecord) -> Iterator[Sign]:
    """Yield what an instance says is wrong."""
    for one in record.all_refused:
        text = f"All refused: the service answers {one.status} to every record of {one.topic}"
        sent = " ".join(filter(None, (one.method, one.path, one.content_type)))
        yield Sign("refused", text, one.since, f"Sent: {sent}. {hint_of(one.status)}")
    pace = record.pace
    if pace is not None and pace.state in REASONED:
        yield Sign(pace.state, OUTAGES.get(pace.cause or "", TEXTS[pace.state]), pace.since, pace.reason)
    if record.overdue >= OVERDUE:
        yield Sign("overdue", TEXTS["overdue"], max(0, record.at - record.overdue))
    if record.well is False and (pace is None or pace.state not in ("outage", "waiting")):
        yield Sign("away", TEXTS["away"], None)


def alarms(records: Mapping[str, SubscriptionRecord], alive_after: int) -> list[Alarm]:
    """Return what the heartbeats of instances say is wrong, the worst first; the same of several instances is one.

    `records`: the last heartbeat by instance. `alive_after`: epoch ms; an older heartbeat says nothing of now.
    """
    signs: dict[tuple[str, str], dict[str, Sign]] = defaultdict(dict)
    for name, record in sorted(records.items()):
        if record.at > alive_after:
            for sign in signs_of(record):
                signs[sign.kind, sign.text][name] = sign
    raised = [_alarm(kind, text, by_instance) for (kind, text), by_instance in signs.items()]
    refused = [one for one in raised if one.kind == "refused"]
    others = [one for one in raised if one.kind != "refused"]
    return [*refused[:MOST_REFUSED], *sorted(others, key=lambda one: list(TEXTS).index(one.kind))]


def _alarm(kind: str, text: str, by_instance: Mapping[str, Sign]) -> Alarm:
    names, more = list(by_instance), len(by_instance) - MOST_NAMED
    who = ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    since = min((sign.since for sign in by_instance.values() if sign.since is not None), default=None)
    return Alarm(kind, text, since, next((sign.reason for sign in by_instance.values() if sign.reason), ""), who)


def held(holds: Mapping[str, HoldRecord]) -> list[Alarm]:
    """Return what operators hold, by id. The texts are those of whoever wrote the records."""
    shown = [
        Alarm(
            "held",
            f"Held: {record.what}, by {record.who}",
            record.since,
            record.why,
            "",
            ident,
            f"Held: {record.what_without_key}, by {record.who}",
        )
        for ident, record in list(holds.items())[:MOST_HELD]
    ]
    more = len(holds) - len(shown)
    return [*shown, *([Alarm("held", f"Held: {more} more", None, "", "")] if more else [])]


class LastAlarms:
    """The alarms as they were last asked for. A page begins with them, as one that comes later moves what a user is
    about to click on; then it asks for those of now."""

    def __init__(self) -> None:
        self._alarms: list[Alarm] | None = None
        self._at = 0

    def raise_alarms(
        self, beats: Mapping[str, SubscriptionRecord], holds: Mapping[str, HoldRecord], now: int
    ) -> list[Alarm]:
        """Return what is wrong and what is held at `now` (epoch ms), and keep it."""
        self._alarms, self._at = [*alarms(beats, now - SILENT_AFTER), *held(holds)], now
        return self._alarms

    def known(self, now: int) -> list[Alarm] | None:
        """Return the alarms, if they are not too old at `now` (epoch ms); otherwise None."""
        return self._alarms if now - self._at <= REMEMBERED else None
