"""What the pages ask Kafka for, each a blocking call: instances and lag, the policy, dead letters, a journey.

Every call ends within seconds or raises BrokerError or ContractError. It is for threads; the pages see to that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from sidecar.core.policy import Policy
from sidecar.core.redrive import Filter, Wish
from sidecar.core.roster import SILENT_AFTER
from sidecar.edges.admin import SPECS, Offset
from sidecar.edges.checkup.answers import DeniedError, Place
from sidecar.edges.checkup.cluster import Cluster
from sidecar.edges.checkup.told import read_policy_topic
from sidecar.edges.dlq_find import Found, find, find_id
from sidecar.edges.dlq_topics import DlqTopics
from sidecar.edges.event_scan import Scan, scan_events
from sidecar.edges.policy_store import Entry, PolicyStore, in_force
from sidecar.errors import BrokerError, ConfigError
from sidecar.settings import Settings
from sidecar.settings.group_policy import flow, origins, overridden, policy_values
from topics.policy_record import InstanceHeard, PolicyRecord

LONGEST = 30.0
"""Seconds for one reading of a topic; what takes longer is for the command line."""
MOST_LETTERS = 100
MOST_SCANNED = 200_000
MOST_EVENTS = 500_000


class Instance(NamedTuple):
    """An instance, by its heartbeat on the policy topic (epoch ms) and as a member of the consumer groups."""

    name: str
    at: int
    alive: bool
    subscription: Mapping[str, str]
    host: str
    reads: tuple[str, ...]


class Lag(NamedTuple):
    """What a consumer group has still to do in a topic; `pace`: records a second since the last look, None: unknown."""

    group: str
    topic: str
    partitions: int
    committed: int
    end: int
    pace: float | None

    @property
    def lag(self) -> int:
        """Records between what is committed and the end."""
        return max(0, self.end - self.committed)


class Lags(NamedTuple):
    """The rows, and the topics and groups that this user may not see."""

    rows: tuple[Lag, ...]
    unseen: tuple[str, ...]


class Value(NamedTuple):
    """A value of the policy in force, and where it comes from."""

    key: str
    value: str
    origin: str


class Rules(NamedTuple):
    """The policy in force and those that the topic still has, the newest first; `fault`: why it cannot be taken."""

    values: tuple[Value, ...]
    record: PolicyRecord | None
    history: tuple[Entry, ...]
    fault: str


class Looks:
    """The questions of one group."""

    def __init__(self, settings: Settings, policy: Policy) -> None:
        self.settings, self.policy = settings, policy
        self.letters = DlqTopics(settings.kafka, settings.names, settings.topic_names)
        self._cluster = Cluster(settings.kafka)
        self._before: dict[tuple[str, str], tuple[float, int]] = {}

    def instances(self) -> list[Instance]:
        """All that tell that they live, or have not said that they stop."""
        names, now = self.settings.names, time.time_ns() // 1_000_000
        heard: dict[str, InstanceHeard] = {}
        for told in read_policy_topic(self._cluster, names) or ():
            if isinstance(told.heard, InstanceHeard):
                heard[told.heard.instance] = told.heard
        found = []
        groups = self._cluster.groups((names.group, names.retry_group))
        members = [member for seen in groups.values() for member in seen.members]
        for name, one in sorted(heard.items()):
            if one.record is not None:
                own = [member for member in members if member.client.endswith(f"-{name}")]
                reads = tuple(sorted({topic for member in own for topic in member.topics}))
                alive = one.record.at > now - SILENT_AFTER
                host = own[0].host.lstrip("/") if own else ""
                found.append(Instance(name, one.record.at, alive, one.record.subscription, host, reads))
        return found

    def lags(self) -> Lags:
        """How far the group's two places have come, a row a topic, as far as this user may see."""
        settings, names = self.settings, self.settings.names
        levels = names.levels_of(settings.delays, settings.topic_names)
        rows, unseen = list[Lag](), list[str]()
        for group, topics in ((names.group, settings.topic_names), (names.retry_group, (*levels, names.ready))):
            there, denied = self._cluster.topics(topics)
            unseen += sorted(denied)
            try:
                rows += self._lags(group, topics, [place for topic in there.values() for place in topic.places])
            except DeniedError:
                unseen.append(group)
        return Lags(tuple(rows), tuple(unseen))

    def _lags(self, group: str, topics: Sequence[str], places: Sequence[Place]) -> Iterator[Lag]:
        ends = self._cluster.offsets(places, SPECS[Offset.END]())
        committed = self._cluster.committed(group, places)
        for name in topics:
            own = [place for place in places if place[0] == name and place in committed]
            if own:
                done, end = sum(committed[place] for place in own), sum(ends[place][0] for place in own)
                yield Lag(group, name, len(own), done, end, self._pace(group, name, done))

    def _pace(self, group: str, topic: str, done: int) -> float | None:
        moment, before = time.monotonic(), self._before.get((group, topic))
        if before is None or moment - before[0] >= 2:
            self._before[group, topic] = moment, done
        return None if before is None else max(0.0, (done - before[1]) / max(0.5, moment - before[0]))

    def rules(self) -> Rules:
        """The policy, and who changed it."""
        settings, fault = self.settings, ""
        entries = PolicyStore(settings.kafka, settings.names).entries()
        record = in_force(entries)
        given = {} if record is None else record.policy
        try:
            governed = overridden(settings, given)
        except ConfigError as error:
            governed, given, fault = settings, {}, "; ".join(error.problems)
        whence = origins(settings, given)
        values = tuple(Value(key, flow(value), whence[key]) for key, value in policy_values(governed).items())
        return Rules(values, record, tuple(reversed(entries[-50:])), fault)

    def find(self, asked: Filter) -> Found:
        """The newest dead letters of a filter."""
        return find(self.letters, self.policy, Wish(asked), MOST_LETTERS, MOST_SCANNED, within(LONGEST))

    def letter(self, place: str) -> Found:
        """One dead letter by its place, or all stays of an id."""
        return find_id(self.letters, self.policy, place, MOST_SCANNED, within(LONGEST))

    def journey(self, record: str, since: int | None) -> Scan:
        """The events of a record, since it failed first (epoch ms)."""
        told = within(LONGEST)
        return scan_events(self.settings.kafka, self.settings.names, record, since, MOST_EVENTS, told)


def within(seconds: float) -> Callable[[object, int], None]:
    """Told how far a reading is; ends it with a BrokerError when it has taken so long."""
    end = time.monotonic() + seconds

    def told(_scan: object, _count: int) -> None:
        if time.monotonic() > end:
            raise BrokerError(f"it takes longer than {seconds:.0f} s: narrow it down, or ask the command line")

    return told
