"""Search the topics of a group for records that are not done, newest first, within bounds of memory, bytes and time.

The command line (`find`, `retries list --key`, `retries show --value`) and the dashboard call `find`, on any thread. No
group is joined, and nothing is written.

`Layout` finds out what is searched: the partitions, from where to where, and what is done there. A `SearchedLog` is
one partition, and knows where its search goes on. `Search` reads these logs backwards, in windows that are read
forwards. The logs whose unread records are the newest come next, so what a bound leaves out is the oldest. A search is
a picture of its beginning: the progress is read before the ends of the partitions, so that a record that moves
meanwhile is found where it was, and none is missed.

What cannot be searched is never passed over in silence: each topic or partition that does not exist, has no leader or
does not respond, and each right that is missing, is a sentence in `left_out`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from math import inf
from typing import NamedTuple

import msgspec
from confluent_kafka import Message

from reconsume.sidecar.clock import utc, wall
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.dlq.dead_letters import CLIENT, DeadLetters, newest_spans
from reconsume.sidecar.dlq.dead_letters import Span as DlqSpan
from reconsume.sidecar.dlq.letters import RedriveRequest, read_letter
from reconsume.sidecar.dlq.redrive_history import Copies, RedriveHistory, eligibility
from reconsume.sidecar.errors import BrokerError, ContractError, ReconsumeError
from reconsume.sidecar.find.match import (
    HOLDABLE,
    RETRIES,
    Match,
    Query,
    Where,
    held_text,
    letter_match,
    match_of,
    origin_in,
    state_of,
    tried_in_place,
    undelivered_text,
    where_of,
)
from reconsume.sidecar.group_policy.blocking import Blocking, retried_in_place
from reconsume.sidecar.group_policy.control_log import ControlLog
from reconsume.sidecar.group_policy.queries import progress_with_queries
from reconsume.sidecar.group_policy.state import HoldsInForce
from reconsume.sidecar.kafka.admin.cluster import Cluster, DeniedError
from reconsume.sidecar.kafka.admin.descriptions import (
    Offset,
    PartitionName,
    Span,
    Topic,
    led_partitions,
    unled_partitions,
)
from reconsume.sidecar.kafka.messages import to_record
from reconsume.sidecar.kafka.policy_topic import read_present_resets
from reconsume.sidecar.kafka.scan import Bounds, Fetches, ScanClient, partition_of
from reconsume.sidecar.settings import Settings
from reconsume.topics.agreement import SILENT_AFTER
from reconsume.topics.durations import render_duration
from reconsume.topics.hold_record import HoldRecord
from reconsume.topics.names import Kind, Role
from reconsume.topics.position_ranges import Resets, is_superseded
from reconsume.topics.retry_headers import RetryState

MOST_BYTES = 1024 * 1024 * 1024
"""Bytes of keys, values and headers that a search reads, unless the caller says otherwise."""
LIMIT = 100
"""Matches that a search returns, unless the caller says otherwise."""
MOST_LETTERS = 200_000
"""Dead letters that are compared with each other once one was found: as many as the dashboard looks at."""
PATIENCE = 10.0
"""Seconds without a record after which a partition does not respond."""
AT_ONCE = 8
"""Partitions that are read at once."""
SMALLEST, LARGEST, WINDOW_BYTES = 16, 20_000, 4 * 1024 * 1024
"""Offsets of a window, at least and at most, and the bytes that all windows of a turn should have."""
TOLD_EVERY = 50
"""Records between two reports of the progress."""
LEVELS = {Kind.MAIN: "main", Kind.ORDERED: "ordered", Kind.READY: "ready"}
"""The level of a topic as a hold names it, where it is not a delay. Dead letters have none."""
EVERY_LETTER = RedriveRequest()

Tell = Callable[[int, int], None]
"""Called with the offsets that were read and their total."""
Positions = Mapping[PartitionName, int]
"""The end of what is not searched yet, by partition."""


class ValuesHiddenError(ReconsumeError):
    """A reader who may see no keys and values has searched for some."""


class SearchBounds(NamedTuple):
    """What a search may use. `limit`: matches. `most_bytes`: of keys, values and headers. `deadline`: monotonic
    seconds. `patience`: seconds that a partition may not respond."""

    limit: int = LIMIT
    most_bytes: int = MOST_BYTES
    deadline: float = inf
    patience: float = PATIENCE


class FindResult(NamedTuple):
    """The result of a search: the matches, newest first.

    `left_out`: a sentence for each thing that was not searched or is not shown. `rest`: where the search can go on;
    empty if it is at its end. `records`, `size`: how many records were read, and their bytes.
    """

    matches: list[Match]
    left_out: list[str]
    rest: Positions
    records: int
    size: int


def find(
    settings: Settings,
    policy: Policy,
    query: Query,
    bounds: SearchBounds = SearchBounds(),  # noqa: B008 - it is a constant
    tell: Tell = lambda done, total: None,
    *,
    values: bool,
    whole: bool = False,
    rest: Positions | None = None,
) -> FindResult:
    """Return the newest records that match and are not done.

    `values`: whether the reader may see keys, values and headers. `whole`: keep keys and values whole, and not their
    beginnings. `rest`: go on where an earlier search ended.

    Raises:
        ValuesHiddenError: the query is about keys or values, and this reader may not see them.
        ContractError: the group keeps no progress, so nothing is known to be not done.
        BrokerError: Kafka does not respond at all.
    """
    if not values and query.shows_values:
        raise ValuesHiddenError("keys, values and headers are for readers who have signed in: search for an id")
    if settings.deliver.broadcast:
        raise ContractError("with deliver.broadcast nothing waits, and which records are done is not kept")
    layout = Layout(settings, policy, query, rest)
    matcher = Matcher(policy, query, layout, whole=whole)
    with Search(settings, matcher, layout, bounds, tell) as search:
        search.run()
        result = without_copies(layout.cluster, policy, search.result(), bounds.deadline)
    return result if values else result._replace(matches=[match.without_values() for match in result.matches])


def without_copies(cluster: Cluster, policy: Policy, result: FindResult, deadline: float) -> FindResult:
    """Return the result without dead letters that are copies of one that counts (contract 4.7).

    Only with a dead letter in it, the newest MOST_LETTERS of the DLQ are read for that, until the deadline.
    """
    if not any(match.kind is Kind.DLQ for match in result.matches):
        return result

    def expect_time(_read: int, _of: int) -> None:
        if time.monotonic() > deadline:
            raise BrokerError("there was no time left")

    letters = DeadLetters(cluster, policy, result.left_out.append)
    try:
        layout = letters.layout()
        histories = letters.histories(layout, only_shown=True, dismissals=False)
        known = letters.histories_with_copies(newest_spans(layout, MOST_LETTERS), histories, expect_time)
    except ReconsumeError as fault:
        unsure = f"which dead letters are copies of others is not checked: {fault}"
        return result._replace(left_out=[*result.left_out, unsure])
    copies = {f"{topic}:{number}": history.copies for (topic, number), history in known.items()}
    matches = [
        match
        for match in result.matches
        if match.kind is not Kind.DLQ or match.offset not in copies.get(match.position.rpartition(":")[0], Copies())
    ]
    return result._replace(matches=matches)


# --- what is searched ------------------------------------------------------------------------------------------------


class SearchedLog(msgspec.Struct, gc=False):
    """A partition that is searched: what its records are, and from where to where it is unread.

    `level`: as a hold names it; None for dead letters and what a relay has handed over. `committed`: the offset from
    which on an open transaction may hold records back. `begin` to `unread` is not searched yet. Nothing of that is
    newer than the timestamp `newest`, which is infinite while nothing was read. `dropped`: the highest offset of its
    matches that are not returned because of the limit; −1 if there is none.
    """

    name: PartitionName
    kind: Kind
    level: str | None
    progress: Progress | None
    begin: int
    committed: int
    unread: int
    newest: float = inf
    dropped: int = -1

    def window(self, offsets: int) -> Span:
        """Return what is read next, of at most so many offsets."""
        begin = max(self.begin, self.unread - offsets)
        return Span(max(begin, self.committed) if self.unread > self.committed else begin, self.unread)

    def close(self) -> None:
        """Leave the rest of it unread."""
        self.begin = self.unread


class Layout:
    """What a search reads, and what is known of it. Raises BrokerError.

    `left_out`: sentences about what cannot be searched.
    """

    def __init__(self, settings: Settings, policy: Policy, query: Query, rest: Positions | None) -> None:
        self.left_out: list[str] = []
        self.redrives: Mapping[Partition, RedriveHistory] = {}
        self.holds: Mapping[str, HoldRecord] = {}
        """The holds in force, by id."""
        self.resets: Resets = {}
        """What resets of positions have left."""
        self.tried: Mapping[str, Blocking] = {}
        """The records that instances say they retry in place, by id."""
        self.order = settings.deliver.order
        self._settings, self._query, self._origin = settings, query, origin_in(query.id)
        self.cluster = Cluster(settings.kafka, CLIENT)
        self._roles = self._searched_roles()
        topics = self._topics()
        searched = list(filter(self._may_have, led_partitions(topics.values())))
        progress = {} if query.done else self._progress(searched)
        self._read_redrives(topics, policy)
        self._read_control_log()
        logs = self._logs([partition for partition in searched if partition[0] in self._roles], progress)
        unled = [one for one in unled_partitions(topics.values()) if one[0] in self._roles and self._may_have(one)]
        if unled:
            names = ", ".join(f"{name}[{number}]" for name, number in unled)
            self.left_out.append(f"{names}: not searched, as they have no leader now")
        if rest is not None:
            for log in logs:
                log.unread = min(log.unread, rest.get(log.name, 0))
        self.logs = [log for log in logs if log.unread > log.begin]

    def _searched_roles(self) -> dict[str, Role]:
        """Return the role of each topic to read. A level of an earlier configuration is one, too."""
        names, mains, query = self._settings.names, self._settings.topic_names, self._query
        there = {*self.cluster.topic_names(), *mains}
        wanted = {Kind.READY: names.ready} | ({Kind.DLQ: names.dlq(mains[0])} if not names.per_topic else {})
        for kind, name in wanted.items():
            if kind in query.kinds and name not in there:
                self.left_out.append(f"{name} is not checked: it does not exist, or this user may not see it")
        roles = {name: role for name in there if (role := names.role(name, mains)) is not None}
        return {
            name: role
            for name, role in roles.items()
            if role.kind in query.kinds and (role.topic is None or query.topic in (None, role.topic))
        }

    def _topics(self) -> dict[str, Topic]:
        there, denied = self.cluster.topics(self._roles)
        for name in sorted(self._roles.keys() - there.keys()):
            why = "a right is missing: DESCRIBE" if name in denied else "it does not exist, or this user may not see it"
            self._leave_out(name, why)
        return there

    def _may_have(self, partition: PartitionName) -> bool:
        """Whether a partition may have the record with the wanted id."""
        is_main = partition[0] in self._settings.topic_names
        return self._origin is None or not is_main or partition == self._origin[:2]

    def _leave_out(self, topic: str, why: object) -> None:
        self._roles.pop(topic, None)
        self.left_out.append(f"{topic} is not checked: {why}")

    def _progress(self, searched: Collection[PartitionName]) -> dict[PartitionName, Progress]:
        """Return what the group's two consumer groups and its Spark queries have done. In relay mode the service reads
        the ready topic."""
        names = self._settings.names
        retried = {Kind.LEVEL} if self._settings.deliver.mode == "relay" else {Kind.LEVEL, Kind.READY}
        by_group: dict[str, list[PartitionName]] = {}
        for partition in searched:
            kind = self._roles[partition[0]].kind
            if kind in RETRIES or kind is Kind.MAIN:
                by_group.setdefault(names.retry_group if kind in retried else names.group, []).append(partition)
        progress: dict[PartitionName, Progress] = {}
        for group, partitions in by_group.items():
            try:
                progress |= progress_with_queries(self.cluster, names, group, partitions)
            except DeniedError as denied:
                for topic in sorted({topic for topic, _ in partitions}):
                    self._leave_out(topic, denied)
        return progress

    def _read_redrives(self, topics: Mapping[str, Topic], policy: Policy) -> None:
        """Read which dead letters were redriven or dismissed."""
        dlqs = [name for name in topics if name in self._roles and self._roles[name].kind is Kind.DLQ]
        layout = {
            Partition(*partition): DlqSpan(0, 0, topics[name].id) for name in dlqs for partition in topics[name].led
        }
        if not layout:
            return
        try:
            letters = DeadLetters(self.cluster, policy)
            self.redrives = letters.histories(layout, only_shown=True)
        except ReconsumeError as fault:
            for name in dlqs:
                self._leave_out(name, f"which dead letters were redriven is not known: {fault}")

    def _read_control_log(self) -> None:
        """Read the holds in force, and what is retried in place. Without a policy topic there is neither."""
        try:
            state = ControlLog(self.cluster, self._settings.names).read_if_there()
        except ReconsumeError as fault:
            self.left_out.append(f"whether records are held or retried in place is not known: {fault}")
        else:
            if state is not None:
                self.holds = state.holds.in_force(wall()).records
                self.resets = read_present_resets(self.cluster, self._settings.names)
                self.tried = retried_in_place(state.beats.known(), wall() - SILENT_AFTER).by_id()

    def _logs(self, partitions: list[PartitionName], progress: Mapping[PartitionName, Progress]) -> list[SearchedLog]:
        """Return the logs; where some partitions do not respond, those of the topics that do."""
        with suppress(BrokerError):
            return self._read_logs(partitions, progress)
        logs: list[SearchedLog] = []
        for topic in sorted({topic for topic, _ in partitions}):
            own = [partition for partition in partitions if partition[0] == topic]
            try:
                logs += self._read_logs(own, progress)
            except BrokerError as fault:
                self._leave_out(topic, fault)
        return logs

    def _read_logs(
        self, partitions: list[PartitionName], progress: Mapping[PartitionName, Progress]
    ) -> list[SearchedLog]:
        ends = self.cluster.offsets(partitions, Offset.END)
        everything = self.cluster.spans(partitions, committed=False)
        spans = self.cluster.spans_since(everything, self._query.since, committed=False)
        logs = []
        for name, (begin, end) in spans.items():
            role, done, committed = self._roles[name[0]], progress.get(name), ends[name].offset
            first, last = max(begin, 0 if done is None else done.next), max(end, committed)
            if self._origin is not None and self._origin[:2] == name:
                first, last = max(first, self._origin[2]), min(last, self._origin[2] + 1)
            logs.append(SearchedLog(name, role.kind, self._level_of(role), done, first, committed, last))
        return logs

    def _level_of(self, role: Role) -> str | None:
        """Return the level of a topic as a hold names it."""
        if role.delay is not None:
            return render_duration(role.delay)
        is_handed_over = role.kind is Kind.READY and self._settings.deliver.mode == "relay"
        return None if is_handed_over else LEVELS.get(role.kind)


# --- one record ------------------------------------------------------------------------------------------------------


class Matcher:
    """Says of one record after another whether it is searched for, and what is shown of it."""

    def __init__(self, policy: Policy, query: Query, layout: Layout, *, whole: bool) -> None:
        self._policy, self._query, self._layout, self._whole = policy, query, layout, whole
        self._holds = HoldsInForce(layout.holds).holds

    def match_in(self, log: SearchedLog, record: Record) -> Match | None:
        """Return what is shown of a record; None if it is done, or not searched for."""
        query, is_done = self._query, log.progress is not None and log.progress.covers(record.offset)
        if is_done or not query.fits(record):
            return None
        match = self._letter(log, record) if log.kind is Kind.DLQ else self._waiting(log, record)
        if match is None or query.id not in (None, match.id, match.position) or query.topic not in (None, match.topic):
            return None
        return match

    def _letter(self, log: SearchedLog, record: Record) -> Match | None:
        letter = read_letter(record, self._policy)
        verdict = eligibility(letter, EVERY_LETTER, self._layout.redrives[record.source])
        assert verdict is not None, "the request selects every letter"
        return letter_match(letter, verdict, is_held=record.offset >= log.committed, whole=self._whole)

    def _waiting(self, log: SearchedLog, record: Record) -> Match:
        state = None if log.kind is Kind.MAIN else state_of(record)
        where = where_of(log.kind, state)
        if record.offset >= log.committed:
            where = Where.UNCOMMITTED
        elif state is not None and is_superseded(self._layout.resets, state.id, state.cycle):
            where = Where.SUPERSEDED
        why, head = self._held(log, record, state, where), None
        if where is Where.UNDELIVERED:
            head, tried = tried_in_place(record, self._layout.tried, self._layout.order, wall())
            in_place = self._policy.in_place is not None
            why = "; ".join(filter(None, (why, tried))) or undelivered_text(record.source, in_place=in_place)
        elif log.kind is Kind.ORDERED and state is not None and where in (Where.WAITING, Where.BEHIND):
            own = self._layout.tried.get(state.id)
            if own is not None and own.is_newer_than(0 if state.behind else state.due_at):
                head, why = own.head, "; ".join(filter(None, (why, own.fails_in_queue(wall()))))
        match = match_of(record, log.kind, state, where, why, whole=self._whole)
        return match if head is None else match.tried(head)

    def _held(self, log: SearchedLog, record: Record, state: RetryState | None, where: Where) -> str:
        """Return why a record waits if an operator holds it; empty if nobody does."""
        if log.level is None or where not in HOLDABLE:
            return ""
        topic = record.source.topic if state is None else state.topic
        hold = self._holds.fitting(log.level, topic, record.key)
        if hold is None:
            return ""
        return held_text(where, hold.id, utc(self._layout.holds[hold.id].until))


# --- the search ------------------------------------------------------------------------------------------------------


class Search:
    """One search. A context manager. States: made, run, over. Attributes are complete after `run`."""

    def __init__(self, settings: Settings, matcher: Matcher, layout: Layout, bounds: SearchBounds, tell: Tell) -> None:
        self.records = self.size = 0
        self._settings, self._matcher, self._layout, self._bounds, self._tell = settings, matcher, layout, bounds, tell
        self._clients: dict[tuple[Fetches, bool], ScanClient] = {}
        self._stack = ExitStack()
        self._matches: dict[str, Match] = {}
        """The newest matches, `limit` at most between two turns, by position."""
        self._logs = {log.name: log for log in layout.logs}
        self._total = sum(log.unread - log.begin for log in layout.logs)

    def __enter__(self) -> Search:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self) -> None:
        """Read until all is read, or a bound is reached."""
        while open_logs := [log for log in self._logs.values() if log.unread > log.begin]:
            if stopped := self._bound_reached(open_logs):
                self._layout.left_out.append(stopped)
                return
            self._read_turn(self._windows(open_logs))
            self._drop_beyond_limit()
            self._report()
        if any(log.dropped >= 0 for log in self._logs.values()):
            self._layout.left_out.append(f"the newest {self._bounds.limit} are shown, and there are older ones")

    def result(self) -> FindResult:
        """Return the result."""
        rest = {log.name: log.unread for log in self._logs.values() if log.unread > log.begin}
        rest |= {log.name: log.dropped + 1 for log in self._logs.values() if log.dropped >= 0}
        return FindResult(self._ordered(), self._layout.left_out, rest, self.records, self.size)

    def _bound_reached(self, open_logs: list[SearchedLog]) -> str:
        """Return which bound ends the search, as a sentence; empty if none does."""
        bounds = self._bounds
        if len(self._matches) >= bounds.limit:
            oldest_shown = sorted((match.at for match in self._matches.values()), reverse=True)[bounds.limit - 1]
            if oldest_shown >= max(log.newest for log in open_logs):
                return f"the newest {bounds.limit} are shown, and older records were not searched"
        if self.size >= bounds.most_bytes:
            return f"after {self.size} bytes the older records were not searched"
        if time.monotonic() > bounds.deadline:
            return "the time is over, and the older records were not searched"
        return ""

    def _windows(self, open_logs: list[SearchedLog]) -> dict[PartitionName, Span]:
        """Return what is read next: of the logs whose unread records are the newest."""
        chosen = sorted(open_logs, key=lambda log: -log.newest)[:AT_ONCE]
        bytes_left = max(1, self._bounds.most_bytes - self.size)
        size = max(1, self.size // max(1, self.records))
        fitting = min(WINDOW_BYTES, bytes_left) // (size * len(chosen))
        is_first = any(log.newest == inf for log in chosen)
        offsets = SMALLEST if is_first else max(1, min(LARGEST, fitting))
        return {log.name: log.window(offsets) for log in chosen}

    def _read_turn(self, windows: Mapping[PartitionName, Span]) -> None:
        """Read the windows, those together that one client can read."""
        by_client: dict[tuple[Fetches, bool], dict[PartitionName, Span]] = {}
        for name, span in windows.items():
            log = self._logs[name]
            is_committed = span.begin < log.committed
            fetches = Fetches.LITTLE if log.kind is Kind.MAIN or not is_committed else Fetches.WHOLE
            by_client.setdefault((fetches, is_committed), {})[name] = span
        for (fetches, is_committed), some in by_client.items():
            if (fetches, is_committed) not in self._clients:
                kafka, group = self._settings.kafka, self._settings.names.retry_group
                client = ScanClient(kafka, group, CLIENT, fetches, committed=is_committed)
                self._clients[fetches, is_committed] = self._stack.enter_context(client)
            self._read(self._clients[fetches, is_committed], some)

    def _read(self, client: ScanClient, windows: Mapping[PartitionName, Span]) -> None:
        """Read a window of some logs, and go on below it. What does not respond is left out."""
        scan = client.scan(windows, Bounds(self._bounds.patience, self._bounds.deadline - time.monotonic()))
        oldest: dict[PartitionName, int] = {}
        try:
            for message in scan:
                oldest.setdefault(partition_of(message), message.timestamp()[1])
                self._take_message(message)
                if self.size >= self._bounds.most_bytes and scan.left:
                    return  # the windows are read again where the search goes on
        except DeniedError as denied:
            self._close_denied(windows, str(denied))
            return
        if scan.left and time.monotonic() > self._bounds.deadline:
            return
        for name, span in windows.items():
            log = self._logs[name]
            if name in scan.left:
                where = f"{name[0]}[{name[1]}] is not searched below offset {span.end}"
                self._layout.left_out.append(f"{where}: it does not respond")
                log.close()
            else:
                log.unread = span.begin
                log.newest = min(log.newest, oldest.get(name, inf))

    def _close_denied(self, windows: Mapping[PartitionName, Span], why: str) -> None:
        """Leave out the topics that this user may not read, one of which was in the windows."""
        for topic in sorted({topic for topic, _ in windows}):
            if f"topic {topic} " in f"{why} ":
                self._layout.left_out.append(f"{topic} is not checked: {why}")
                for log in self._logs.values():
                    if log.name[0] == topic:
                        log.close()
                return
        raise BrokerError(why)

    def _take_message(self, message: Message) -> None:
        log = self._logs[partition_of(message)]
        record = to_record(message, Partition(*log.name), 0, None)
        self.records += 1
        self.size += len(record.key or b"") + len(record.value or b"")
        self.size += sum(len(name) + len(value or b"") for name, value in record.headers or ())
        if self.records % TOLD_EVERY == 0:
            self._report()
        if (match := self._matcher.match_in(log, record)) is not None:
            self._matches[match.position] = match

    def _drop_beyond_limit(self) -> None:
        """Keep the newest matches, and note where the others are. A turn has a few thousand at most."""
        if len(self._matches) <= self._bounds.limit:
            return
        for match in self._ordered()[self._bounds.limit :]:
            del self._matches[match.position]
            topic, number, _ = match.position.rsplit(":", 2)
            log = self._logs[topic, int(number)]
            log.dropped = max(log.dropped, match.offset)

    def _ordered(self) -> list[Match]:
        """Return the matches, newest first, and those of a partition by their offsets in any case.

        Producers stamp main topics in any order, and a search goes on below an offset.
        """
        newest: dict[str, int] = {}
        ranks: list[tuple[int, int, Match]] = []
        for match in sorted(self._matches.values(), key=lambda match: match.offset):
            partition = match.position.rpartition(":")[0]
            newest[partition] = max(match.at, newest.get(partition, 0))
            ranks.append((newest[partition], match.offset, match))
        return [match for *_, match in sorted(ranks, key=lambda rank: rank[:2], reverse=True)]

    def _report(self) -> None:
        unread = sum(log.unread - log.begin for log in self._logs.values())
        self._tell(max(self._total - unread, 0), self._total)
