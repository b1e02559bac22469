"""Which groups the query serves, and the machine that begins it again when they change.

One query serves all groups, so one group must never end it for the others. A group is *served* if its events topic
and its VIEW topic exist and the questions about it are answered well. Any other group is *left out*: the log says why,
once, and the group is tried again when one of its topics is another one, or RETRY_SECONDS later.

`FollowedGroups` is called by the job's main thread, five times a second. It imports nothing of Spark: a `Work` asks the
brokers and starts queries. Its states are:

- *running*: one query, for `_served`. It is begun again for another set of groups; a batch that is cut off then is
  repeated, which changes nothing.
- *waiting*: no query, as no group can be served now.
- *ended*: the query has died. If that is explained by groups that have changed meanwhile or cannot be asked about any
  more, or if the error names topics of some groups and not of all, it is begun again without those. Otherwise the
  error is the whole job's: `turn` raises JobError, the process ends, and whoever runs the process starts it again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from reconsume.spark.errors import JobError
from reconsume.spark.names import EVENTS_SUFFIX, VIEW_SUFFIX

LOOK_SECONDS = 3.0
"""Seconds between two checks which groups exist."""
DOUBT_SECONDS = 1.0
"""Seconds until the check that confirms that a topic is missing, or another one. Meanwhile a batch may hang on it."""
RETRY_SECONDS = 60.0
"""Seconds after which a group whose topics exist is asked about again, if it was left out."""


class Plan(NamedTuple):
    """The groups whose topics exist, sorted; for each other group a topic that is missing; the ids of the topics that
    are read and written, by name."""

    served: tuple[str, ...]
    lacking: Mapping[str, str]
    ids: Mapping[str, str] = {}

    def of(self, groups: Collection[str]) -> Plan:
        """Return the plan for some of its groups."""
        served = tuple(group for group in self.served if group in groups)
        return Plan(served, {}, {topic: self.ids[topic] for group in served for topic in topics_of(group)})

    def topics(self, suffix: str) -> list[str]:
        """Return the topics of the served groups with this suffix."""
        return [f"{group}{suffix}" for group in self.served]


def topics_of(group: str) -> tuple[str, str]:
    """Return the topics that a group needs."""
    return f"{group}{EVENTS_SUFFIX}", f"{group}{VIEW_SUFFIX}"


def planned(groups: Sequence[str], pattern: str | None, topics: Mapping[str, str]) -> Plan:
    """Return the plan for `groups`, or for the groups that match `pattern` and have an events topic.

    The whole name of a group must match. `topics` are all topics in Kafka, with their ids.
    """
    wanted = groups if pattern is None else matching(pattern, topics)
    lacks = {group: [topic for topic in topics_of(group) if topic not in topics] for group in sorted(wanted)}
    served = tuple(group for group, missing in lacks.items() if not missing)
    lacking = {group: missing[0] for group, missing in lacks.items() if missing}
    return Plan(served, lacking, {topic: topics[topic] for group in served for topic in topics_of(group)})


def matching(pattern: str, topics: Collection[str]) -> list[str]:
    """Return the groups that have an events topic and whose whole name matches."""
    whole = re.compile(pattern)
    groups = (topic.removesuffix(EVENTS_SUFFIX) for topic in topics if topic.endswith(EVENTS_SUFFIX))
    return [group for group in groups if whole.fullmatch(group)]


class RunningQuery(Protocol):
    """A query that was started."""

    def fault(self) -> str | None:
        """Return why the query has ended; None while it runs."""

    def stop(self, *, at_once: bool = False) -> None:
        """Stop the query after its batch, for which some seconds are waited; `at_once`: within it."""


class Work(Protocol):
    """What `FollowedGroups` has done. All methods raise JobError if the brokers do not answer."""

    def look(self) -> Plan:
        """Return the groups that there are now."""

    def ended(self, plan: Plan) -> None:
        """Note that the query has ended, and that these groups are there now."""

    def check(self, plan: Plan) -> Mapping[str, str]:
        """Ask all that a query must know. Return why groups cannot be served, by group."""

    def begin(self, plan: Plan) -> RunningQuery:
        """Start the query for groups that were checked."""


class Absence(NamedTuple):
    """Why a group is left out although its topics exist, and when it is tried again."""

    reason: str
    again_at: float


class FollowedGroups:
    """The query over the groups that can be served. `now`: seconds of a clock that never goes back."""

    def __init__(self, work: Work, now: Callable[[], float], say: Callable[[str], None]) -> None:
        self._work, self._now, self._say = work, now, say
        self._plan, self._served = Plan((), {}), tuple[str, ...]()
        self._absent: dict[str, Absence] = {}
        self._said: dict[str, str] = {}
        self._query: RunningQuery | None = None
        self._look_at = now() + LOOK_SECONDS
        self._doubted: Plan | None = None
        self._is_blind = False

    @property
    def served(self) -> tuple[str, ...]:
        """The groups that are served now."""
        return self._served

    @property
    def left_out(self) -> Mapping[str, str]:
        """Why groups are left out now, by group."""
        lacking = {group: f"there is no topic {topic}" for group, topic in self._plan.lacking.items()}
        return lacking | {group: absence.reason for group, absence in self._absent.items()}

    def begin(self) -> None:
        """Look for the first time. Raises JobError if the brokers do not answer."""
        self._change(self._work.look())

    def turn(self) -> None:
        """Do what is due. Raises JobError if the query has ended by a fault that is not one of some groups."""
        if self._query is not None and (fault := self._query.fault()) is not None:
            self._explain(fault)
        elif self._now() >= self._look_at:
            self._look_at = self._now() + LOOK_SECONDS
            self._follow()

    def stop(self) -> None:
        """Stop the query, and note how far it has come."""
        if self._query is not None:
            self._query.stop()
            self._work.ended(self._plan)

    def _follow(self) -> None:
        try:
            plan = self._work.look()
        except JobError as error:  # the query may still run well
            if not self._is_blind:
                self._say(f"the groups cannot be listed, so the job reads those that it knows: {error}")
            self._is_blind = True
            return
        self._is_blind = False
        if plan != self._plan and self._is_confirmed(plan):
            self._change(plan)
        elif plan == self._plan:
            self._doubted = None
            self._retry()

    def _is_confirmed(self, plan: Plan) -> bool:
        """Whether two checks in a row have found a topic missing, or another one.

        A broker may lag, and a wrong answer would make the query read all of a group again.
        """
        sure = self._plan.ids.items() <= plan.ids.items() or plan == self._doubted
        self._doubted = None if sure else plan
        if not sure:
            self._look_at = self._now() + DOUBT_SECONDS
        return sure

    def _retry(self) -> None:
        """Check groups that were left out; begin again if one of them can be served now."""
        due = [group for group, absence in self._absent.items() if absence.again_at <= self._now()]
        if due:
            try:
                still = self._work.check(self._plan.of(due))
            except JobError as error:  # the query runs well for the others
                still = dict.fromkeys(due, str(error))
            self._leave_out(still)
            if len(still) < len(due):
                self._absent = {group: one for group, one in self._absent.items() if group in still or group not in due}
                self._restart()

    def _change(self, plan: Plan) -> None:
        before, self._plan = self._plan, plan
        changed = {topic for topic in {*before.ids, *plan.ids} if before.ids.get(topic) != plan.ids.get(topic)}
        self._absent = {
            group: absence
            for group, absence in self._absent.items()
            if group in plan.served and changed.isdisjoint(topics_of(group))
        }
        self._say_changes(before)
        if self._query is None or changed:
            self._restart(at_once=not before.ids.items() <= plan.ids.items())  # a batch may hang on what is missing

    def _restart(self, *, at_once: bool = False) -> None:
        """Begin again if other groups, or other topics, are to be served."""
        wanted = self._plan.of([group for group in self._plan.served if group not in self._absent])
        if self._query is not None:
            query, self._query = self._query, None
            query.stop(at_once=at_once)
        self._work.ended(self._plan)
        if wanted.served:
            self._leave_out(self._work.check(wanted))
            wanted = wanted.of([group for group in wanted.served if group not in self._absent])
        self._served = wanted.served
        if wanted.served:
            self._query = self._work.begin(wanted)

    def _leave_out(self, reasons: Mapping[str, str]) -> None:
        again_at = self._now() + RETRY_SECONDS
        self._absent |= {group: Absence(reason, again_at) for group, reason in reasons.items()}
        self._say_left_out()

    def _explain(self, fault: str) -> None:
        """Begin again without the groups that explain a fault. Raises JobError if there are none."""
        self._query, former = None, self._plan
        try:
            plan = self._work.look()
            there = plan.of(self._served)
            bad = self._work.check(there)
        except JobError as error:
            raise JobError(f"the query has ended: {fault}; {error}") from error
        named = [group for group in there.served if names_topic_of(group, fault)]
        if not bad and len(named) < len(there.served):
            bad = dict.fromkeys(named, fault)
        if not bad and plan.ids == former.ids:
            raise JobError(f"the query has ended: {fault}")
        self._say(f"the query is begun again, as it has ended: {fault}")
        self._leave_out(bad)
        self._change(plan)

    def _say_changes(self, before: Plan) -> None:
        for group in sorted({*before.served} - {*self._plan.served} - self._plan.lacking.keys()):
            self._say(f"{group} is no longer read: its topics were deleted")
            self._said.pop(group, None)
        self._say_left_out()

    def _say_left_out(self) -> None:
        """Log each group that is left out for another reason than before, and each that is not left out any more."""
        reasons = self.left_out
        for group, reason in reasons.items():
            if self._said.get(group) != reason:
                self._say(f"{group} is not served: {reason}")
        for group in self._plan.served:
            if group in self._said and group not in reasons:
                self._say(f"{group} can be served now")
        self._said = dict(reasons)


def names_topic_of(group: str, text: str) -> bool:
    """Whether a text names a topic that the group needs."""
    names = "|".join(map(re.escape, topics_of(group)))
    return re.search(rf"(?<![\w.-])(?:{names})(?![\w.-])", text) is not None
