"""Find out what the logs of partitions hold, and whether each is still the log that was read.

A topic that is deleted and created again has a new log, and the client reads on in it at the old offset. Kafka's ids of
the cluster and of topics tell logs apart (`LogIds`). Python's consumer does not give them, so a client of its own asks,
on the consumer's thread. It may do so in a rebalance callback. A broker that does not answer in time, or has no topic
ids, says nothing about a log (contract 7.10). Levels also carry the broker's times (`recreated`).

*Offsets* are looked up for many partitions with one request (`OffsetLookup`), and by leaders only where that request
fails. The client's request fails for all partitions if one leader does not answer (`rd_kafka_offsets_for_times`, 2.16).
Only a partition that the cluster itself reports without a leader fails alone. So after a failure the partitions are
requested again by leaders, and each partition is answered whose leader answers. A leader that has not answered rests:
the next requests leave its partitions out, so that they do not wait for it too. Of a partition whose leader does not
answer nothing is known: it is left out of what is returned.

All of this runs on a thread that must also poll. So one lookup takes `LONGEST` seconds at most.

In a callback of the client nobody may call `list_topics`: the next callback of the same poll then ends the process
(`CallState_get: Assertion cs != NULL`, 2.16). So there the leaders are not asked for, and the next lookup goes on.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_STORED,
    Consumer,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from msgspec.structs import replace

from reconsume.sidecar.core.offset_ranges import OffsetRanges
from reconsume.sidecar.core.progress import LogId, Progress
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.kafka.admin.cluster import Connection

LONGEST = 6.0
"""Seconds for all requests of one lookup. `/livez` takes a consumer's thread for stuck after 30 s without a poll; an
assignment also waits for committed offsets (8 s at most)."""
PART_WITHIN = 0.8
"""Seconds for a request to a part of the leaders. Behind a fetch a request waits for `fetch.wait.max.ms`, which is
500 ms; with less, a leader that answers would count as one that does not."""
PARTS_WITHIN = 4.0
"""Seconds for all parts of one request: enough for five that do not answer. One leader that does not costs 0.8 s."""
PARTS = 4
"""Into how many parts the leaders of a failed request are divided. Of up to four each is a part."""
LEADERS_WITHIN = 0.5
"""Seconds for the leaders of one topic. Any broker answers this in milliseconds, behind no fetch."""
REST = 2.0
"""Seconds for which a leader is left out after it has not answered; doubled each time, up to `LONGEST_REST`."""
LONGEST_REST = 20.0
"""Seconds. A leader that is away for long then costs the thread 0.8 s in 20 s."""

NOBODY = -1
"""The leader of partitions of which nobody has said who leads them: they rest together."""

_LOG = logging.getLogger("reconsume.assignment")


class Leaders:
    """The leaders of one consumer's partitions, and which of them do not answer. Kept from one lookup to the next.

    `clock`: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._leader_of: dict[Partition, int] = {}
        """As the cluster said after the last failure. It may be out of date: the client itself knows better, and this
        only decides which partitions are requested together."""
        self._silent: dict[int, tuple[float, float]] = {}
        """The leaders that did not answer: until when each rests, and how long its rest is."""

    def rests(self, partition: Partition) -> bool | None:
        """Return whether the leader of a partition rests. None: it has not answered, but may be asked again."""
        until = self._silent.get(self._leader(partition))
        return False if until is None else (True if self.clock() < until[0] else None)

    def reached(self, partitions: Iterable[Partition]) -> None:
        """Note that the leaders of these partitions answer: records or errors of theirs have come."""
        if self._silent:
            self.answered({self._leader(partition) for partition in partitions})

    def answered(self, leaders: Iterable[int]) -> None:
        """Note that these leaders have answered a request."""
        for leader in leaders:
            _, rest = self._silent.pop(leader, (0.0, 0.0))
            if rest > REST:
                text, extra = "%s answers again what its logs hold", {"event": "offsets-answered"}
                _LOG.info(text, _name(leader), extra=extra)

    def suspect(self, leaders: Iterable[int]) -> None:
        """Note that one of these leaders may not have answered: the next lookup requests theirs apart from the rest."""
        self._silent |= {leader: (self.clock(), self._silent.get(leader, (0.0, 0.0))[1]) for leader in leaders}

    def failed(self, leader: int, why: object) -> None:
        """Note that a leader has not answered a request that was for it alone.

        Only the second time in a row is logged: at a start, answers of a busy broker take longer than `PART_WITHIN`.
        """
        _, rest = self._silent.get(leader, (0.0, 0.0))
        if rest == REST:
            text, extra = "%s does not answer what its logs hold: %s", {"event": "offsets-unanswered"}
            _LOG.warning(text, _name(leader), why, extra=extra)
        rest = min(2 * rest, LONGEST_REST) if rest else REST
        self._silent[leader] = self.clock() + rest, rest

    def learn(self, consumer: Consumer, topic_partitions: Iterable[TopicPartition], until: float) -> None:
        """Ask the cluster who leads these partitions. Where it does not answer by `until`, the earlier answer stays."""
        for topic in sorted({topic_partition.topic for topic_partition in topic_partitions}):
            if (left := until - self.clock()) <= 0:
                return
            try:
                listed = consumer.list_topics(topic, timeout=min(left, LEADERS_WITHIN)).topics[topic]
            except KafkaException:
                return  # no broker answers, and none would for the next topic
            leaders = {Partition(topic, number): metadata.leader for number, metadata in listed.partitions.items()}
            self._leader_of |= {source: leader for source, leader in leaders.items() if leader >= 0}

    def by_leader(self, topic_partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """Return the places of each leader."""
        grouped = defaultdict[int, list[TopicPartition]](list)
        for topic_partition in topic_partitions:
            grouped[self._leader(Partition(topic_partition.topic, topic_partition.partition))].append(topic_partition)
        return dict(grouped)

    def in_turn(self, leaders: Iterable[int]) -> list[int]:
        """Return the leaders in the order in which they are to be asked: the last that did not answer comes last."""
        return sorted(leaders, key=lambda leader: self._silent.get(leader, (0.0, 0.0)))

    def _leader(self, partition: Partition) -> int:
        return self._leader_of.get(partition, NOBODY)


class OffsetLookup:
    """The requests of one operation, such as the start of an assignment. They never raise.

    Use one for each operation: together its requests take `LONGEST` seconds at most. `in_callback`: whether the client
    calls back, so that no topic may be listed.
    """

    def __init__(self, consumer: Consumer, leaders: Leaders, *, in_callback: bool = False) -> None:
        self.consumer = consumer
        self.may_list = not in_callback
        self._leaders = leaders
        self._until = leaders.clock() + LONGEST

    def left(self) -> float:
        """Return the seconds that are left for further requests."""
        return max(0.0, self._until - self._leaders.clock())

    def numbers(self, topic_partitions: Iterable[TopicPartition], within: float) -> dict[Partition, int]:
        """Return the offset behind each logical offset or time in `topic_partitions`, where there is one.

        Partitions whose leader does not answer are left out.
        """
        return {source: offset for source, offset in self.offsets(topic_partitions, within).items() if offset >= 0}

    def offsets(self, topic_partitions: Iterable[TopicPartition], within: float) -> dict[Partition, int]:
        """As `numbers`, with `OFFSET_END` where there is no such record. `within`: seconds for all places together."""
        known, silent = list[TopicPartition](), list[TopicPartition]()
        for topic_partition in topic_partitions:
            rests = self._leaders.rests(Partition(topic_partition.topic, topic_partition.partition))
            if not rests and topic_partition.offset != OFFSET_STORED:
                (known if rests is False else silent).append(topic_partition)
        return self._all(known, within) | self._by_leaders(silent)

    def _all(self, topic_partitions: Sequence[TopicPartition], within: float) -> dict[Partition, int]:
        answer = self._request(topic_partitions, within)
        return self._by_leaders(topic_partitions, answer) if isinstance(answer, KafkaException) else answer

    def _by_leaders(
        self, topic_partitions: Sequence[TopicPartition], why: KafkaException | None = None
    ) -> dict[Partition, int]:
        """Request the places by their leaders. `why`: how the request for all of them failed, if there was one."""
        if not topic_partitions:
            return {}
        if self.may_list:
            self._leaders.learn(self.consumer, topic_partitions, self._until)
        groups = self._leaders.by_leader(topic_partitions)
        if why is not None and len(groups) == 1:
            if self.may_list:
                self._leaders.failed(next(iter(groups)), why)
            else:
                self._leaders.suspect(groups)
            return {}
        return self._by_parts(groups)

    def _by_parts(self, groups: Mapping[int, list[TopicPartition]]) -> dict[Partition, int]:
        """Request the places of each leader, of several leaders at a time; divide a part that fails."""
        offsets, until = dict[Partition, int](), min(self._until, self._leaders.clock() + PARTS_WITHIN)
        parts = divided(self._leaders.in_turn(groups))
        while parts and self._leaders.clock() < until:
            part = parts.pop(0)
            answer = self._request(
                [topic_partition for leader in part for topic_partition in groups[leader]], PART_WITHIN
            )
            if not isinstance(answer, KafkaException):
                self._leaders.answered(part)
                offsets |= answer
            elif len(part) == 1:
                self._leaders.failed(part[0], answer)
            else:
                parts += divided(part)
        self._leaders.suspect(leader for part in parts for leader in part)
        return offsets

    def _request(
        self, topic_partitions: Sequence[TopicPartition], within: float
    ) -> dict[Partition, int] | KafkaException:
        """Return the client's answer, or its failure if not all of the leaders have answered."""
        if not topic_partitions or not self.left():
            return {}
        try:
            answer = self.consumer.offsets_for_times(list(topic_partitions), timeout=min(within, self.left()))
        except KafkaException as failure:
            return failure
        return {
            Partition(topic_partition.topic, topic_partition.partition): topic_partition.offset
            for topic_partition in answer
            if topic_partition.error is None and (topic_partition.offset >= 0 or topic_partition.offset == OFFSET_END)
        }


def _name(leader: int) -> str:
    return "Kafka" if leader == NOBODY else f"broker {leader}"


def divided(leaders: Sequence[int]) -> list[Sequence[int]]:
    """Return the leaders in `PARTS` parts, or each alone.

    The first is alone in any case. So each lookup finds out about one leader at least, however many do not answer.
    """
    if len(leaders) <= PARTS:
        return [[leader] for leader in leaders]
    return [leaders[:1], *(leaders[number :: PARTS - 1] for number in range(1, PARTS))]


LogIds: TypeAlias = Callable[[Collection[str]], Mapping[str, LogId]]
"""Returns the logs of topics, by name, as far as they are known."""

ANSWER_WITHIN = 1.0
"""Seconds for one question. The answer takes milliseconds; the consumer's thread does not poll meanwhile."""
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""What a broker without topic ids (before 2.8) gives as one."""


def no_log_ids(_topics: Collection[str]) -> Mapping[str, LogId]:
    """Return nothing: nobody is asked."""
    return {}


class KafkaLogIds:
    """The ids of one cluster, for one thread. `connect`: makes a client with the newest credentials."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._connection: Connection | None = None
        self._cluster = ""

    def __call__(self, topics: Collection[str]) -> dict[str, LogId]:
        """Return the logs of these topics; one of which Kafka says nothing is left out. Blocks for a second or two."""
        if not topics:
            return {}
        until = time.monotonic() + ANSWER_WITHIN
        try:
            connection = self._connected(until)
        except (ConfigError, KafkaException):  # the next question begins with another client
            self._connection = None
            return {}
        answers = connection.client.describe_topics(TopicCollection(sorted(topics)), request_timeout=ANSWER_WITHIN)
        ids = dict[str, LogId]()
        for topic, future in answers.items():
            try:
                ident = str(connection.answer(future, max(0.0, until - time.monotonic())).topic_id)
            except KafkaException:  # deleted, or not for this user to see
                continue
            if ident != NO_ID:
                ids[topic] = LogId.of(self._cluster, ident)
        if not ids:
            self._connection = None
        return ids

    def _connected(self, until: float) -> Connection:
        """Return the client, and learn the id of its cluster."""
        if (connection := self._connection) is None:
            self._connection = connection = self._connect()
            described = connection.client.describe_cluster(request_timeout=ANSWER_WITHIN)
            self._cluster = str(connection.answer(described, max(0.0, until - time.monotonic())).cluster_id)
        return connection


EDGES_WITHIN = 2.0
"""Seconds for the first or last offsets of all partitions together. A request takes 24 ms for 216 of them (measured).
"""


class Edges(NamedTuple):
    """The first offset of a partition's log, and the offset after its last stable record."""

    low: int
    high: int


def untouched(first: int, width: int | None = None) -> Progress:
    """Return the progress in a log of which the group has read nothing; it begins at `first`."""
    return Progress(first, ours=False, width=width, last_at_ms=0)


def edges(logs: OffsetLookup, partitions: Collection[Partition]) -> dict[Partition, Edges]:
    """Return where each partition's log begins and ends now."""
    lows = logs.numbers([TopicPartition(*source, OFFSET_BEGINNING) for source in partitions], EDGES_WITHIN)
    highs = logs.numbers([TopicPartition(*source, OFFSET_END) for source in lows], EDGES_WITHIN)
    return {source: Edges(lows[source], high) for source, high in highs.items()}


def log_loss(partition: Partition, wanted: int, edges_now: Edges) -> None:
    """Log that the next offset of a partition is not in its log."""
    extra = {"event": "offset-lost", "partition": str(partition), "offset": wanted}
    text = "%s: offset %d is not in the log, which holds %d to %d"
    _LOG.error(text, partition, wanted, edges_now.low, edges_now.high, extra=extra)


def log_recreated(partition: Partition) -> None:
    """Log that a partition is read from its beginning, as its log is another one."""
    text = "%s: the topic was deleted and created again; it is read from its beginning"
    _LOG.warning(text, partition, extra={"event": "topic-recreated", "partition": str(partition)})


def checked(logs: OffsetLookup, known: Mapping[Partition, Progress | None]) -> dict[Partition, Progress | None]:
    """Return committed progress without what is of a former log, and without the levels whose leader does not answer.

    Nothing of those may be delivered yet: nobody knows if the offset is one of this log, and a retry may be skipped.
    """
    read = {
        source: (end_of_done(got), got.last_at_ms)
        for source, got in known.items()
        if got and got.last_at_ms is not None
    }
    begins = begins_of_others(logs, read, EDGES_WITHIN)
    sure = {source: got for source, got in known.items() if source not in read or source in begins}
    another = {source: untouched(first) for source, first in begins.items() if first is not None}
    return _within_logs(logs, sure | another)


# Progress carries the greatest broker's time that was read of a level (`last_at_ms`). A log that begins with a younger
# record, below that position, is another one. A younger record after the beginning is a transaction's marker, which a
# search by time finds and no consumer reads: treated as a record, it had whole levels delivered twice. The check must
# come before anything of the new log is read. A main topic's records carry the producers' times, so of a main topic
# only a shorter log shows.
def recreated(
    logs: OffsetLookup, read: Mapping[Partition, tuple[int, int]], within: float = EDGES_WITHIN
) -> dict[Partition, int]:
    """Return the partitions whose log is another one than was read, and where each of these logs begins.

    Their topics were deleted and created again. `read`: for each partition the offset below which it was read, and the
    greatest timestamp (epoch ms) of what was read. The client does not report a new log: it reads on at the old offset
    as soon as the new log is that long.
    """
    return {source: first for source, first in begins_of_others(logs, read, within).items() if first is not None}


def begins_of_others(
    logs: OffsetLookup, read: Mapping[Partition, tuple[int, int]], within: float
) -> dict[Partition, int | None]:
    """As `recreated`, with None for each partition whose log is the one that was read."""
    asked = [TopicPartition(*source, at + 1) for source, (_, at) in read.items()]
    offsets = logs.offsets(asked, within)
    younger = {source: first for source, first in offsets.items() if 0 <= first < read[source][0]}
    # All of another log is younger than what was read. In the same log only a transaction's marker can be younger and
    # lie below the offset: a search by time finds markers too, and what was read lies before it.
    begins = logs.numbers([TopicPartition(*source, OFFSET_BEGINNING) for source in younger], within)
    another = {source: first if first == younger[source] else None for source, first in begins.items()}
    return dict.fromkeys(offsets.keys() - younger.keys()) | another


def end_of_done(progress: Progress) -> int:
    """Return the offset after the last record that the progress says is done."""
    return max(progress.next, OffsetRanges.of(progress.done).end)


def open_in(progress: Progress) -> int:
    """Return how many records may be open between those that are done; a gap in the log counts as records."""
    done = OffsetRanges.of(progress.done)
    return max(0, done.end - progress.next - len(done))


def without_done_from(progress: Progress, end: int) -> Progress:
    """Return the progress without the marks of done records at `end` or behind it."""
    return replace(progress, done=OffsetRanges.of(progress.done).within(0, end))


def _within_logs(logs: OffsetLookup, known: Mapping[Partition, Progress | None]) -> dict[Partition, Progress | None]:
    """Return progress without what lies behind the end of the log; of a main topic all stays if that is not known.

    That is of a former log, and would pass over records of this one as soon as it is that long: marks of done records,
    and the offset itself if the log is still empty. Later, the records themselves show that it is another log.
    """
    reached = {source: got for source, got in known.items() if got is not None and end_of_done(got) > 0}
    ends = logs.numbers([TopicPartition(*source, OFFSET_END) for source in reached], EDGES_WITHIN)
    short = [source for source, end in ends.items() if reached[source].next > end]
    begins = logs.numbers([TopicPartition(*source, OFFSET_BEGINNING) for source in short], EDGES_WITHIN)
    told: dict[Partition, Progress | None] = {
        source: untouched(end) if begins.get(source) == end else without_done_from(reached[source], end)
        for source, end in ends.items()
        if source not in short or source in begins
    }
    silent = {source for source, got in reached.items() if source not in told and got.last_at_ms is not None}
    return {source: told.get(source, got) for source, got in known.items() if source not in silent}


def first_later(logs: OffsetLookup, times: Mapping[Partition, int]) -> dict[Partition, int]:
    """Return each partition's first offset of a record younger than its time (epoch ms); `OFFSET_END` if none is."""
    return logs.offsets([TopicPartition(*source, at + 1) for source, at in times.items()], EDGES_WITHIN)
