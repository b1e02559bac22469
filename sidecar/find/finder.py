"""Search the topics of a group for records that are not done, newest first, within bounds of memory, bytes and time.

The command line (`find`, `retries list --key`, `retries show --value`) and the dashboard call `find`, on any thread. No
group is joined, and nothing is written.

Each partition is read backwards, in windows that are read forwards. The partitions whose unread records are the newest
come next, so what a bound leaves out is the oldest. A search is a picture of its beginning: the progress is read before
the ends of the partitions, so that a record that moves meanwhile is found where it was, and none is missed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import NamedTuple

from confluent_kafka import Consumer, Message, TopicPartition

from reconsume.sidecar.clock import utc
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.dlq.dead_letters import CLIENT, QUIET, DeadLetters, newest_spans
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
    where_of,
)
from reconsume.sidecar.group_policy.operations import HoldStore
from reconsume.sidecar.group_policy.state import HoldsInForce
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.connection import DeniedError
from reconsume.sidecar.kafka.admin.descriptions import Offset, PartitionName, Span, Topic, unled_partitions
from reconsume.sidecar.kafka.client_config import reader_config, whole_fetches
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.messages import to_record
from reconsume.sidecar.kafka.range_reader import RangeReader, partition_of
from reconsume.sidecar.settings import Settings
from reconsume.topics.durations import render_duration
from reconsume.topics.hold_record import HoldRecord
from reconsume.topics.names import Kind
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

Tell = Callable[[int, int], None]
"""Called with the offsets that were read and their total."""
Positions = Mapping[PartitionName, int]
"""The end of what is not searched yet, by partition."""


class ValuesHiddenError(ReconsumeError):
    """A reader who may see no keys and values has searched for some."""


class Bounds(NamedTuple):
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
    bounds: Bounds = Bounds(),  # noqa: B008 - it is a constant
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
    layout = Layout(settings, policy, query)
    with Search(settings, policy, query, bounds, tell, layout, whole=whole) as search:
        search.run(rest)
        result = without_copies(settings.kafka, policy, search.result(), bounds.deadline)
    return result if values else result._replace(matches=[match.without_values() for match in result.matches])


def without_copies(kafka: Mapping[str, str], policy: Policy, result: FindResult, deadline: float) -> FindResult:
    """Return the result without dead letters that are copies of one that counts (contract 4.7).

    Only with a dead letter in it, the newest MOST_LETTERS of the DLQ are read for that, until the deadline.
    """
    if not any(match.kind is Kind.DLQ for match in result.matches):
        return result

    def expect_time(_read: int, _of: int) -> None:
        if time.monotonic() > deadline:
            raise BrokerError("there was no time left")

    letters = DeadLetters(kafka, policy, result.left_out.append)
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


def main_record(settings: Settings, ident: str) -> Record | None:
    """Return the record with this id from its main topic, done or not; None if the topic does not have it any more.

    Raises BrokerError.
    """
    origin = origin_in(ident)
    if origin is None or origin[0] not in settings.topic_names:
        return None
    topic, number, offset = origin
    cluster = Cluster(settings.kafka, CLIENT)
    partition = (topic, number)
    there = cluster.existing([topic]).get(topic)
    if there is None or partition not in there.led:
        return None
    span = cluster.spans([partition])[partition]
    if not span.begin <= offset < span.end:
        return None
    consumer = make_client(Consumer, _config(settings))
    try:
        reader = RangeReader(consumer, {partition: Span(offset, offset + 1)})
        for message in reader.records(PATIENCE):
            return to_record(message, Partition(*partition), 0, None)
        reader.expect_all(f"the record {ident}", PATIENCE)
        return None
    finally:
        consumer.close()


def _config(settings: Settings) -> dict[str, object]:
    return {
        **reader_config(settings.kafka, settings.names.retry_group, CLIENT),
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 50,
        **QUIET,
    }


class Layout:
    """The partitions that a search reads: from where to where, and what is done there. Raises BrokerError.

    `left_out`: sentences about what cannot be searched.
    """

    def __init__(self, settings: Settings, policy: Policy, query: Query) -> None:
        self.left_out: list[str] = []
        self.kinds: dict[str, Kind] = {}
        self.progress: dict[PartitionName, Progress] = {}
        self.redrives: Mapping[Partition, RedriveHistory] = {}
        self.holds: Mapping[str, HoldRecord] = {}
        """The holds in force, by id."""
        self.levels: dict[str, str] = {}
        """The level of each topic as a hold names it. Dead letters, and what a relay has handed over, have none."""
        self.begins: dict[PartitionName, int] = {}
        self.committed: dict[PartitionName, int] = {}
        """The offset from which on an open transaction may hold records back."""
        self.ends: dict[PartitionName, int] = {}
        self._settings, self._query = settings, query
        self._cluster = Cluster(settings.kafka, CLIENT)
        topics = self._topics()
        searched = [partition for topic in topics.values() for partition in topic.led if self._may_have(partition)]
        self._read_progress(topics, searched)
        if any(kind is Kind.DLQ for kind in self.kinds.values()):
            self._read_redrives(topics, policy)
        self._read_holds()
        known = [partition for partition in searched if partition[0] in self.kinds]
        for some in self._answering(known):
            self._read_marks(some)
        self._name_unled(topics)

    # --- which topics ------------------------------------------------------------------------------------------------

    def _topics(self) -> dict[str, Topic]:
        """Return the topics to read. A level of an earlier configuration is one, too."""
        settings, names = self._settings, self._settings.names
        mains = settings.topic_names
        roles = {name: names.role(name, mains) for name in (*self._cluster.topic_names(), *mains)}
        self.kinds = {
            name: role.kind
            for name, role in roles.items()
            if role is not None and role.kind in self._query.kinds and self._concerns(role.topic)
        }
        relay = settings.deliver.mode == "relay"
        words = {Kind.MAIN: "main", Kind.ORDERED: "ordered", **({} if relay else {Kind.READY: "ready"})}
        for name, kind in self.kinds.items():
            role = roles[name]
            if role is not None and role.delay is not None:
                self.levels[name] = render_duration(role.delay)
            elif kind in words:
                self.levels[name] = words[kind]
        there, denied = self._cluster.topics(self.kinds)
        for name in sorted(self.kinds.keys() - there.keys()):
            why = "a right is missing: DESCRIBE" if name in denied else "it does not exist, or this user may not see it"
            self._leave_out(name, why)
        wanted = {Kind.READY: names.ready} | ({Kind.DLQ: names.dlq(mains[0])} if not names.per_topic else {})
        for kind, name in wanted.items():
            if kind in self._query.kinds and name not in roles:
                self.left_out.append(f"{name} is not checked: it does not exist, or this user may not see it")
        return there

    def _concerns(self, main: str | None) -> bool:
        """Whether a topic may have records of the wanted main topic. `main`: the only one that it has, if any."""
        return main is None or self._query.topic in (None, main)

    def _may_have(self, partition: PartitionName) -> bool:
        """Whether a partition may have the record with the wanted id."""
        origin = origin_in(self._query.id)
        is_main = self.kinds.get(partition[0]) is Kind.MAIN
        return origin is None or not is_main or partition == origin[:2]

    def _leave_out(self, topic: str, why: str) -> None:
        self.kinds.pop(topic, None)
        self.left_out.append(f"{topic} is not checked: {why}")

    def _name_unled(self, topics: Mapping[str, Topic]) -> None:
        unled = [
            f"{name}[{number}]"
            for name, number in unled_partitions(topics.values())
            if name in self.kinds and self._may_have((name, number))
        ]
        if unled:
            self.left_out.append(f"{', '.join(unled)}: not searched, as they have no leader now")

    # --- what is done ------------------------------------------------------------------------------------------------

    def _group_of(self, kind: Kind) -> str:
        """Return the consumer group whose progress says what is done. In relay mode the service reads the ready
        topic."""
        names = self._settings.names
        is_relay = self._settings.deliver.mode == "relay"
        is_retry = kind is Kind.LEVEL or (kind is Kind.READY and not is_relay)
        return names.retry_group if is_retry else names.group

    def _read_progress(self, topics: Mapping[str, Topic], searched: list[PartitionName]) -> None:
        by_group: dict[str, list[PartitionName]] = {}
        for partition in searched:
            kind = self.kinds[partition[0]]
            if kind in RETRIES or kind is Kind.MAIN:
                by_group.setdefault(self._group_of(kind), []).append(partition)
        for group, partitions in by_group.items():
            try:
                self.progress |= self._cluster.progress(group, partitions)
            except DeniedError as denied:
                for topic in sorted({topic for topic, _ in partitions}):
                    self._leave_out(topic, str(denied))

    def _read_redrives(self, topics: Mapping[str, Topic], policy: Policy) -> None:
        """Read which dead letters were redriven or dismissed."""
        dlqs = [name for name, kind in self.kinds.items() if kind is Kind.DLQ and name in topics]
        letters = DeadLetters(self._settings.kafka, policy)
        layout = {
            Partition(*partition): DlqSpan(0, 0, topics[name].id) for name in dlqs for partition in topics[name].led
        }
        try:
            self.redrives = letters.histories(layout, only_shown=True)
        except ReconsumeError as fault:
            for name in dlqs:
                self._leave_out(name, f"which dead letters were redriven is not known: {fault}")

    def _read_holds(self) -> None:
        """Read the holds in force. A group without a policy topic has none."""
        try:
            self.holds = HoldStore(self._settings.kafka, self._settings.names).read().live
        except ContractError:  # the topic is missing, or not for this user to see
            return
        except ReconsumeError as fault:
            self.left_out.append(f"whether records are held is not known: {fault}")

    # --- from where to where -----------------------------------------------------------------------------------------

    def _answering(self, partitions: list[PartitionName]) -> Iterator[list[PartitionName]]:
        """Yield all partitions; one topic after the other if some do not respond."""
        try:
            self._cluster.offsets(partitions, Offset.BEGIN)
        except BrokerError:
            topics = sorted({topic for topic, _ in partitions})
        else:
            yield partitions
            return
        for topic in topics:
            own = [partition for partition in partitions if partition[0] == topic]
            try:
                self._cluster.offsets(own, Offset.BEGIN)
            except BrokerError as fault:
                self._leave_out(topic, str(fault))
            else:
                yield own

    def _read_marks(self, partitions: list[PartitionName]) -> None:
        spans = self._cluster.spans(partitions)
        ends = self._cluster.offsets(partitions, Offset.END, committed=False)
        begins = {partition: span.begin for partition, span in spans.items()}
        if self._query.since is not None:
            for partition, (offset, _) in self._cluster.offsets(partitions, self._query.since, committed=False).items():
                begins[partition] = ends[partition].offset if offset < 0 else max(offset, begins[partition])
        for partition in partitions:
            done = self.progress[partition].next if partition in self.progress else 0
            self.begins[partition] = max(begins[partition], done)
            self.committed[partition] = spans[partition].end
            self.ends[partition] = max(ends[partition].offset, spans[partition].end)
        if (origin := origin_in(self._query.id)) is not None and origin[:2] in self.begins:
            partition, offset = origin[:2], origin[2]
            self.begins[partition] = max(self.begins[partition], offset)
            self.ends[partition] = min(self.ends[partition], offset + 1)


class Search:
    """One search. A context manager. States: made, run, over. Attributes are complete after `run`."""

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        query: Query,
        bounds: Bounds,
        tell: Tell,
        layout: Layout,
        *,
        whole: bool,
    ) -> None:
        self.records = self.size = 0
        self._settings, self._policy, self._query = settings, policy, query
        self._bounds, self._tell, self._layout, self._whole = bounds, tell, layout, whole
        self._request, self._holds = RedriveRequest(), HoldsInForce(layout.holds).holds
        self._consumers: dict[str, Consumer] = {}
        self._open: dict[PartitionName, int] = {}
        """The end of what is unread of each partition that is not read to its beginning."""
        self._newest: dict[PartitionName, float] = {}
        """The timestamp above which nothing is unread of a partition; infinite while it was not read."""
        self._matches: dict[str, Match] = {}
        """The newest matches, `limit` at most between two turns, by position."""
        self._dropped: dict[PartitionName, int] = {}
        """The highest offset of the matches that are not returned because of the limit."""
        self._total = 0
        self._stopped = ""

    def __enter__(self) -> Search:
        return self

    def __exit__(self, *_: object) -> None:
        for consumer in self._consumers.values():
            consumer.close()

    # --- the search --------------------------------------------------------------------------------------------------

    def run(self, rest: Positions | None) -> None:
        """Read until all is read, or a bound is reached."""
        layout = self._layout
        for partition, end in layout.ends.items():
            last = end if rest is None else min(end, rest.get(partition, 0))
            if last > layout.begins[partition]:
                self._open[partition] = last
                self._newest[partition] = inf
        self._total = sum(end - layout.begins[partition] for partition, end in self._open.items())
        while self._open and not self._stopped:
            self._stopped = self._bound_reached()
            if not self._stopped:
                self._read_turn(self._windows())
                self._drop_beyond_limit()
                self._report()

    def _bound_reached(self) -> str:
        """Return which bound ends the search, as a sentence; empty if none does."""
        bounds = self._bounds
        if len(self._matches) >= bounds.limit:
            oldest_shown = sorted((match.at for match in self._matches.values()), reverse=True)[bounds.limit - 1]
            if oldest_shown >= max(self._newest[partition] for partition in self._open):
                return f"the newest {bounds.limit} are shown, and older records were not searched"
        if self.size >= bounds.most_bytes:
            return f"after {self.size} bytes the older records were not searched"
        if time.monotonic() > bounds.deadline:
            return "the time is over, and the older records were not searched"
        return ""

    def _windows(self) -> dict[PartitionName, Span]:
        """Return what is read next: of the partitions whose unread records are the newest."""
        chosen = sorted(self._open, key=lambda partition: -self._newest[partition])[:AT_ONCE]
        bytes_left = max(1, self._bounds.most_bytes - self.size)
        size = max(1, self.size // max(1, self.records))
        fitting = min(WINDOW_BYTES, bytes_left) // (size * len(chosen))
        first = any(self._newest[partition] == inf for partition in chosen)
        offsets = SMALLEST if first else max(1, min(LARGEST, fitting))
        return {partition: self._window(partition, offsets) for partition in chosen}

    def _window(self, partition: PartitionName, offsets: int) -> Span:
        end, committed = self._open[partition], self._layout.committed[partition]
        begin = max(self._layout.begins[partition], end - offsets)
        return Span(max(begin, committed) if end > committed else begin, end)

    def _read_turn(self, windows: Mapping[PartitionName, Span]) -> None:
        for role, consumer in (("own", whole_fetches), ("main", dict), ("uncommitted", dict)):
            some = {partition: span for partition, span in windows.items() if self._role(partition, span) == role}
            if some:
                if role not in self._consumers:
                    level = {"isolation.level": "read_uncommitted"} if role == "uncommitted" else {}
                    self._consumers[role] = make_client(Consumer, consumer({**_config(self._settings), **level}))
                self._read(self._consumers[role], some)

    def _role(self, partition: PartitionName, span: Span) -> str:
        if span.begin >= self._layout.committed[partition]:
            return "uncommitted"
        return "main" if self._layout.kinds[partition[0]] is Kind.MAIN else "own"

    def _read(self, consumer: Consumer, windows: Mapping[PartitionName, Span]) -> None:
        """Read a window of some partitions, and go on below it. What does not respond is left out."""
        reader = RangeReader(consumer, windows)
        unread = reader.left
        oldest: dict[PartitionName, int] = {}
        is_cut = False
        try:
            for message in reader.records(self._bounds.patience, self._bounds.deadline):
                oldest.setdefault(partition_of(message), message.timestamp()[1])
                self._take(message)
                if is_cut := self.size >= self._bounds.most_bytes and bool(unread):
                    break
        except DeniedError as denied:
            self._forget(windows, str(denied))
            return
        finally:
            # A pause outlives the assignment. Without this, the next assignment of these partitions would not be read
            # (librdkafka 2.16).
            consumer.resume([TopicPartition(*partition) for partition in windows])
            consumer.unassign()
        if is_cut or (unread and time.monotonic() > self._bounds.deadline):
            return  # the windows are read again where the search goes on
        for partition, span in windows.items():
            if partition in unread:
                name, number = partition
                self._layout.left_out.append(
                    f"{name}[{number}] is not searched below offset {span.end}: it does not respond"
                )
                self._close(partition)
                continue
            self._open[partition] = span.begin
            self._newest[partition] = min(self._newest[partition], oldest.get(partition, inf))
            if span.begin <= self._layout.begins[partition]:
                self._close(partition)

    def _close(self, partition: PartitionName) -> None:
        del self._open[partition], self._newest[partition]

    def _forget(self, windows: Mapping[PartitionName, Span], why: str) -> None:
        """Leave out the topics that this user may not read, one of which was in the windows."""
        for topic in sorted({topic for topic, _ in windows}):
            if f"topic {topic} " in f"{why} ":
                self._layout.left_out.append(f"{topic} is not checked: {why}")
                for partition in [one for one in self._open if one[0] == topic]:
                    self._close(partition)
                return
        raise BrokerError(why)

    # --- one record --------------------------------------------------------------------------------------------------

    def _take(self, message: Message) -> None:
        partition = partition_of(message)
        record = to_record(message, Partition(*partition), 0, None)
        self.records += 1
        self.size += len(record.key or b"") + len(record.value or b"")
        self.size += sum(len(name) + len(value or b"") for name, value in record.headers or ())
        if self.records % TOLD_EVERY == 0:
            self._report()
        progress = self._layout.progress.get(partition)
        if (progress is None or not progress.covers(record.offset)) and self._query.fits(record):
            match = self._match(record, self._layout.kinds[partition[0]])
            if match is not None and self._is_wanted(match):
                self._matches[match.position] = match

    def _match(self, record: Record, kind: Kind) -> Match | None:
        """Return what is shown of an open record; None for a dead letter that is done."""
        is_held = record.offset >= self._layout.committed[(record.source.topic, record.source.number)]
        if kind is Kind.DLQ:
            letter = read_letter(record, self._policy)
            verdict = eligibility(letter, self._request, self._layout.redrives[record.source])
            assert verdict is not None, "the request selects every letter"
            return letter_match(letter, verdict, is_held=is_held, whole=self._whole)
        state = None if kind is Kind.MAIN else state_of(record)
        where = Where.UNCOMMITTED if is_held else where_of(kind, state)
        return match_of(record, kind, state, where, self._held(record, state, where), whole=self._whole)

    def _held(self, record: Record, state: RetryState | None, where: Where) -> str:
        """Return why a record waits if an operator holds it; empty if nobody does."""
        source = record.source.topic
        level = self._layout.levels.get(source)
        if level is None or where not in HOLDABLE:
            return ""
        hold = self._holds.fitting(level, source if state is None else state.topic, record.key)
        if hold is None:
            return ""
        return held_text(where, hold.id, utc(self._layout.holds[hold.id].until, "%Y-%m-%dT%H:%M:%SZ"))

    def _is_wanted(self, match: Match) -> bool:
        query = self._query
        return query.id in (None, match.id, match.position) and query.topic in (None, match.topic)

    # --- what is kept ------------------------------------------------------------------------------------------------

    def _drop_beyond_limit(self) -> None:
        """Keep the newest matches, and note where the others are. A turn has a few thousand at most."""
        if len(self._matches) <= self._bounds.limit:
            return
        for match in self._ordered()[self._bounds.limit :]:
            del self._matches[match.position]
            topic, number, _ = match.position.rsplit(":", 2)
            partition = (topic, int(number))
            self._dropped[partition] = max(self._dropped.get(partition, -1), match.offset)

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
        unread = sum(end - self._layout.begins[partition] for partition, end in self._open.items())
        self._tell(max(self._total - unread, 0), self._total)

    def result(self) -> FindResult:
        """Return the result."""
        rest = {**self._open, **{partition: offset + 1 for partition, offset in self._dropped.items()}}
        stopped = self._stopped
        if self._dropped and not stopped:
            stopped = f"the newest {self._bounds.limit} are shown, and there are older ones"
        left_out = [*self._layout.left_out, *([stopped] if stopped else ())]
        return FindResult(self._ordered(), left_out, rest, self.records, self.size)
