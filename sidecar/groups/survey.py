"""How groups are now, as Kafka and their last heartbeats say it: the rows of `reconsume groups` and of the first page.

Whoever watches a group must not be one of its pods: when all of them are gone, so are their metrics. So nothing here
asks a sidecar. `GroupsSurvey` looks at all groups, each pass within seconds. A command makes one pass. The dashboard
runs it as a thread, which rests for 2 s (`EVERY_S`) between two passes, or for as long as the last one has taken.

Where a figure comes from:

- *members*: the consumer groups. *not delivered*: the ends of the main topics, without what the group has committed as
  done. *waiting*: the same of levels, ready topic and queues. All count offsets, so that they are upper bounds: a
  transaction's marker is an offset too. Partitions in which only markers are left count as 0.
- *the age of the oldest undelivered record*: a partition's first offset that is not done is read once, and until the
  group has moved on. A main record waits since its timestamp, a retry since it was due. One that is parked waits for an
  operator, and has no age.
- *dead letters*: those about which nobody has decided. They are read and counted again when the DLQ, a dismissal or an
  action of an operator says that something has changed; in between, new offsets of the DLQ are added. Of more than
  `MOST_READ_LETTERS` only their offsets are counted.
- *versions, outage, what differs*: the heartbeats of the instances that run. *holds*: the control log.

`GroupWatch` is one group: its clients and what was known of it at the last look. It belongs to one thread at a time; a
fault of one group is a sentence in its row and stops no other. The rows are immutable, and any thread may read `rows`.

Bounds: `discovery.MOST_GROUPS` groups, two idle clients for each, one control log in memory for each, and
`MOST_READ_PARTITIONS` records that are read in one look at a group.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from confluent_kafka import KafkaException, Message

from reconsume.sidecar.clock import wall
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.dlq.dead_letters import DeadLetters, LetterScan
from reconsume.sidecar.dlq.letters import OPEN, Filter, RedriveRequest
from reconsume.sidecar.errors import BrokerError, ConfigError, ContractError, ReconsumeError
from reconsume.sidecar.group_policy.agreement import differences_of, group_settings
from reconsume.sidecar.group_policy.control_log import ControlLog
from reconsume.sidecar.group_policy.queries import live_queries, private_group, take_further
from reconsume.sidecar.group_policy.state import Bounds, ControlState
from reconsume.sidecar.groups.discovery import (
    CLIENT,
    MOST_GROUPS,
    Partitions,
    found_settings,
    groups_among,
    main_topics,
)
from reconsume.sidecar.hints import ABSENT
from reconsume.sidecar.kafka.admin.cluster import Cluster, CommittedOffsets, DeniedError
from reconsume.sidecar.kafka.admin.descriptions import ConsumerGroup, PartitionName, Span
from reconsume.sidecar.kafka.messages import read_headers
from reconsume.sidecar.kafka.scan import Bounds as ScanBounds
from reconsume.sidecar.kafka.scan import Fetches, ScanClient, partition_of
from reconsume.sidecar.printable import printable
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.policy import build_policy
from reconsume.topics.names import Kind, Names
from reconsume.topics.policy_record import PARTITION, SubscriptionRecord
from reconsume.topics.retry_headers import RETRY_DUE_AT
from reconsume.topics.retry_order import PARKED, RETRY_PARKED

EVERY_S = 2.0
"""Seconds from the end of a pass to the next, at least; a pass that takes longer is followed by a rest as long."""
LONGEST_REST_S = 10.0
LISTED_EVERY_S = 10.0
"""Seconds between two lists of all topics: so late a new group is found."""
OLD_AFTER_MS = 30_000
"""ms after which a row says nothing of now, and has no metrics."""
THREADS = 4
"""Groups that are looked at together."""
MOST_READ_PARTITIONS = 64
"""Partitions of which the first record that is not done is read in one look at a group."""
READ_WITHIN_S = 3.0
MOST_READ_LETTERS = 5_000
"""Dead letters of a group that are read, to count those about which nobody has decided."""
LETTERS_AGAIN = 20.0
"""How many times as long as the count of dead letters has taken the next one waits."""
WORST = ("outage", "waiting", "throttled")
"""The states of a pace that are shown, the worst first."""
WAITING_KINDS = (Kind.LEVEL, Kind.READY, Kind.ORDERED)
BOUNDS = Bounds(policies=1, holds=0)

_LOG = logging.getLogger("reconsume.groups")


class Outage(NamedTuple):
    """Why running instances deliver less than they could. `state`: as in a heartbeat; `since`: epoch ms."""

    state: str
    since: int
    reason: str
    instances: int


class Backlog(NamedTuple):
    """What is not done, by Kafka's offsets. A number is None where it is not known.

    `lag`: end minus committed of the main topics. `oldest_ms`: how long the oldest undelivered record has waited.
    `letters_at_most`: whether `dead_letters` counts offsets.
    """

    lag: int | None = None
    not_delivered: int | None = None
    oldest_ms: int | None = None
    waiting: int | None = None
    dead_letters: int | None = None
    letters_at_most: bool = False


class Reported(NamedTuple):
    """What the control log says. `running`: instances by their heartbeats. `differs`: what differs between them, in
    sentences. `heard_at`: when the oldest of the heartbeats was written (epoch ms). `labels`: who it belongs to, by the
    newest of them."""

    running: int = 0
    versions: tuple[str, ...] = ()
    outage: Outage | None = None
    holds: int | None = None
    differs: tuple[str, ...] = ()
    heard_at: int | None = None
    labels: Mapping[str, str] = {}


class GroupRow(NamedTuple):
    """How a group is. `at`: when Kafka was asked (epoch ms). `problem`: why nothing else, or not all, is known.

    `started`: whether an instance ever ran. `members`: None if this user may not see them.
    """

    group: str
    at: int
    problem: str = ""
    started: bool = True
    members: int | None = None
    backlog: Backlog = Backlog()
    reported: Reported = Reported()

    @property
    def state(self) -> str:
        """What is most urgent, in a word or two."""
        if not self.started:
            return "never started"
        outage = self.reported.outage
        if outage is not None and outage.state == "waiting":
            return "waiting"  # such an instance is no member until its service is there
        if self.members == 0:
            return "no member"
        if outage is not None:
            return outage.state
        return "unknown" if self.members is None else "running"


class Head(NamedTuple):
    """The first record of a partition that is not done. `offset`: where progress is. `since`: from when on it could be
    delivered (epoch ms); None if nothing is there, or it waits for an operator. `end`: up to where nothing is there."""

    offset: int
    since: int | None
    end: int


class Letters(NamedTuple):
    """The dead letters about which nobody had decided. `mark`: what the count depends on. `ends`: how far it reached.
    `again_at`: before which they are not counted again (monotonic seconds)."""

    open: int
    mark: object
    ends: int
    again_at: float


class GroupWatch:
    """One group: its clients, its control log as it was read, and what the last look has found. Call `close` once."""

    def __init__(self, base: Settings, group: str, cluster: Cluster) -> None:
        self._base, self._names, self._cluster = base, Names(group), cluster
        self._log = ControlLog(cluster, self._names)
        self._state = ControlState(BOUNDS)
        self._main_offsets = CommittedOffsets(cluster, group)
        self._retry_offsets = CommittedOffsets(cluster, self._names.retry_group)
        self._settings: Settings | None = None
        self._beat_topics: dict[str, str] = {}
        """The main topics by the heartbeats."""
        self._missed: Partitions = {}
        """The topics among which the main topics were looked for."""
        self._kinds: dict[str, Kind] = {}
        self._heads: dict[PartitionName, Head] = {}
        self._letters: Letters | None = None
        self._compared: tuple[int, tuple[str, ...]] = -1, ()
        """What differs between instances, and the end of the control log by which this was found."""

    def close(self) -> None:
        """Close the clients."""
        self._main_offsets.close()
        self._retry_offsets.close()

    def look(self, topics: Partitions) -> GroupRow:
        """Return how the group is. `topics`: all that exist. Never raises for what Kafka or the group's records say."""
        group, at = self._names.group, wall()
        if self._names.policy not in topics:
            return GroupRow(group, at, f"{self._names.policy}: {ABSENT}")
        try:
            return self._look(topics, at)
        except (ReconsumeError, KafkaException) as fault:
            return GroupRow(group, at, printable(str(fault)))

    def _look(self, topics: Partitions, at: int) -> GroupRow:
        names = self._names
        policy = names.policy, PARTITION
        if self._cluster.spans([policy])[policy].end < self._state.next_offset:
            self._state = ControlState(BOUNDS)  # the topic was created again
        self._log.read_on(self._state)
        groups = self._cluster.groups((names.group, names.retry_group))
        row = GroupRow(names.group, at, members=member_count(groups, names), reported=self._reported(at))
        if (settings := self._known_settings(topics)) is None:
            started = self._state.beats.last_at is not None or bool(row.members)
            return row._replace(started=started, problem="" if not started else "its main topics are not known")
        if hidden := sorted({names.group, names.retry_group} - groups.keys()):
            # Asked for their offsets, Kafka would not say so, but let the client wait.
            return row._replace(problem=f"this user may not see the consumer group {' and '.join(hidden)}")
        reported = row.reported._replace(differs=self._differences(settings, at))
        kinds = kinds_of(settings, topics)
        spans = self._cluster.spans(one for name in kinds for one in topics[name])
        progress = self._progress(kinds, topics)
        started = bool(row.members or progress) or self._state.beats.last_at is not None
        lags = {one: lag_of(span, progress.get(one)) for one, span in spans.items() if kinds[one[0]] is not Kind.DLQ}
        behind = {one: (spans[one], progress.get(one)) for one, lag in lags.items() if lag}
        problem = ""
        try:
            self._read_heads(behind, settings, kinds)
        except DeniedError as denied:  # the counts need no right to read
            problem = str(denied)
        lags = {one: 0 if self._is_empty(one, spans[one]) else lag for one, lag in lags.items()}
        ages = [at - head.since for one in lags if (head := self._heads.get(one)) and head.since is not None]
        mains = [one for one in lags if kinds[one[0]] is Kind.MAIN]
        letters = {one: span for one, span in spans.items() if kinds[one[0]] is Kind.DLQ}
        dead_letters, at_most = self._dead_letters(settings, letters)
        backlog = Backlog(
            lag=sum(max(0, spans[one].end - start_of(spans[one], progress.get(one))) for one in mains),
            not_delivered=sum(lags[one] for one in mains),
            oldest_ms=max(0, *ages, 0),
            waiting=sum(lag for one, lag in lags.items() if kinds[one[0]] in WAITING_KINDS),
            dead_letters=dead_letters,
            letters_at_most=at_most,
        )
        return row._replace(problem=printable(problem), started=started, backlog=backlog, reported=reported)

    def _reported(self, now_ms: int) -> Reported:
        """Return what the control log says, but for what differs."""
        state = self._state
        beats = {name: beat.record for name, beat in state.beats.running(now_ms).items()}
        versions = {beat.release.version for beat in beats.values() if beat.release is not None}
        newest = max(beats.values(), key=lambda beat: beat.at, default=None)
        return Reported(
            running=len(beats) + len(live_queries(state, now_ms)),
            versions=tuple(sorted(versions)),
            outage=outage_of(beats.values()),
            holds=len(state.holds.in_force(now_ms).records),
            heard_at=min((beat.at for beat in beats.values()), default=None),
            labels={} if newest is None else newest.labels,
        )

    def _differences(self, settings: Settings, now_ms: int) -> tuple[str, ...]:
        """Return in sentences what differs between running instances; computed again once the log has grown."""
        state = self._state
        if self._compared[0] != state.next_offset:
            beats = state.beats.running(now_ms)
            in_force = group_settings(settings, state, now_ms)
            sentences = [one.sentence for one in differences_of(beats, state.settings.records, in_force)]
            versions = {beat.record.release.version for beat in beats.values() if beat.record.release is not None}
            sentences += [f"versions: {', '.join(sorted(versions))}"] if len(versions) > 1 else []
            self._compared = state.next_offset, tuple(sentences)
        return self._compared[1]

    def _known_settings(self, topics: Partitions) -> Settings | None:
        """Return the settings by the topics; None if the main topics are not known, as where no instance ever ran."""
        beat_topics = main_topics(self._names, self._state, topics, ()) or self._beat_topics
        if (
            self._settings is None
            or beat_topics != self._beat_topics
            or kinds_of(self._settings, topics) != self._kinds
        ):
            if self._settings is None and self._missed is topics and not beat_topics:
                return None  # what was committed is asked for once for each list of topics
            self._beat_topics, self._missed, self._settings = beat_topics, topics, None
            try:
                settings = found_settings(self._base, self._names.group, self._state, topics, self._cluster)
            except (ContractError, ConfigError):
                return None
            self._settings, self._kinds = settings, kinds_of(settings, topics)
            self._heads, self._letters = {}, None
        return self._settings

    def _progress(self, kinds: Mapping[str, Kind], topics: Partitions) -> dict[PartitionName, Progress]:
        """Return the progress of both consumer groups, or of a Spark query that is further.

        The ready topic of a relay is the main group's.
        """
        main = [
            one for name, kind in kinds.items() if kind in (Kind.MAIN, Kind.ORDERED, Kind.READY) for one in topics[name]
        ]
        retry = [one for name, kind in kinds.items() if kind in (Kind.LEVEL, Kind.READY) for one in topics[name]]
        progress = {**self._main_offsets.progress(main), **self._retry_offsets.progress(retry)}
        for query in self._state.readers.queries():
            take_further(progress, self._cluster.progress(private_group(self._names, query), [*main, *retry]))
        return progress

    # --- the oldest record -------------------------------------------------------------------------------------------

    def _is_empty(self, partition: PartitionName, span: Span) -> bool:
        """Return whether the partition is known to have nothing that is not done: only markers of transactions."""
        head = self._heads.get(partition)
        return head is not None and head.since is None and head.end >= span.end

    def _read_heads(
        self,
        behind: Mapping[PartitionName, tuple[Span, Progress | None]],
        settings: Settings,
        kinds: Mapping[str, Kind],
    ) -> None:
        """Read the first record that is not done of each partition with a lag, unless it was read."""
        wanted: dict[PartitionName, Span] = {}
        for partition, (span, progress) in behind.items():
            start, head = start_of(span, progress), self._heads.get(partition)
            if head is None or head.offset != start or (head.end < span.end and head.end > start):
                wanted[partition] = Span(start, span.end)
        self._heads = {one: head for one, head in self._heads.items() if one in behind and one not in wanted}
        first = dict(list(wanted.items())[:MOST_READ_PARTITIONS])
        if not first:
            return
        with ScanClient(self._base.kafka, self._names.retry_group, CLIENT, Fetches.LITTLE) as client:
            scan = client.scan(first, ScanBounds(seconds=READ_WITHIN_S))
            for message in scan:
                partition = partition_of(message)
                since = since_of(message, kinds[partition[0]], delay_of(settings, partition[0]))
                self._heads[partition] = Head(first[partition].begin, since, 0)
                scan.finish(partition)
        for partition, span in first.items():
            if partition not in self._heads and partition not in scan.left:
                self._heads[partition] = Head(span.begin, None, span.end)

    # --- dead letters ------------------------------------------------------------------------------------------------

    def _dead_letters(self, settings: Settings, spans: Mapping[PartitionName, Span]) -> tuple[int | None, bool]:
        """Return how many dead letters are open, and whether that is an upper bound. None: there is no DLQ."""
        if not spans:
            return None, False
        offsets, ends = sum(span.end - span.begin for span in spans.values()), sum(span.end for span in spans.values())
        if not offsets:
            return 0, False
        decisions, actions = self._state.dismissals, self._state.actions
        last = list(actions.items())[-1:]
        mark = tuple(spans.items()), len(decisions), list(decisions)[-1:], last
        known = self._letters
        if known is not None and (known.mark == mark or time.monotonic() < known.again_at):
            return known.open + max(0, ends - known.ends), ends > known.ends
        if offsets > MOST_READ_LETTERS:
            return offsets, True
        began = time.monotonic()
        letters = DeadLetters(self._cluster, build_policy(settings, "groups"))
        with LetterScan(letters, RedriveRequest(Filter()), report_within(READ_WITHIN_S * 3), only_shown=True) as scan:
            count = sum(state in OPEN for _, state in scan)
        took = time.monotonic() - began
        self._letters = Letters(count, mark, ends, time.monotonic() + took * LETTERS_AGAIN)
        return count, False


def report_within(seconds: float) -> Callable[[int, int], None]:
    """Return the report of a scan that raises BrokerError after so many seconds."""
    deadline = time.monotonic() + seconds

    def report(_read: int, _of: int) -> None:
        if time.monotonic() > deadline:
            raise BrokerError(f"the dead letters could not be read within {seconds:.0f} s")

    return report


def kinds_of(settings: Settings, topics: Iterable[str]) -> dict[str, Kind]:
    """Return the kind of each topic that exists and from which a figure comes."""
    mains, wanted = settings.topic_names, (Kind.MAIN, Kind.DLQ, *WAITING_KINDS)
    roles = {name: settings.names.role(name, mains) for name in topics}
    return {name: role.kind for name, role in sorted(roles.items()) if role is not None and role.kind in wanted}


def member_count(groups: Mapping[str, ConsumerGroup], names: Names) -> int | None:
    """Return how many instances are members; None if this user may not see that. An instance is in both groups, unless
    it is a relay's: then the service is in the one and the sidecar in the other."""
    if names.group not in groups:
        return None
    return max(len(group.members) for group in groups.values())


def start_of(span: Span, progress: Progress | None) -> int:
    """Return the first offset of a partition that is not done. Without progress the group begins where it does."""
    return span.begin if progress is None else min(max(span.begin, progress.next), span.end)


def lag_of(span: Span, progress: Progress | None) -> int:
    """Return how many offsets of a partition are not done."""
    start = start_of(span, progress)
    done = 0 if progress is None else sum(start <= offset < span.end for offset in progress.done)
    return max(0, span.end - start - done)


def delay_of(settings: Settings, topic: str) -> int:
    """Return the delay (ms) of a level topic; 0 for others."""
    role = settings.names.role(topic, settings.topic_names)
    return 0 if role is None or role.delay is None else role.delay


def since_of(message: Message, kind: Kind, delay: int) -> int | None:
    """Return from when on a record could be delivered (epoch ms); None if it waits for an operator."""
    written_at = max(0, message.timestamp()[1])
    if kind is Kind.MAIN:
        return written_at
    try:
        headers = dict(read_headers(message) or [])
    except (SystemError, UnicodeDecodeError):
        headers = {}
    if headers.get(RETRY_PARKED) == PARKED:
        return None
    due = headers.get(RETRY_DUE_AT) or b""
    return int(due) if due.isdigit() and len(due) < 16 else written_at + delay


def outage_of(beats: Collection[SubscriptionRecord]) -> Outage | None:
    """Return the worst state of a pace that running instances tell; None if all deliver."""
    paces = [beat.pace for beat in beats if beat.pace is not None]
    for state in WORST:
        if of_state := [pace for pace in paces if pace.state == state]:
            first = min(of_state, key=lambda pace: pace.since)
            return Outage(state, first.since, printable(first.reason), len(of_state))
    return None


class GroupsSurvey(threading.Thread):
    """Looks at all groups of `ui.groups`. As a thread it goes on until `stop`; `look` makes a single pass.

    `base`: the configuration with `ui.groups`. Only the thread, or the only caller of `look`, uses the watches.
    """

    def __init__(self, base: Settings) -> None:
        super().__init__(name="groups", daemon=True)
        self.rows: tuple[GroupRow, ...] | None = None
        """The groups by name; None before the first pass has ended."""
        self.problem = ""
        """Why the groups are not known now; empty if they are."""
        self._base = base
        self._cluster = Cluster(base.kafka, CLIENT)
        self._watches: dict[str, GroupWatch] = {}
        self._topics: Partitions = {}
        self._listed_at = -LISTED_EVERY_S
        self._stopping = threading.Event()

    def stop(self) -> None:
        """End within seconds. Returns at once."""
        self._stopping.set()

    def run(self) -> None:
        """Look again and again, whatever happens."""
        try:
            while not self._stopping.is_set():
                began = time.monotonic()
                try:
                    self.look()
                except ReconsumeError as fault:
                    self.problem = printable(str(fault))
                except Exception:  # noqa: BLE001 - the page says that the rows are old
                    _LOG.exception("the groups cannot be looked at", extra={"event": "fault"})
                self._stopping.wait(min(max(EVERY_S, time.monotonic() - began), LONGEST_REST_S))
        finally:
            self.close()

    def close(self) -> None:
        """Close all clients."""
        for group_watch in self._watches.values():
            group_watch.close()
        self._watches = {}

    def look(self) -> tuple[GroupRow, ...]:
        """Look at all groups once, and return the rows. Raises BrokerError if Kafka does not list its topics."""
        if time.monotonic() >= self._listed_at + LISTED_EVERY_S:
            self._topics = self._cluster.partitions_by_topic()
            self._listed_at = time.monotonic()
        every = groups_among(self._topics, self._base.ui.groups)
        names, beyond = every[:MOST_GROUPS], len(every) - MOST_GROUPS
        for name in self._watches.keys() - set(names):
            self._watches.pop(name).close()
        for name in names:
            if name not in self._watches:
                self._watches[name] = GroupWatch(self._base, name, self._cluster)
        with ThreadPoolExecutor(THREADS, "groups-look") as pool:
            rows = tuple(pool.map(lambda name: self._watches[name].look(self._topics), names))
        self.problem = f"only the first {MOST_GROUPS} groups are shown, of {len(every)}" if beyond > 0 else ""
        self.rows = rows
        return rows

    def current(self) -> tuple[GroupRow, ...]:
        """Return the rows that say how the groups are now. An old row is none of them."""
        return tuple(row for row in self.rows or () if row.at > wall() - OLD_AFTER_MS)
