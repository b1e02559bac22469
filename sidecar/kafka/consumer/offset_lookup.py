"""Look up offsets of many partitions: all with one request, and by leaders only where that request fails.

The client's request fails for all partitions if one leader does not answer (`rd_kafka_offsets_for_times`, 2.16). Only a
partition that the cluster itself reports without a leader fails alone. So after a failure the partitions are requested
again by leaders, and each partition is answered whose leader answers. A leader that has not answered rests: the next
requests leave its partitions out, so that they do not wait for it too.

All of this runs on a thread that must also poll. So one lookup takes `LONGEST` seconds at most.

In a callback of the client nobody may call `list_topics`: the next callback of the same poll then ends the process
(`CallState_get: Assertion cs != NULL`, 2.16). So there the leaders are not asked for, and the next lookup goes on.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from confluent_kafka import OFFSET_END, OFFSET_STORED, Consumer, KafkaException, TopicPartition

from reconsume.sidecar.core.record import Partition

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
