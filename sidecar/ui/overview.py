"""What the pages say of a group, as values that the templates show.

Pure, except that `summarize` asks the local copy of the view; `LastAlarms` is used on the event loop.

- *Alarms*, in the head of every page: what is wrong now, from the heartbeats of instances (`group_policy/signs.py` says
  what one heartbeat means), and what operators hold.
- *Summary*, on the first page: states, levels, reasons, topics, minutes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from math import inf
from typing import NamedTuple

from reconsume.sidecar.core.pace.pace import FailureEnd
from reconsume.sidecar.group_policy.blocking import retried_in_place
from reconsume.sidecar.group_policy.signs import TEXTS, Sign, signs_of
from reconsume.sidecar.view.query import DeadLetters, Failures, LevelWaits, Minute, ViewQuery
from reconsume.topics.agreement import SILENT_AFTER
from reconsume.topics.durations import parse_duration, render_duration
from reconsume.topics.events import State
from reconsume.topics.hold_record import HoldRecord
from reconsume.topics.policy_record import SubscriptionRecord

REMEMBERED = 15_000
"""ms for which the alarms that were last asked for are shown before those of now have come."""
MOST_NAMED = 3
"""Instances that are named; of more the number is given."""
MOST_REFUSED = 5
"""Topics that a service rejects which are shown."""
MOST_BLOCKED = 5
"""Records that are retried in place which are shown."""
MOST_HELD = 5
"""Holds that are shown; of more the number is given."""
READY, QUEUE = "ready", "queue"
"""Where a record waits that is in no level: the ready topic, or the queue of its key in an ordered group."""
MOST_REASONS = 8
"""Reasons of dead letters that are shown."""
MOST_TOPICS = 8
"""Topics of which most waits that are shown."""
MINUTES = 60
MINUTE_MS = 60_000


# --- alarms -----------------------------------------------------------------------------------------------------------


class Alarm(NamedTuple):
    """One thing that is wrong. `since`: epoch ms, None if it is not known. `who`: instances, in words.

    `hold`: the id of the hold that it tells of, which whoever may can release here; empty if it tells of none. `at`:
    when the oldest of the heartbeats that say so was written (epoch ms), 0 for a hold. `record`: the id of the record
    that it is about.
    """

    kind: str
    text: str
    since: int | None
    reason: str
    who: str
    hold: str = ""
    text_without_key: str = ""
    """What a reader who may not see keys is told of a hold."""
    at: int = 0
    record: str = ""


def alarms(
    records: Mapping[str, SubscriptionRecord], alive_after: int, end: FailureEnd = FailureEnd.DEAD_LETTER
) -> list[Alarm]:
    """Return what the heartbeats of instances say is wrong, the worst first; the same of several instances is one.

    `records`: the last heartbeat by instance. `alive_after`: epoch ms; an older heartbeat says nothing of now.
    `end`: what becomes of a record that fails again and again.
    """
    signs: dict[tuple[str, str], dict[str, Sign]] = defaultdict(dict)
    for name, record in sorted(records.items()):
        if record.at > alive_after:
            for sign in signs_of(record, end):
                signs[sign.kind, sign.text][name] = sign
    raised = [_alarm(kind, text, by_instance, records) for (kind, text), by_instance in signs.items()]
    refused = [one for one in raised if one.kind == "refused"]
    blocked = sorted((one for one in raised if one.kind == "blocked"), key=lambda one: one.since or 0)
    others = [one for one in raised if one.kind in TEXTS]
    in_order = sorted(others, key=lambda one: list(TEXTS).index(one.kind))
    return [*refused[:MOST_REFUSED], *in_order, *blocked[:MOST_BLOCKED]]


def _alarm(kind: str, text: str, by_instance: Mapping[str, Sign], records: Mapping[str, SubscriptionRecord]) -> Alarm:
    names, more = list(by_instance), len(by_instance) - MOST_NAMED
    who = ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    since = min((sign.since for sign in by_instance.values() if sign.since is not None), default=None)
    said = next((sign for sign in by_instance.values() if sign.reason), next(iter(by_instance.values())))
    reason = ". ".join(filter(None, (said.reason, said.fix)))
    at = min(records[name].at for name in by_instance)
    return Alarm(kind, text, since, reason, who, at=at, record=said.record)


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
        self,
        beats: Mapping[str, SubscriptionRecord],
        holds: Mapping[str, HoldRecord],
        now: int,
        end: FailureEnd = FailureEnd.DEAD_LETTER,
    ) -> list[Alarm]:
        """Return what is wrong and what is held at `now` (epoch ms), and keep it. `end`: as in `alarms`."""
        self._alarms, self._at = [*alarms(beats, now - SILENT_AFTER, end), *held(holds)], now
        return self._alarms

    def change_holds(self, holds: Mapping[str, HoldRecord]) -> None:
        """Show these holds from now on: an operator has begun or released one on the dashboard."""
        if self._alarms is not None:
            self._alarms = [*(one for one in self._alarms if one.kind != "held"), *held(holds)]

    def known(self, now: int) -> list[Alarm] | None:
        """Return the alarms, if they are not too old at `now` (epoch ms); otherwise None."""
        return self._alarms if now - self._at <= REMEMBERED else None


class Attempts(NamedTuple):
    """What the running instances say of deliveries in the last five minutes, together.

    The view has no event of a retry in place, so only this counts it. `reasons`: the most frequent first. `retried`:
    records that are retried in place. `at`: when the oldest of the heartbeats was written (epoch ms).
    """

    attempts: int
    failed: int
    reasons: Sequence[tuple[str, int]]
    retried: int
    at: int


def attempts_told(records: Mapping[str, SubscriptionRecord], alive_after: int) -> Attempts | None:
    """Return what these heartbeats say of deliveries; None if none says anything. `alive_after`: as in `alarms`."""
    alive = [record for record in records.values() if record.at > alive_after and record.sums is not None]
    if not alive:
        return None
    topics = [topic for record in alive if record.sums is not None for topic in record.sums.failures]
    reasons = Counter[str]()
    for topic in topics:
        reasons.update(topic.reasons)
    attempts, failed = sum(topic.attempts for topic in topics), sum(topic.failed for topic in topics)
    oldest = min(record.at for record in alive)
    retried = retried_in_place(records, alive_after).records
    return Attempts(attempts, failed, reasons.most_common(MOST_NAMED), retried, oldest)


# --- the summary of a group -------------------------------------------------------------------------------------------


class Summary(NamedTuple):
    """The overview of a group.

    `levels`: what waits in each level, the shortest first, whether or not the group has committed anything there;
    `idle`: the levels in which nothing waits. `parked`: how many wait for an operator, `unleveled`: of the others, how
    many wait in no level, and `unleveled_name`: what people read for where they wait. `topics`: the topics of which
    most waits, with how many. `minutes`: those of the last hour, which began at `first_minute` (epoch ms).
    """

    counts: dict[str, int]
    levels: list[LevelWaits]
    idle: list[str]
    parked: int
    unleveled: int
    unleveled_name: str
    dead: list[DeadLetters]
    failures: Failures
    topics: list[tuple[str, int]]
    minutes: list[Minute]
    first_minute: int


def summarize(query: ViewQuery, now: int, window: int, delays: Collection[int], *, ordered: bool = False) -> Summary:
    """Build the overview from the view. `window`: ms in which failures count. `delays`: of the group's levels, in ms.
    `ordered`: of an ordered group, whose records wait in queues. Raises sqlite3.Error."""
    first = (now // MINUTE_MS - MINUTES + 1) * MINUTE_MS
    unleveled = QUEUE if ordered else READY
    counts, parked = query.counts(), query.parked()
    levels = sorted(query.levels(now), key=lambda one: _rank(one.level, unleveled))
    busy = {one.level for one in levels}
    return Summary(
        counts={str(state): counts.get(state, 0) for state in State},
        levels=levels,
        idle=[name for name in map(render_duration, sorted(delays)) if name not in busy],
        parked=parked,
        unleveled_name=unleveled,
        unleveled=max(0, counts.get(State.WAITING_RETRY, 0) - parked - sum(one.records for one in levels)),
        dead=query.dead(MOST_REASONS),
        failures=query.failures(now - window, now),
        topics=query.topics(MOST_TOPICS),
        first_minute=first,
        minutes=query.minutes(first, first + MINUTES * MINUTE_MS),
    )


def _rank(level: str | None, unleveled: str) -> tuple[float, str]:
    """Return a level's sort key: its delay and its name. Records without a level, or with an invalid one, come last."""
    try:
        return (inf, unleveled) if level is None else (float(parse_duration(level)), level)
    except ValueError:  # any text is possible: it comes from a topic
        return inf, "other"
