"""The two forms of the view as their reader sees them: which topics, what a record is, and up to when all is known.

How far the Spark job has read the events is known from the offsets that it commits. A row's own timestamp only says
when Spark wrote it. While Spark catches up with an hour of events, that is also now. So what is estimated by rows,
where no position can be read, is never taken for known.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, TypeAlias

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaException, Message, TopicPartition

from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.hints import absent, hint
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import Offset, PartitionName, Topic
from reconsume.sidecar.kafka.client_config import view_config
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.errors import raise_partition_errors
from reconsume.sidecar.view.source import Source
from reconsume.sidecar.view.store import retention_of
from reconsume.sidecar.view.tables import Item
from reconsume.topics.events import BadEvent
from reconsume.topics.fold import read_event, row_of
from reconsume.topics.names import Kind, Names
from reconsume.topics.specs import STATS_RETENTION, VIEW_RETENTION
from reconsume.topics.view_position import PositionTopics, as_java_prints, parse_position
from reconsume.topics.view_record import BadRow, decode_stats, decode_view

# --- how far the Spark job has read ----------------------------------------------------------------------------------


PRECISION = 1_000
"""ms to which `read_until` is exact."""
ANSWER_WITHIN = 10.0
"""Seconds that Kafka may take to answer."""

_LOG = logging.getLogger("reconsume.view")


class PositionsAnswer(NamedTuple):
    """Kafka's answers about the events.

    `read_until`: epoch ms up to which the job has read the events; None if Kafka does not say. `newest`: the time of
    the newest event. It is requested only if the job has committed no offsets; None if Kafka did not say.
    """

    read_until: int | None
    newest: int | None

    def complete_until(self, at: int, newest_row: int) -> int:
        """Return the time up to which a copy is complete.

        The copy was at the end of the view after `at`, and its newest row was `newest_row` (epoch ms).
        """
        if self.read_until is not None:
            return self.read_until
        return at if self.newest is not None and self.newest <= newest_row else min(newest_row, at)


def ask_events(
    cluster: Cluster, job: Consumer, events: Collection[PartitionName], topics: PositionTopics, low: int, high: int
) -> PositionsAnswer:
    """Return what is known at `high` (epoch ms, now) of the partitions of the events topics.

    `job` is a consumer with the name of the job's group. `topics`: the ids of the topics now. All events before `low`
    are known to be read.
    """
    try:
        ends = {partition: listed.offset for partition, listed in cluster.offsets(events, Offset.END).items()}
        # Unread events count, and not the times of rows: a stopped job shows, and an idle group does not look old. The
        # first offsets of a time, searched by halves, say how old the oldest unread event is.
        if (read := committed(job, ends, topics)) is None:
            newest = [listed.timestamp for listed in cluster.offsets(events, Offset.NEWEST).values()]
            return PositionsAnswer(None, max(newest, default=-1))

        def first_from(time: int) -> dict[PartitionName, int]:
            return {partition: listed.offset for partition, listed in cluster.offsets(events, time).items()}

        return PositionsAnswer(read_until(read, ends, first_from, low, high), None)
    except (BrokerError, KafkaException) as failure:
        # For one, the user may have no right to the events. The rows' own times are used then.
        _LOG.debug("whether the view is up to date is unknown: %s", failure, extra={"event": "view-age-unknown"})
        return PositionsAnswer(None, None)


def committed(
    job: Consumer, ends: Mapping[PartitionName, int], topics: PositionTopics
) -> dict[PartitionName, int] | None:
    """Return the job's position in each partition; None if the job has never committed one. Raises KafkaException.

    `topics`: the ids of the topics now. A position that is true of other topics counts as 0: the job does not know yet
    that one was created again, and will read its events from the first.
    """
    answers = (
        raise_partition_errors(job.committed([TopicPartition(*partition) for partition in ends], timeout=ANSWER_WITHIN))
        if ends
        else []
    )
    read = {
        (partition.topic, partition.partition): min(partition.offset, 0)
        if parse_position(partition.metadata) not in (None, topics)
        else partition.offset
        for partition in answers
    }
    return (
        {partition: max(0, offset) for partition, offset in read.items()}
        if max(read.values(), default=-1) >= 0
        else None
    )


def read_until(
    read: Mapping[PartitionName, int],
    ends: Mapping[PartitionName, int],
    first_from: Callable[[int], Mapping[PartitionName, int]],
    low: int,
    high: int,
) -> int:
    """Return the latest time, to PRECISION, before which all events are read. It is between `low` and `high`.

    `first_from` returns the first offset of each partition at or after a time, negative if there is none.
    """
    if all(read[partition] >= end for partition, end in ends.items()):
        return high
    while high - low > PRECISION:
        middle = (low + high) // 2
        if all_read(read, ends, first_from(middle)):
            low = middle
        else:
            high = middle
    return low


def all_read(
    read: Mapping[PartitionName, int], ends: Mapping[PartitionName, int], firsts: Mapping[PartitionName, int]
) -> bool:
    """Whether everything before the first offsets at or after a time (negative if there is none) is read."""
    return all(read[partition] >= (first if first >= 0 else ends[partition]) for partition, first in firsts.items())


# --- the forms -------------------------------------------------------------------------------------------------------


class SparkForm:
    """Rows and sums that the Spark job wrote.

    `kinds`: the topics that are read, by name. `main`: the one whose end is the end of the view. `missing`, `empty`:
    sentences for a main topic that does not exist, or was never written to; without the second such a copy is complete.
    """

    source = Source.SPARK

    def __init__(self, kafka: Mapping[str, str], names: Names, client: str) -> None:
        self.kinds = {names.view: Kind.VIEW, names.stats: Kind.STATS}
        self.main = names.view
        self.missing = f"{absent([names.view])}, and the Spark job of `{hint('view run')}` writes it"
        self.empty = f"nothing was ever written to {names.view}: does the Spark job run?"
        self._names = names
        # Used only for committed offsets. The consumer that reads must work without a right to the job's group.
        self._job = make_client(Consumer, view_config(kafka, names.view_group, client))

    def item(self, message: Message, moment: int) -> Item | BadRow:
        """Return a record as an item, or why it is none. `moment`: epoch ms, now."""
        kind = self.kinds[message.topic() or ""]
        key, stamp = message.key(), message.timestamp()[1]
        decode = decode_view if kind is Kind.VIEW else decode_stats
        row = decode(self._names.group, key, message.value())
        if isinstance(row, BadRow):
            return row
        written = stamp if 0 < stamp < moment else moment
        return Item(kind, (key or b"").decode(), row, message.offset() or 0, written)

    def positions(self, cluster: Cluster, topics: Mapping[str, Topic], low: int, high: int) -> PositionsAnswer:
        """Return what is known at `high` (epoch ms, now) of the events. All before `low` are known to be read."""
        events = topics[self._names.events].all_partitions if self._names.events in topics else []
        return ask_events(cluster, self._job, events, position_topics(topics, self._names), low, high)

    def kept(self, topics: Mapping[str, Topic]) -> Mapping[Kind, int]:
        """Return for how many ms what is made of each kind of record is kept; without those that are kept forever."""
        limits = {self.kinds[name]: retention_of(topic.config) for name, topic in topics.items() if name in self.kinds}
        return {kind: limit for kind, limit in limits.items() if limit is not None}

    def close(self) -> None:
        """Close its clients."""
        self._job.close()


def position_topics(topics: Mapping[str, Topic], names: Names) -> PositionTopics:
    """Return the ids of the topics that a position of the job must be true of."""
    ids = (topics[name].id if name in topics else "" for name in (names.events, names.view))
    return PositionTopics(*map(as_java_prints, ids))


class EventsForm:
    """The events themselves, which the store folds. The same calls as of SparkForm."""

    source = Source.EVENTS
    empty = ""

    def __init__(self, names: Names) -> None:
        self.kinds = {names.events: Kind.EVENTS}
        self.main = names.events
        self.missing = absent([names.events])
        self._group = names.group

    def item(self, message: Message, moment: int) -> Item | BadRow:
        kind, stamp = message.timestamp()
        # The brokers' time, where they give it: an instance whose clock is behind refuses no good event.
        clock = stamp if kind == TIMESTAMP_LOG_APPEND_TIME else moment
        event = read_event(self._group, message.value(), stamp, clock)
        if isinstance(event, BadEvent):
            return BadRow(event.text)
        partition, offset, written = message.partition() or 0, message.offset() or 0, min(stamp, clock)
        row = row_of(event, partition, offset, written).row
        return Item(Kind.EVENTS, event.id, row, offset, written, partition, event)

    def positions(self, cluster: Cluster, topics: Mapping[str, Topic], low: int, high: int) -> PositionsAnswer:
        return PositionsAnswer(high, None)

    def kept(self, topics: Mapping[str, Topic]) -> Mapping[Kind, int]:
        # As long as Spark's topics would: the events themselves leave much earlier.
        return {Kind.VIEW: VIEW_RETENTION, Kind.STATS: STATS_RETENTION}

    def close(self) -> None:
        """There is nothing to close."""


Form: TypeAlias = SparkForm | EventsForm


def form_of(source: Source, kafka: Mapping[str, str], names: Names, client: str) -> Form:
    """Return the form of a source."""
    return EventsForm(names) if source is Source.EVENTS else SparkForm(kafka, names, client)
