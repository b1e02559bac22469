"""The two forms of the view as their reader sees them: which topics, what a record is, and up to when all is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, Message

from reconsume.sidecar.hints import absent, hint
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import Topic
from reconsume.sidecar.kafka.client_config import view_config
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.view.age import PositionsAnswer, ask_events
from reconsume.sidecar.view.source import Source
from reconsume.sidecar.view.store import retention_of
from reconsume.sidecar.view.tables import Item
from reconsume.topics.events import BadEvent
from reconsume.topics.fold import read_event, row_of
from reconsume.topics.names import Kind, Names
from reconsume.topics.specs import STATS_RETENTION, VIEW_RETENTION
from reconsume.topics.view_position import PositionTopics, as_java_prints
from reconsume.topics.view_record import BadRow, decode_stats, decode_view


class Form(Protocol):
    """What a reader of the view has to know of its form.

    `kinds`: the topics that are read, by name. `main`: the one whose end is the end of the view. `missing`, `empty`:
    sentences for a main topic that does not exist, or was never written to; without the second such a copy is complete.
    """

    @property
    def source(self) -> Source: ...

    @property
    def kinds(self) -> Mapping[str, Kind]: ...

    @property
    def main(self) -> str: ...

    @property
    def missing(self) -> str: ...

    @property
    def empty(self) -> str: ...

    def item(self, message: Message, moment: int) -> Item | BadRow:
        """Return a record as an item, or why it is none. `moment`: epoch ms, now."""

    def positions(self, cluster: Cluster, topics: Mapping[str, Topic], low: int, high: int) -> PositionsAnswer:
        """Return what is known at `high` (epoch ms, now) of the events. All before `low` are known to be read."""

    def kept(self, topics: Mapping[str, Topic]) -> Mapping[Kind, int]:
        """Return for how many ms what is made of each kind of record is kept; without those that are kept for ever."""

    def close(self) -> None:
        """Close its clients."""


class SparkForm:
    """Rows and sums that the Spark job wrote."""

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
        kind = self.kinds[message.topic() or ""]
        key, stamp = message.key(), message.timestamp()[1]
        decode = decode_view if kind is Kind.VIEW else decode_stats
        row = decode(self._names.group, key, message.value())
        if isinstance(row, BadRow):
            return row
        written = stamp if 0 < stamp < moment else moment
        return Item(kind, (key or b"").decode(), row, message.offset() or 0, written)

    def positions(self, cluster: Cluster, topics: Mapping[str, Topic], low: int, high: int) -> PositionsAnswer:
        events = topics[self._names.events].all_partitions if self._names.events in topics else []
        return ask_events(cluster, self._job, events, position_topics(topics, self._names), low, high)

    def kept(self, topics: Mapping[str, Topic]) -> Mapping[Kind, int]:
        limits = {self.kinds[name]: retention_of(topic.config) for name, topic in topics.items() if name in self.kinds}
        return {kind: limit for kind, limit in limits.items() if limit is not None}

    def close(self) -> None:
        self._job.close()


def position_topics(topics: Mapping[str, Topic], names: Names) -> PositionTopics:
    """Return the ids of the topics that a position of the job must be true of."""
    ids = (topics[name].id if name in topics else "" for name in (names.events, names.view))
    return PositionTopics(*map(as_java_prints, ids))


class EventsForm:
    """The events themselves, which the store folds."""

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


def form_of(source: Source, kafka: Mapping[str, str], names: Names, client: str) -> Form:
    """Return the form of a source."""
    return EventsForm(names) if source is Source.EVENTS else SparkForm(kafka, names, client)
