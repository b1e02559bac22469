"""A group's dead letter topics as they are now: their partitions, and what is known of redrives before.

Nothing is changed here. Whoever redrives asks after it has fenced all others; a dry run only looks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package re-exports them without saying so
    AdminClient,
    ConfigResource,
    ResourceType,
)

from sidecar.clock import now
from sidecar.core.record import Partition
from sidecar.dlq.redrive_history import NewerPast, RedriveHistory, decode_past
from sidecar.errors import BrokerError, ContractError
from sidecar.kafka.admin.topics import Admin, Offset
from sidecar.kafka.client_config import FETCH, reader_config
from sidecar.kafka.errors import ANSWER_SECONDS, raise_partition_errors, retry_transient, sentence_of
from topics.names import Names

CLIENT = "reconsume-dlq"
_NOWHERE = logging.getLogger("reconsume.nowhere")
_NOWHERE.addHandler(logging.NullHandler())
_NOWHERE.propagate = False
QUIET: Mapping[str, object] = {"log_level": 0, "logger": _NOWHERE}
"""For the clients of a command: what matters comes back as an error, and librdkafka's own lines would mix with ours. It
writes that it was fenced whatever the level."""
CLOCKS = 3_600_000
"""ms. So far apart may the clocks of sidecars, brokers and this machine be."""
COORDINATOR_SECONDS = 30.0
"""How long the group's coordinator may be away: a transaction that hangs is open for 10 s, a broker restarts in 20."""
PASSING = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._WAIT_COORD,
    }
)
"""Errors of the first question to a group; the client calls few of them retriable (2.16)."""
RETENTION = 7 * 86_400_000
"""ms. Kafka's default of `offsets.retention.minutes`, where it does not say."""


class Span(NamedTuple):
    """From which to which offset a partition is; `topic`: Kafka's id of its topic."""

    begin: int
    end: int
    topic: str = ""


Layout = Mapping[Partition, Span]


def _passing(error: KafkaError) -> bool:
    return error.code() in PASSING


def _from(span: Span, start: int) -> Span:
    """The span from `start` on; negative: no record is so new."""
    return span._replace(begin=span.end if start < 0 else min(span.end, max(span.begin, start)))


class DlqTopics:
    """The dead letter topics of one group. Every method raises BrokerError."""

    def __init__(self, kafka: Mapping[str, str], names: Names, mains: Iterable[str], fetch: int = FETCH) -> None:
        """`fetch`: bytes that a scan asks for at a time, as they lie in the log."""
        self.names, self.fetch = names, fetch
        self.topics = names.dlqs_of(tuple(mains))
        self.kafka = kafka
        self._admin = Admin(kafka)

    def reader(self) -> Consumer:
        """A client of the redrive group that never joins it; the caller closes it."""
        return Consumer({**reader_config(self.kafka, self.names.redrive_group, CLIENT), **QUIET})

    def layout(self) -> Layout:
        """Every partition; ContractError when a topic does not exist."""
        found = self._admin.find(self.topics)
        self.expect(found)
        counts = {name: topic.partitions for name, topic in found.items()}
        begins, ends = self._admin.offsets(counts, Offset.BEGIN), self._admin.offsets(counts, Offset.END)
        return {Partition(*place): Span(begins[place].offset, ends[place].offset, found[place[0]].id) for place in ends}

    def expect(self, found: Iterable[str]) -> None:
        """ContractError unless all dead letter topics are among those found."""
        missing = sorted(set(self.topics) - set(found))
        if missing:
            raise ContractError(f"{', '.join(missing)} does not exist; `reconsume topics apply` creates it")

    def expect_targets(self) -> None:
        """ContractError unless the topics that a redrive writes to exist."""
        targets = {self.names.ready, self.names.events}
        missing = sorted(targets - self._admin.find(targets).keys())
        if missing:
            raise ContractError(f"{' and '.join(missing)} must exist before anything is redriven; "
                                "`reconsume topics apply` creates what is missing")  # fmt: skip

    def since(self, layout: Layout, since: int) -> Layout:
        """The layout from the first record on whose time is at or after `since` (epoch ms); all before it is older."""
        if since <= 0 or not layout:
            return layout
        asked = [TopicPartition(place.topic, place.number, since) for place in layout]
        consumer = self.reader()
        try:
            found = consumer.offsets_for_times(asked, timeout=ANSWER_SECONDS)
        except KafkaException as failure:
            raise BrokerError(f"the dead letter topics cannot be searched by time: {sentence_of(failure)}") from failure
        finally:
            consumer.close()
        starts = {Partition(place.topic, place.partition): place.offset for place in found}
        # Negative: no record is so new.
        return {
            place: span._replace(
                begin=min(span.end, max(span.begin, starts[place])) if starts[place] >= 0 else span.end
            )
            for place, span in layout.items()
        }

    def pasts(
        self, layout: Layout, reader: Consumer | None = None, *, only_shown: bool = False
    ) -> dict[Partition, RedriveHistory]:
        """What is known of redrives, by partition; it waits for a transaction that is still open.

        ContractError where a newer version has kept it. With `only_shown` nothing is known of that partition: its
        letters are listed as forgotten, and nothing may be decided by that.
        """
        consumer = reader or self.reader()
        places = [TopicPartition(place.topic, place.number) for place in layout]
        try:
            return self._told(layout, self._committed(consumer, places), only_shown)
        finally:
            if reader is None:
                consumer.close()

    def _committed(self, consumer: Consumer, places: list[TopicPartition]) -> list[TopicPartition]:
        """What is committed; asked again while the group's coordinator is not there yet."""
        ask = partial(consumer.committed, places, timeout=ANSWER_SECONDS)
        try:
            return retry_transient(lambda: raise_partition_errors(ask()), COORDINATOR_SECONDS, _passing)
        except KafkaException as failure:
            raise BrokerError(
                f"the progress of group {self.names.redrive_group} cannot be read: {sentence_of(failure)}"
            ) from failure

    def _told(
        self, layout: Layout, committed: Iterable[TopicPartition], only_shown: bool
    ) -> dict[Partition, RedriveHistory]:
        wall, pasts = now().wall, dict[Partition, RedriveHistory]()
        kept: int | None = None
        for found in committed:
            place = Partition(found.topic, found.partition)
            past = decode_past(found.metadata)
            if isinstance(past, NewerPast):
                past = self._unread(place, only_shown)
            if past is None or past.topic != layout[place].topic:
                # An offset that somebody has reset: nothing is known of what is there today.
                foreign = found.offset >= 0 and past is None
                kept = self._offsets_kept() if kept is None and not foreign else kept
                past = RedriveHistory(layout[place].topic, wall if foreign else wall - max(0, (kept or 0) - CLOCKS))
            pasts[place] = past
        return pasts

    @staticmethod
    def _unread(place: Partition, only_shown: bool) -> None:
        """A newer version redrives here. To go on without its word could bring letters back twice."""
        if not only_shown:
            raise ContractError(
                f"what was redriven of {place} is kept by a newer version of Reconsume, and this one cannot read it: "
                "run `dlq` with that version; nothing was changed"
            )

    def _offsets_kept(self) -> int:
        """How long Kafka keeps committed offsets, in ms: the least that a broker says, or the default."""
        client = AdminClient({"client.id": CLIENT, "log_level": 0, **self.kafka})
        try:
            brokers = client.list_topics(timeout=ANSWER_SECONDS).brokers
            asked = [ConfigResource(ResourceType.BROKER, str(number)) for number in brokers]
            answers = client.describe_configs(asked, request_timeout=ANSWER_SECONDS)
            told = [self._minutes(answer.result(ANSWER_SECONDS)) for answer in answers.values()]
        except KafkaException:  # it needs DESCRIBE_CONFIGS on the cluster, which few have
            return RETENTION
        return min(told, default=RETENTION)

    @staticmethod
    def _minutes(config: Mapping[str, Any]) -> int:
        entry = config.get("offsets.retention.minutes")
        return RETENTION if entry is None else int(entry.value) * 60_000
