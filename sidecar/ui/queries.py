"""The pages' queries to Kafka, each a blocking call: instances and lag, the policy, dead letters, a journey.

Every call ends within seconds or raises BrokerError or ContractError. Call them on threads, as the pages do.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

from reconsume.sidecar.clock import wall
from reconsume.sidecar.core.pace.pace import FailureEnd
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.reasons import meaning_of
from reconsume.sidecar.dlq.dead_letters import DeadLetters
from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.group_policy.agreement import group_settings
from reconsume.sidecar.group_policy.control_log import ControlLog, members_of
from reconsume.sidecar.group_policy.operations import HoldStore
from reconsume.sidecar.group_policy.queries import heartbeats_with_queries
from reconsume.sidecar.group_policy.state import Entry
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import PartitionName
from reconsume.sidecar.operation import Report
from reconsume.sidecar.printable import noun_of, plural
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.group_policy import flow, policy_values
from reconsume.sidecar.settings.policy import failure_end
from reconsume.sidecar.ui.progress import Lags, read_lags
from reconsume.sidecar.view.journey import Journey, read_journey
from reconsume.topics.agreement import SILENT_AFTER, LiveSettings
from reconsume.topics.durations import render_duration
from reconsume.topics.hold_record import HoldRecord
from reconsume.topics.ownership import reader_of
from reconsume.topics.policy_record import PolicyRecord, SubscriptionRecord

LONGEST = 30.0
"""Seconds for one scan of a topic; a longer scan is for the command line."""
BURST = 0.005
"""Seconds of work between two pauses: Python lets a thread run for that long while others wait
(sys.getswitchinterval)."""
MOST_EVENTS = 500_000
NOT_HERE = {"token": "", "peer": ""}
"""The token and the address of an action that was not made on this dashboard: the policy topic has neither."""
MOST_CHANGES = 50
"""Changes of the policy that are shown."""


class Instance(NamedTuple):
    """An instance, from its last heartbeat (`beat`) and its membership in the consumer groups.

    `holds`: the partitions that Kafka has assigned to it, by consumer group; `reads`: these in words.
    """

    name: str
    beat: SubscriptionRecord
    alive: bool
    host: str
    holds: frozenset[tuple[str, PartitionName]]
    reads: tuple[str, ...]


class GroupNews(NamedTuple):
    """The last heartbeat of each instance that has not announced a clean stop, and the holds in force, by id.

    `end`: what becomes of a record that fails again and again, by the settings in force.
    """

    beats: Mapping[str, SubscriptionRecord]
    holds: Mapping[str, HoldRecord]
    end: FailureEnd


class UndeliveredTotal(NamedTuple):
    """What main topics hold that is not delivered yet. `records`: offsets, of which some may be markers. `oldest_ms`:
    for how many ms the oldest record that could be delivered has waited, as was said at `at` (epoch ms). `why`: what it
    waits for; empty if that is not known."""

    records: int
    oldest_ms: int
    at: int
    why: str = ""


class Rules(NamedTuple):
    """The policy in force and those still in the topic, the newest first.

    `values`: key, value and origin of each. `agreed`: the settings of instances that apply. `fault`: why the group's
    policy cannot be applied.
    """

    values: list[tuple[str, str, str]]
    record: PolicyRecord | None
    agreed: LiveSettings | None
    history: tuple[Entry, ...]
    fault: str


def reads_of(topics: Set[str], mains: Sequence[str], levels: Mapping[str, int]) -> tuple[str, ...]:
    """Return in words what an instance reads: its main topics, then its levels by their delay, then the others.

    `levels`: the delay (ms) of each level topic of the group.
    """
    own = sorted(topics & levels.keys(), key=lambda topic: (levels[topic], topic))
    words = own
    if len(own) == len(levels) > 1:
        words = [f"all {plural(len(own), 'level')}"]
    elif own and len(set(levels.values())) == len(levels):  # otherwise each main topic has levels of its own
        names = ", ".join(render_duration(levels[topic]) for topic in own)
        words = [f"{noun_of(len(own), 'level')} {names}"]
    others = sorted(topics - levels.keys() - set(mains))
    return (*(topic for topic in mains if topic in topics), *words, *others)


class Queries:
    """The queries of one group. `share`: the part of a processor that one query may use."""

    def __init__(self, settings: Settings, policy: Policy, share: float = 1.0) -> None:
        self.settings, self.policy, self._share = settings, policy, share
        self.cluster = Cluster(settings.kafka)
        self.letters = DeadLetters(self.cluster, policy)
        self._log = ControlLog(self.cluster, settings.names)
        self.hold_store = HoldStore(self.cluster, settings.names)

    def heartbeats(self) -> GroupNews:
        """Return what the policy topic tells of now."""
        state = self._log.read_if_there()
        if state is None:
            return GroupNews({}, {}, failure_end(self.settings))
        governed = group_settings(self.settings, state, wall()).settings
        return GroupNews(heartbeats_with_queries(state), state.holds.in_force(wall()).records, failure_end(governed))

    def instances(self, heartbeats: Mapping[str, SubscriptionRecord]) -> list[Instance]:
        """Return the instances and Spark queries that have sent a heartbeat and have not ended, by these heartbeats."""
        names, now = self.settings.names, wall()
        rows = []
        groups = self.cluster.groups((names.group, names.retry_group))
        mains = self.settings.topic_names
        levels = {names.level(delay, topic): delay for delay in self.settings.delays for topic in mains}
        for name, record in sorted(heartbeats.items()):
            if (query := record.query) is not None:
                silent_after = reader_of(name, record, record.at).counts_for_ms
                reads = (*record.subscription, *(["all levels"] if query.gated else []), names.ready)
                rows.append(Instance(name, record, record.at > now - silent_after, query.host, frozenset(), reads))
                continue
            own = members_of(name, groups)
            holds = frozenset((group, partition) for group, member in own for partition in member.partitions)
            host = own[0][1].host.lstrip("/") if own else ""
            reads = reads_of({topic for _, (topic, _) in holds}, mains, levels)
            rows.append(Instance(name, record, record.at > now - SILENT_AFTER, host, holds, reads))
        return rows

    def lags(self) -> Lags:
        """Return the progress of the group's two consumer groups."""
        return read_lags(self.cluster, self.settings)

    def rules(self) -> Rules:
        """Return the policy and the history of its changes."""
        state, file = self._log.read(), self.settings
        in_force, policies = group_settings(file, state, wall()), state.policies
        fault = "; ".join(in_force.refused) if policies.unread is None else policies.unread.fault
        origins = in_force.origins(file)
        values = [(key, flow(value), str(origins[key])) for key, value in policy_values(in_force.settings).items()]
        history = tuple(reversed(policies.entries[-MOST_CHANGES:]))
        return Rules(values, policies.in_force, in_force.agreed, history, fault)

    def undelivered(self, heartbeats: Mapping[str, SubscriptionRecord]) -> UndeliveredTotal | None:
        """Return how much of the main topics is not delivered yet, by Kafka's offsets, and for how long the oldest
        record has waited, by these heartbeats. None if this user may not see it."""
        rows = [row for row in self.lags().rows if row.group == self.settings.names.group]
        if not rows:
            return None
        now = wall()
        lags = [
            (lag.oldest, beat.sums.at, lag.why)
            for beat in heartbeats.values()
            if beat.at > now - SILENT_AFTER and beat.sums is not None
            for lag in beat.sums.lag
        ]
        records, (oldest_ms, at, why) = sum(row.lag for row in rows), max(lags, default=(0, now, ""))
        # Kafka's offsets are of now: with nothing left to deliver, nothing waits, whatever the last heartbeat said.
        return UndeliveredTotal(records, oldest_ms if records else 0, at, meaning_of(why))

    def changes(self) -> list[dict[str, Any]]:
        """Return who changed the policy, held and released, and ran commands, as rows of the activity page."""
        state = self._log.read()
        policies = [
            {
                **(one.record.policy or {"policy": "withdrawn", "was": one.record.was}),
                **NOT_HERE,
                "at": one.record.at,
                "who": one.record.who,
                "action": "policy",
                "why": one.record.why or "",
            }
            for one in state.policies.entries[-MOST_CHANGES:]
            if one.record is not None
        ]
        history = state.holds.history
        holds = [
            {
                **NOT_HERE,
                "at": hold.since,
                "who": hold.who,
                "action": "hold",
                "hold": ident,
                "what": hold.what,
                "lasts": render_duration(hold.until - hold.since),
                "why": hold.why,
            }
            for ident, hold in history.items()
        ]
        releases = [
            {
                **NOT_HERE,
                "at": hold.released_at,
                "who": hold.released_by,
                "action": "release",
                "hold": ident,
                "what": hold.what,
            }
            for ident, hold in history.items()
            if hold.released
        ]
        actions = [
            {
                **NOT_HERE,
                "at": one.at,
                "who": one.who,
                "action": one.action,
                "what": one.what,
                "why": one.why,
                "records": one.records,
                "error": one.error,
                "end": "" if one.ended else "not known (yet)",
            }
            for one in state.actions.values()
        ]
        return [*policies, *holds, *releases, *actions]

    def journey(self, record: str, since: int | None) -> Journey:
        """Return the events of a record since its first failure (`since`, epoch ms)."""
        progress = self.within(LONGEST)
        return read_journey(self.cluster, self.settings.names, record, since, MOST_EVENTS, progress)

    def within(self, seconds: float) -> Report:
        """Return the function `within`, with the share of this object."""
        return within(seconds, self._share)


def within(seconds: float, share: float = 1.0) -> Report:
    """Return a progress function that raises BrokerError once the scan has taken `seconds`; call it on the scanning
    thread.

    It sleeps after each burst, so that the thread uses at most its `share` of a processor: the same interpreter may be
    delivering records.
    """
    end, begun = time.monotonic() + seconds, time.thread_time()

    def check(_read: int, _of: int) -> None:
        nonlocal begun
        if share < 1 and (spent := time.thread_time() - begun) > BURST:
            time.sleep(spent / share - spent)
            begun = time.thread_time()
        if time.monotonic() > end:
            raise BrokerError(f"it takes longer than {seconds:.0f} s: narrow it down, or ask the command line")

    return check
